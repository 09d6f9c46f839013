package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// crowd asks for entries at one moment, in turns of two clients, and returns how many callers of each were granted.
func crowd(ctx context.Context, clients [2]enforcer.Store, entries []enforcer.Entry) ([]int64, error) {
	var (
		start   = make(chan struct{})
		wait    sync.WaitGroup
		granted = make([]int64, len(entries))
		errs    = make(chan error, len(entries))
	)
	for i := range entries {
		wait.Go(func() {
			<-start
			answers := make([]enforcer.Answer, 1)
			_, err := clients[i%2].Take(ctx, entries[i:i+1], answers)
			if err == nil {
				err = answers[0].Err
			}
			if err != nil {
				errs <- err
			}
			granted[i] = answers[0].Granted
		})
	}
	close(start)
	wait.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return granted, nil
	}
}

// race: a fresh counter meets more callers than it holds, all at once, and admits exactly what it holds.
func (s *suite) race(t *testing.T) {
	rounds := s.options.Rounds
	if testing.Short() {
		rounds = min(rounds, 3)
	}
	clients := s.clients(t, newClock().time)
	for _, a := range algorithms {
		for _, test := range []struct{ requests, hits, together int64 }{
			{requests: 1, hits: 50, together: 1},
			{requests: 100, hits: 500, together: 10},
		} {
			t.Run(fmt.Sprintf("%v, %d of %d", a, test.requests, test.hits), func(t *testing.T) {
				for round := range rounds {
					one := counter(algorithm.Limit{Algorithm: a, Requests: test.requests, Window: hour})
					entries := make([]enforcer.Entry, test.hits/test.together)
					for i := range entries {
						entries[i] = enforced(test.together, one)
					}
					granted, err := crowd(t.Context(), clients, entries)
					if err != nil {
						t.Fatal(err)
					}
					if got := sum(granted); got != test.requests {
						t.Fatalf("round %d: %d admitted, want %d", round, got, test.requests)
					}
				}
			})
		}
	}
}

func sum(numbers []int64) int64 {
	var total int64
	for _, n := range numbers {
		total += n
	}
	return total
}

// raceOverSeveral: entries over overlapping sets of identities race. No counter is exceeded, and what is charged in
// the end is what was granted: at once, or where identities are decided apart, when refunds have settled.
func (s *suite) raceOverSeveral(t *testing.T) {
	seed := startSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := s.options.Rounds
	if testing.Short() {
		rounds = min(rounds, 3)
	}
	clients := s.clients(t, newClock().time)
	for round := range rounds {
		counters := make([]enforcer.Counter, 5)
		for i := range counters {
			counters[i] = counter(algorithm.Limit{Algorithm: algorithms[random.IntN(4)], Requests: 1 + random.Int64N(20), Window: hour})
			counters[i].Identity = enforcer.Identity{byte(i)}
			counters[i].Cost = 1 + random.Int64N(3)
		}
		entries := make([]enforcer.Entry, 40)
		for i := range entries {
			n := 1 + random.IntN(3)
			for _, j := range random.Perm(len(counters))[:n] {
				entries[i].Counters = append(entries[i].Counters, counters[j])
			}
			entries[i].Enforced, entries[i].N = n, 1+random.Int64N(3)
		}
		granted, err := crowd(t.Context(), clients, entries)
		if err != nil {
			t.Fatalf("round %d of WEIR_SEED=%d: %v", round, seed, err)
		}
		for _, c := range counters {
			var charged int64
			for i, e := range entries {
				for _, other := range e.Counters {
					if other.ID == c.ID {
						charged += granted[i] * c.Cost
					}
				}
			}
			if charged > c.Limit.Requests {
				t.Fatalf("round %d of WEIR_SEED=%d: %d admitted by %+v", round, seed, charged, c)
			}
			want := c.Limit.Requests - charged
			got := remaining(t, clients[0], c)
			// Each client gives back what it owes with whatever it asks next.
			for deadline := time.Now().Add(10 * time.Second); s.options.Split && got != want && time.Now().Before(deadline); {
				remaining(t, clients[1], c)
				got = remaining(t, clients[0], c)
			}
			if got != want {
				t.Fatalf("round %d of WEIR_SEED=%d: %d remain of %+v, want %d", round, seed, got, c, want)
			}
		}
	}
}
