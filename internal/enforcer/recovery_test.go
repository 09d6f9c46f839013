package enforcer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// Push makes the shared store of the tests one that can be told what was admitted without it.
func (s *store) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	s.mu.Lock()
	err, counters := s.err, s.counters
	s.pushes += len(pushes)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return counters.Push(ctx, pushes, answers)
}

// lose empties the store.
func (s *store) lose() {
	s.set(func(s *store) {
		s.counters = memstore.New(memstore.Options{Clock: func() int64 { return time.Now().UnixMicro() }})
	})
}

func (f *fleet) up() { f.store.set(func(s *store) { s.err = nil }) }

// back lets every replica find out that the store answers again.
func (f *fleet) back() {
	f.t.Helper()
	synctest.Wait() // for probes that decisions have sent
	for _, h := range f.replicas {
		h.Probe()
	}
}

// used is what the store counts of a key that the first rule of a policy "p" limits.
func (f *fleet) used(key string, l policy.Limit) int64 {
	f.t.Helper()
	kind, err := algorithm.Parse(string(l.Algorithm))
	if err != nil {
		f.t.Fatal(err)
	}
	window, err := time.ParseDuration(l.Window)
	if err != nil {
		f.t.Fatal(err)
	}
	c := enforcer.Counter{
		Identity: enforcer.IdentityOf(f.replicas[0].Enforcer, as(key)),
		ID:       policy.LimitID(workload, "p", "r", l.Algorithm, window.Microseconds()),
		Limit:    algorithm.Limit{Algorithm: kind, Requests: *l.Requests, Window: window.Microseconds()},
		Cost:     1,
	}
	answers := make([]enforcer.Answer, 1)
	entries := []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1}}
	if _, err := f.store.counters.Take(f.t.Context(), entries, answers); err != nil {
		f.t.Fatal(err)
	}
	return *l.Requests - answers[0].Results[0].Remaining
}

// open lets the breakers of all replicas open.
func (f *fleet) open(r enforcer.Request) (admitted int) { return f.send(5, r) }

var everyAlgorithm = map[string]policy.Limit{
	"FixedWindow":          fixed(300, "1h"),
	"TokenBucket":          bucket(300, "1h"),
	"SlidingWindowLog":     {Requests: ptr(300), Window: "1h", Algorithm: policy.SlidingWindowLog},
	"SlidingWindowCounter": {Requests: ptr(300), Window: "1h", Algorithm: policy.SlidingWindowCounter},
}

func ptr(n int64) *int64 { return &n }

// With the budget spent before the store goes, the replicas that saw that admit nothing more, nor after it came back,
// whatever it remembers.
func TestStoreLostAfterTheBudgetWasSpent(t *testing.T) {
	for name, limit := range everyAlgorithm {
		for what, empty := range map[string]bool{"untouched": false, "empty": true} {
			t.Run(name+", comes back "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
					f.settle()
					if got := f.send(200, as("alice")); got != 300 {
						t.Fatalf("admitted %d, want 300", got)
					}
					f.down()
					f.open(as("bob")) // alice is denied without the store, which tells nothing of it
					if got := f.send(100, as("alice")); got != 0 {
						t.Errorf("admitted %d more without the store", got)
					}
					if empty {
						f.store.lose()
					}
					f.up()
					f.back()
					if got := f.send(100, as("alice")); got != 0 {
						t.Errorf("admitted %d more once the store was back", got)
					}
					advance(11 * time.Second) // the guard is over
					// A bucket earns 300 in an hour, a request in 12 s.
					if got := f.send(100, as("alice")); got > 1 || got > 0 && limit.Algorithm != policy.TokenBucket {
						t.Errorf("admitted %d more when the store alone decides", got)
					}
				})
			})
		}
	}
}

