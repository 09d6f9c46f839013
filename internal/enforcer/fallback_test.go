package enforcer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// fleet is several replicas of one workload with one store.
type fleet struct {
	t        *testing.T
	store    *store
	replicas []*harness
}

// newFleet has three replicas.
func newFleet(t *testing.T, n int, policies ...policy.Policy) *fleet {
	t.Helper()
	f := &fleet{t: t, store: newStore()}
	for rank := range n {
		h := newHarness(t, func(o *enforcer.Options) {
			o.Store = f.store
			o.Local = memstore.New(memstore.Options{})
		})
		h.apply(policies...)
		h.replicas(n, rank)
		f.replicas = append(f.replicas, h)
	}
	return f
}

// settle lets the replicas take parts of remainders.
func (f *fleet) settle() {
	f.t.Helper()
	advance(time.Minute) // not shorter than they wait, and a whole window
	for _, h := range f.replicas {
		if err := h.Poll(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fleet) down() { f.store.set(func(s *store) { s.err = errRefused }) }

// send sends n requests to each replica, and returns what was admitted in all.
func (f *fleet) send(n int, r enforcer.Request) (admitted int) {
	for _, h := range f.replicas {
		got, _ := h.send(n, r)
		admitted += got
	}
	return admitted
}

// With the store down the replicas admit the limit together, in every window and for every key.
func TestLocalSharesAddUp(t *testing.T) {
	for name, limit := range map[string]policy.Limit{
		"a fixed window": fixed(10, "1m"), "a bucket": bucket(10, "1m"), "fewer than replicas": bucket(2, "1m"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
				f.settle()
				f.down()
				const windows = 9
				for _, key := range []string{"alice", "bob", "carol"} {
					first := f.send(20, as(key))
					if want := max(int(*limit.Requests), 3); first > want {
						t.Errorf("%s: %d at once, want at most %d", key, first, want)
					}
					total := 0
					for range windows {
						for range 60 {
							advance(time.Second)
							total += f.send(1, as(key))
						}
					}
					// Of a fixed window the first is spent already, and of the last only one second has come.
					want := windows * int(*limit.Requests)
					if least := want - int(*limit.Requests); total > want || total < least {
						t.Errorf("%s: %d in the %d windows after, want %d to %d", key, total, windows, least, want)
					}
				}
			})
		})
	}
}

// Without knowing its rank among the counted members a replica takes no part of a remainder.
func TestUnsettledReplicasTakeNoRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", byKey("r", fixed(10, "1m"))))
		f.down()
		if got := f.send(20, as("alice")); got != 9 {
			t.Errorf("admitted %d, want 3 on each of 3", got)
		}
	})
}

// A key that the store said is spent stays spent when the store fails.
func TestSpentStaysSpent(t *testing.T) {
	for name, limit := range map[string]policy.Limit{"a fixed window": fixed(30, "1h"), "a bucket": bucket(30, "1h")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3, policyOf("p", byKey("r", limit)))
				if got := f.send(30, as("alice")); got != 30 { // the first replica admits all of them
					t.Fatalf("admitted %d, want 30", got)
				}
				f.down()
				if got := f.send(10, as("alice")); got != 0 {
					t.Errorf("admitted %d more after the store went, want none: every replica has seen it spent", got)
				}
			})
		})
	}
}

// What a replica admitted itself counts against its share, also when much of the limit is left.
func TestOwnUseCountsAgainstTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", byKey("r", fixed(30, "1h"))))
		f.replicas[0].send(8, as("alice")) // 22 left, of which the part is 7: 2 of the share of 10 are left
		f.down()
		if got, _ := f.replicas[0].send(20, as("alice")); got != 2 {
			t.Errorf("the replica that admitted 8 admits %d more, want 2", got)
		}
		if got, _ := f.replicas[1].send(20, as("alice")); got != 10 {
			t.Errorf("a replica that never saw the key admits %d, want its share of 10", got)
		}
	})
}

// A replica that has had all of the traffic for long is not mute for long when the store goes.
func TestUnevenTrafficIsNotHeldAgainstAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", byKey("r", bucket(30, "1m"))))
		for range 1800 { // half an hour at 30 per minute, which is 3 times the share
			advance(time.Second)
			f.replicas[0].Decide(t.Context(), as("alice"))
			advance(time.Second)
		}
		f.down()
		admitted := 0
		for range 60 {
			advance(time.Second)
			if f.replicas[0].Decide(t.Context(), as("alice")).Allowed {
				admitted++
			}
		}
		if admitted < 10 || admitted > 20 {
			t.Errorf("admitted %d in the first minute without the store, want its share of 10 and the burst of as much", admitted)
		}
	})
}

