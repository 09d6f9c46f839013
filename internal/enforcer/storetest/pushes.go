package storetest

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// pushed is a counter as the reference has it.
type pushed struct {
	enforcer.Counter
	ledger     enforcer.Ledger
	state, alt algorithm.State
}

// pushes tells counters at random what replicas used, between takes and resets, and compares all answers with
// enforcer.Ledger.
func (s *suite) pushes(t *testing.T) {
	seed := startSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newClock()
	store := s.newStore(t, c.time)
	pusher, ok := store.(enforcer.Pusher)
	if !ok {
		t.Fatalf("%T takes no pushes", store)
	}
	joined, voided, repeated := 0, 0, 0
	rounds := min(s.options.Rounds, 60)
	for range rounds {
		var counters []*pushed
		for _, a := range algorithms {
			counters = append(counters, &pushed{Counter: counter(algorithm.Limit{
				Algorithm: a, Requests: 1 + r.Int64N(200), Window: second * (1 + r.Int64N(100)),
			})})
		}
		for step := range 60 {
			c.now.Add(r.Int64N(3 * second))
			now := c.time()
			which := counters[r.IntN(len(counters))]
			switch r.IntN(8) {
			case 0, 1, 2:
				n := 1 + r.Int64N(20)
				got := take(t, store, enforced(n, which.Counter)).Granted
				want := min(n, which.Limit.Look(which.state, now, 0).Remaining)
				if got != want {
					t.Fatalf("seed %d: %v: granted %d, want %d", seed, which.Limit, got, want)
				}
				which.state = which.Limit.Charge(which.state, now, want)
			case 3:
				if r.IntN(4) == 0 {
					if err := store.Reset(t.Context(), []enforcer.Counter{which.Counter}); err != nil {
						t.Fatal(err)
					}
					*which = pushed{Counter: which.Counter, ledger: enforcer.Ledger{Reset: now}}
				}
			default:
				var pushes []enforcer.Push
				var want []enforcer.Pushed
				member := []string{"a/1", "b/2", "c/3"}[r.IntN(3)]
				for _, of := range counters[:1+r.IntN(len(counters))] {
					p := randomPush(r, of, member, int64(step)+3, now)
					before := len(of.ledger.Seen)
					var answer enforcer.Pushed
					of.state, of.alt, answer = of.ledger.Apply(&p, of.state, of.alt, now)
					pushes, want = append(pushes, p), append(want, answer)
					switch {
					case answer.Reset > 0:
						voided++
					case answer.Round > 0:
						joined++
					}
					if before == len(of.ledger.Seen) {
						repeated++
					}
				}
				got := make([]enforcer.Pushed, len(pushes))
				answered, err := pusher.Push(t.Context(), pushes, got)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" || answered != now {
					t.Fatalf("seed %d: at %d, want %d; answers (-want +got):\n%s", seed, answered, now, diff)
				}
			}
			for _, of := range counters {
				if got, want := remaining(t, store, of.Counter), of.Limit.Look(of.state, now, 0).Remaining; got != want {
					t.Fatalf("seed %d: %v: %d remain, want %d", seed, of.Limit, got, want)
				}
			}
		}
	}
	if 60*joined < 100*rounds || 60*voided < 10*rounds || 60*repeated < 100*rounds {
		t.Errorf("only %d pushes joined a round, %d were voided, %d repeated", joined, voided, repeated)
	}
}

func randomPush(r *rand.Rand, of *pushed, member string, step, now int64) enforcer.Push {
	state := func() (s algorithm.State) {
		l := of.Limit
		if l.Algorithm == algorithm.TokenBucket {
			return algorithm.State{At: now, Used: r.Int64N(30)}
		}
		for at := now - 2*l.Window; ; {
			if at += r.Int64N(l.Window); at > now {
				return s
			}
			s = l.Charge(s, at, r.Int64N(10))
		}
	}
	joined := of.ledger.Seen[member].Round
	if r.IntN(4) == 0 {
		joined = of.ledger.Round
	}
	return enforcer.Push{
		Identity: of.Identity, ID: of.ID, Limit: of.Limit, Member: member,
		Seq: step - r.Int64N(3), Since: now - r.Int64N(60*second), Suspect: r.IntN(2) == 0, Round: joined,
		Untold: state(), Fresh: state(), Used: state(),
	}
}