// Each replica admits its share without the store, and the store then counts all of it, whatever it remembers.
func TestStoreCountsWhatWasAdmittedWithoutIt(t *testing.T) {
	for name, limit := range everyAlgorithm {
		for what, empty := range map[string]bool{"untouched": false, "empty": true} {
			t.Run(name+", comes back "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
					f.settle()
					admitted, _ := f.replicas[0].send(40, as("alice"))
					second, _ := f.replicas[1].send(10, as("alice"))
					admitted += second
					f.down()
					for _, h := range f.replicas {
						more, _ := h.send(20, as("alice"))
						admitted += more
					}
					if admitted != 110 {
						t.Fatalf("admitted %d, want 110", admitted)
					}
					if empty {
						f.store.lose()
					}
					f.up()
					f.back()
					more, _ := f.replicas[2].send(7, as("alice"))
					admitted += more
					advance(3 * time.Second) // the rounds hear of the 7
					synctest.Wait()
					drained := int64(0)
					if limit.Algorithm == policy.TokenBucket {
						drained = 1 // 300 in an hour: a quarter in 3 s, and each replica tells whole debts
					}
					if got := f.used("alice", limit); got > int64(admitted) || got < int64(admitted)-drained {
						t.Errorf("the store counts %d, want %d", got, admitted)
					}
				})
			})
		}
	}
}

// A counter that is evicted is filled again by a replica whose own use proves it, whatever the algorithm.
func TestEvictedCounterIsFilledAgain(t *testing.T) {
	for _, a := range []string{"TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog"} {
		t.Run(a, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := fixed(300, "1h")
				limit.Algorithm = policy.Algorithm(a)
				f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
				f.settle()
				f.replicas[0].send(80, as("alice"))
				f.store.lose()
				advance(time.Millisecond) // so that the answer is a newer one
				f.replicas[0].send(1, as("alice"))
				advance(time.Second)
				synctest.Wait()
				if got := f.used("alice", limit); got != 81 {
					t.Errorf("the store counts %d, want 81", got)
				}
			})
		})
	}
}

// A budget that one replica spent stays spent although the store forgets it while nobody asks and nobody notices. (Of what
// several replicas spent, the others' parts come back when they notice the loss, at the next poll.)
func TestSpentBudgetSurvivesASilentLoss(t *testing.T) {
	for _, a := range []string{"TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog"} {
		t.Run(a, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := fixed(300, "1h")
				limit.Algorithm = policy.Algorithm(a)
				f := newFleet(t, 2, policyOf("p", byKey("r", limit)))
				f.settle()
				f.replicas[0].send(300, as("alice"))
				advance(2 * time.Second)
				f.store.lose()
				again := 0
				for range 40 {
					for _, h := range f.replicas {
						admitted, _ := h.send(1, as("alice"))
						again += admitted
					}
					advance(50 * time.Millisecond)
				}
				// Each replica asks once before it knows, and the bucket earns a request in 12 s.
				if again > 2*len(f.replicas) {
					t.Errorf("%d more were admitted, want at most %d", again, 2*len(f.replicas))
				}
			})
		})
	}
}

// A replica whose member is forgotten takes it that the counters are, too.
func TestForgottenMemberTellsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := fixed(300, "1h")
		f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
		f.settle()
		for _, h := range f.replicas {
			h.send(80, as("alice"))
		}
		advance(time.Minute)
		f.store.lose()
		for _, h := range f.replicas {
			h.table.set(func(tb *table) { tb.standing.New = true })
			if err := h.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := f.used("alice", limit); got != 240 {
			t.Errorf("the store counts %d, want 240", got)
		}
	})
}

// A counter that was reset is not filled again by what replicas used before.
func TestResetIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := fixed(300, "1h")
		f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
		f.settle()
		f.send(100, as("alice"))
		advance(time.Second)
		c := f.replicas[0].counter("alice", 300)
		if err := f.store.Reset(t.Context(), []enforcer.Counter{c}); err != nil {
			t.Fatal(err)
		}
		advance(time.Second)
		first := f.send(1, as("alice"))
		advance(2 * time.Second)
		synctest.Wait()
		if got := f.used("alice", limit); got != int64(first) {
			t.Errorf("the store counts %d after the reset, want the %d since", got, first)
		}
		if got := f.send(150, as("alice")); got < 290 {
			t.Errorf("admitted %d after the reset, want about 300", got)
		}
	})
}