// Several rules fall back each by its own choice; one that fails closed denies, and then nothing is charged.
func TestRulesFallBackEachByItsOwnChoice(t *testing.T) {
	rule := func(name string, requests int64, mode policy.OnStoreFailure) policy.Rule {
		r := byKey(name, fixed(requests, "1h"))
		r.OnStoreFailure = mode
		return r
	}
	tests := map[string]struct {
		rules []policy.Rule
		want  []outcome
	}{
		"open and local": {
			[]policy.Rule{rule("open", 1, policy.OnStoreFailureFailOpen), rule("local", 2, policy.OnStoreFailureLocalShare)},
			[]outcome{{true, 200, "p/local", "LocalShare"}, {true, 200, "p/local", "LocalShare"}, {false, 429, "p/local", "LocalShare"}},
		},
		"two local": {
			[]policy.Rule{rule("two", 2, policy.OnStoreFailureLocalShare), rule("one", 1, policy.OnStoreFailureLocalShare)},
			[]outcome{{true, 200, "p/one", "LocalShare"}, {false, 429, "p/one", "LocalShare"}},
		},
		"closed and local": {
			[]policy.Rule{rule("local", 2, policy.OnStoreFailureLocalShare), rule("closed", 1, policy.OnStoreFailureFailClosed)},
			[]outcome{{false, 503, "p/closed", "FailClosed"}, {false, 503, "p/closed", "FailClosed"}},
		},
		"only open": {
			[]policy.Rule{rule("open", 1, policy.OnStoreFailureFailOpen)},
			[]outcome{{true, 200, "p/open", "FailOpen"}, {true, 200, "p/open", "FailOpen"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", tc.rules...))
				h.store.set(func(s *store) { s.err = errRefused })
				for i, want := range tc.want {
					if got := outcomeOf(h.Decide(t.Context(), as("alice"))); got != want {
						t.Errorf("decision %d: %+v, want %+v", i, got, want)
					}
				}
			})
		})
	}
}

// Shadow rules deny nothing while the store is away, and say what they would have done.
func TestShadowRulesFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var rules []policy.Rule
		for name, mode := range map[string]policy.OnStoreFailure{
			"closed": policy.OnStoreFailureFailClosed, "local": policy.OnStoreFailureLocalShare, "open": policy.OnStoreFailureFailOpen,
		} {
			rule := byKey(name, fixed(2, "1h"))
			rule.Mode, rule.OnStoreFailure = policy.ModeShadow, mode
			rules = append(rules, rule)
		}
		h.apply(policyOf("p", rules...))
		h.store.set(func(s *store) { s.err = errRefused })
		if admitted, last := h.send(5, as("alice")); admitted != 5 || last.Source != "NoRule" {
			t.Errorf("admitted %d by %s, want all 5 by NoRule", admitted, last.Source)
		}
		want := map[string][2]uint64{"closed": {0, 5}, "local": {2, 3}, "open": {5, 0}}
		for _, r := range h.Figures().Rules {
			got := [2]uint64{r.Decisions[enforcer.ShadowAdmitted], r.Decisions[enforcer.ShadowDenied]}
			if got != want[r.Rule] {
				t.Errorf("%s: admitted and denied %v, want %v", r.Rule, got, want[r.Rule])
			}
		}
	})
}

// A local share answers a peek without being charged.
func TestPeekOfALocalShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.store.set(func(s *store) { s.err = errRefused })
		for range 3 {
			if d := h.Peek(t.Context(), as("alice")); !d.Allowed || d.Remaining != 1 || d.Source != "LocalShare" {
				t.Errorf("peek: %+v", d)
			}
		}
		h.send(1, as("alice"))
		if d := h.Peek(t.Context(), as("alice")); d.Allowed || d.RetryAfter <= 0 {
			t.Errorf("peek of a spent share: %+v", d)
		}
	})
}

// Local windows end when the store's do, whatever this process believes the time to be.
func TestLocalWindowsRunOnTheStoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const skew = 17 * time.Second // the process is ahead of the store
		h := newHarness(t, func(o *enforcer.Options) { o.Runtime = enforcer.Skewed(skew) })
		h.apply(policyOf("p", byKey("r", fixed(1, "1m"))))
		h.send(1, as("bob")) // the store tells its time
		h.store.set(func(s *store) { s.err = errRefused })
		_, last := h.send(2, as("alice"))
		if last.Allowed || last.RetryAfter != time.Minute {
			t.Errorf("denied for %v, want until the store's window ends in 1 min", last.RetryAfter)
		}
		advance(time.Minute)
		if d := h.Decide(t.Context(), as("alice")); !d.Allowed {
			t.Errorf("denied in the store's next window: %+v", d)
		}
	})
}
