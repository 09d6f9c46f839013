package redisstore

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// slotServer is a cluster's node as a map: fixed windows that never end.
type slotServer map[string]int64

func (s slotServer) left(c enforcer.Counter) int64 {
	used := s[c.ID+string(c.Identity[:])]
	return c.Limit.Requests - used
}

func (s slotServer) charge(counters []enforcer.Counter, callers int64) {
	for _, c := range counters {
		s[c.ID+string(c.Identity[:])] += callers * c.Cost
	}
}

func (s slotServer) take(e enforcer.Entry) enforcer.Answer {
	fits := func(counters []enforcer.Counter, n int64) int64 {
		for _, c := range counters {
			n = min(n, max(0, s.left(c))/c.Cost)
		}
		return n
	}
	answer := enforcer.Answer{Granted: fits(e.Counters[:e.Enforced], e.N)}
	s.charge(e.Counters[:e.Enforced], answer.Granted)
	from := e.Enforced
	for _, to := range e.Shadow {
		answer.Shadow = append(answer.Shadow, fits(e.Counters[from:to], answer.Granted))
		s.charge(e.Counters[from:to], answer.Shadow[len(answer.Shadow)-1])
		from = to
	}
	for _, c := range e.Counters {
		answer.Results = append(answer.Results, algorithm.Result{
			Allowed: s.left(c) >= c.Cost, Satisfiable: true, Remaining: max(0, s.left(c)),
		})
	}
	return answer
}

// Over any number of slots, what is left once all refunds have settled is what one server would have left, or more
// callers were refused: never more admitted.
func TestPartsChargeWhatWasGranted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		var entries []enforcer.Entry
		for range 1 + random.IntN(5) {
			e := enforcer.Entry{N: random.Int64N(6)}
			for rule := range random.IntN(5) {
				// All counters of a rule have one identity.
				identity := enforcer.Identity{byte(random.IntN(6))}
				for range 1 + random.IntN(2) {
					e.Counters = append(e.Counters, enforcer.Counter{
						Identity: identity, ID: string(rune('a' + len(e.Counters))), Cost: 1 + random.Int64N(3),
						Limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: random.Int64N(12), Window: 1},
					})
				}
				if rule < 2 && len(e.Shadow) == 0 {
					e.Enforced = len(e.Counters)
				} else {
					e.Shadow = append(e.Shadow, len(e.Counters))
				}
			}
			entries = append(entries, e)
		}
		servers := map[uint16]slotServer{}
		parts := split(entries)
		lost := errors.New("lost")
		for _, p := range parts {
			servers[p.slot] = slotServer{}
			for k := range p.entries {
				p.answers[k] = servers[p.slot].take(p.entries[k])
			}
			if random.IntN(10) == 0 {
				p.err = lost
			}
		}
		answers := make([]enforcer.Answer, len(entries))
		owed := merge(entries, parts, answers)
		for _, r := range owed {
			servers[slotOf(r.Counters[0].Identity)].charge(r.Counters, -r.N)
		}

		failed := map[uint16]bool{}
		for _, p := range parts {
			failed[p.slot] = p.err != nil
		}
		want := map[uint16]slotServer{}
		for slot := range servers {
			if !failed[slot] {
				want[slot] = slotServer{}
			}
		}
		for i, e := range entries {
			from, granted := 0, answers[i].Granted
			for rule, to := range append([]int{e.Enforced}, e.Shadow...) {
				charged := granted
				if rule > 0 {
					charged = answers[i].Shadow[rule-1]
				}
				for j := from; j < to; j++ {
					slot := slotOf(e.Counters[j].Identity)
					switch {
					case !failed[slot]:
						want[slot].charge(e.Counters[j:j+1], charged)
					case rule == 0 && (answers[i].Err == nil || granted > 0):
						t.Fatalf("entry %d has %d granted by a slot that failed", i, granted)
					case rule > 0 && charged > 0:
						t.Fatalf("entry %d has a shadow rule charged by a slot that failed", i)
					}
				}
				from = to
			}
			if len(answers[i].Results) != len(e.Counters) || len(answers[i].Shadow) != len(e.Shadow) {
				t.Fatalf("entry %d: %+v", i, answers[i])
			}
		}
		for slot, server := range want {
			if diff := cmp.Diff(server, servers[slot], cmpopts.IgnoreMapEntries(func(_ string, used int64) bool { return used == 0 })); diff != "" {
				t.Fatalf("slot %d holds (-granted +charged):\n%s", slot, diff)
			}
		}
	}
}