// For ten seconds after the store came back both must admit; then the store alone decides.
func TestStoreAndShareAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", byKey("r", fixed(300, "1h"))))
		f.settle()
		f.down()
		f.open(as("alice"))
		f.up()
		f.back()
		if got, last := f.replicas[0].send(150, as("bob")); got != 100 || last.Source != enforcer.SourceLocalShare {
			t.Errorf("admitted %d, the last by %s; want the share of 100", got, last.Source)
		}
		advance(11 * time.Second)
		if got, last := f.replicas[0].send(250, as("bob")); got != 200 || last.Source != enforcer.SourceDenyCache {
			t.Errorf("admitted %d, the last by %s; want the 200 that the store has left", got, last.Source)
		}
	})
}

// What rules that fail open admit, the store is told as well.
func TestFailOpenIsToldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := fixed(300, "1h")
		rule := byKey("r", limit)
		rule.OnStoreFailure = policy.OnStoreFailureFailOpen
		f := newFleet(t, 2, policyOf("p", rule))
		f.settle()
		f.down()
		if got := f.send(400, as("alice")); got != 800 {
			t.Fatalf("admitted %d, want all 800", got)
		}
		f.up()
		f.back()
		if got := f.send(10, as("alice")); got != 0 {
			t.Errorf("admitted %d more by a store that knows of 800", got)
		}
	})
}

// A replica that restarts while the store is away has no second share.
func TestNewProcessInAnOutage(t *testing.T) {
	for name, tc := range map[string]struct {
		rounding policy.Rounding
		after    map[time.Duration]int // admitted of 100 until then, of a share of 30
	}{
		"NeverZero": {policy.RoundingNeverZero, map[time.Duration]int{0: 0, 30 * time.Second: 15}},
		// It waits for two minutes, until the others know of it, and for the next window.
		"NeverExceed": {policy.RoundingNeverExceed, map[time.Duration]int{0: 0, 119 * time.Second: 0, 121 * time.Second: 30}},
	} {
		for after, want := range tc.after {
			t.Run(name+" after "+after.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rule := byKey("r", fixed(60, "1m"))
					rule.LocalShare = &policy.LocalShare{Rounding: tc.rounding}
					h := newHarness(t, func(o *enforcer.Options) { o.Local = memstore.New(memstore.Options{}) })
					h.table.set(func(tb *table) { tb.state.Replicas = countOf(t, policy.Replicas{N: 2, Ready: 2, Desired: 2}) })
					h.apply(policyOf("p", rule))
					h.store.set(func(s *store) { s.err = errRefused })
					h.Decide(t.Context(), as("somebody"))
					advance(after)
					if got, _ := h.send(100, as("alice")); got != want {
						t.Errorf("admitted %d, want %d", got, want)
					}
				})
			})
		}
	}
}

// Of a key that the store has told a new process about, that process has its part of what remained.
func TestNewProcessThatTheStoreInformed(t *testing.T) {
	for name, limit := range everyAlgorithm {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, func(o *enforcer.Options) { o.Local = memstore.New(memstore.Options{}) })
				h.table.set(func(tb *table) { tb.state.Replicas = countOf(t, policy.Replicas{N: 3, Ready: 3, Desired: 3}) })
				h.apply(policyOf("p", byKey("r", limit)))
				h.send(1, as("alice"))
				advance(time.Second)
				h.store.set(func(s *store) { s.err = errRefused })
				if got, _ := h.send(200, as("alice")); got != 99 {
					t.Errorf("admitted %d of a key that was told of, want 299/3", got)
				}
				if got, _ := h.send(200, as("bob")); got > 1 {
					t.Errorf("admitted %d of a key that was never heard of", got)
				}
			})
		})
	}
}
