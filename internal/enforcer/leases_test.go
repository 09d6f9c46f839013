package enforcer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

func leased(tokens int64, rule policy.Rule) policy.Rule {
	rule.Lease = &policy.Lease{Tokens: tokens}
	return rule
}

// left is what the store would admit of a key that the first rule counts.
func (h *harness) left(key string) int64 {
	h.t.Helper()
	synctest.Wait()
	o := enforcer.New(enforcer.Options{Store: h.store, Table: h.table, Pod: "observer", Local: memstore.New(memstore.Options{})})
	if err := o.Poll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	d := o.Peek(h.t.Context(), as(key))
	if d.Source != "Store" {
		h.t.Fatalf("peek: %+v", d)
	}
	return d.Remaining
}

// A replica takes several requests at once, admits them without the store, and gives back what nobody made.
func TestALeaseSparesRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		for i := range 250 {
			d := h.Decide(t.Context(), as("alice"))
			if !d.Allowed || d.Remaining != int64(10_000-1-i) {
				t.Fatalf("request %d: %+v, want %d left", i, d, 10_000-1-i)
			}
			// The first one asks for itself alone; then each that asks brings 99 more.
			want := "Lease"
			if i == 0 || i%100 == 1 {
				want = "Store"
			}
			if d.Source != want {
				t.Errorf("request %d is decided by %s, want %s", i, d.Source, want)
			}
		}
		if asked := h.store.asked(); asked != 4 {
			t.Errorf("asked %d times, want 4: 1 + 100 + 100 + 100", asked)
		}
		if left := h.left("alice"); left != 10_000-301 {
			t.Errorf("the store has %d left, want 51 charged ahead of the 250", left)
		}
		advance(time.Second + 100*time.Millisecond)
		if left := h.left("alice"); left != 10_000-250 {
			t.Errorf("the store has %d left when the lease is over, want what was not used back", left)
		}
		f := h.Figures()
		if f.Leased != [...]uint64{297, 51, 0} {
			t.Errorf("leased %v, want 297 taken, 51 returned", f.Leased)
		}
	})
}

// An identity that comes now and then takes no lease: it would be given back each time.
func TestALoneRequestTakesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		for range 5 {
			h.send(1, as("alice"))
			advance(1100 * time.Millisecond)
		}
		if f := h.Figures(); f.Leased != [3]uint64{} {
			t.Errorf("leased %v, want none", f.Leased)
		}
	})
}

// One that comes five times a second takes what it will need, and little goes back.
func TestALeaseIsAsLargeAsWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		for range 100 {
			h.send(1, as("alice"))
			advance(200 * time.Millisecond)
		}
		advance(2 * time.Second)
		f := h.Figures()
		if f.Leased[enforcer.LeaseReturned] > f.Leased[enforcer.LeaseTaken]/5 || f.Leased[enforcer.LeaseTaken] > 90 {
			t.Errorf("leased %v for 100 requests", f.Leased)
		}
		if asked := h.store.asked(); asked > 50 {
			t.Errorf("asked %d times for 100 requests", asked)
		}
		if left := h.left("alice"); left != 10_000-100 {
			t.Errorf("%d left, want 100 used", left)
		}
	})
}

// The end of a budget is not held by anybody: replicas admit exactly the limit.
func TestLeasesLeaveTheEndOfABudgetExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", leased(100, byKey("r", fixed(500, "1h")))))
		admitted := 0
		for i := range 1500 {
			n, _ := f.replicas[i%3].send(1, as("alice"))
			admitted += n
			advance(100 * time.Microsecond)
		}
		if admitted != 500 {
			t.Errorf("admitted %d, want 500", admitted)
		}
	})
}

// Windows never hold more than their limit, whatever is leased when they end.
func TestLeasesNeverExceedAWindow(t *testing.T) {
	for _, algorithm := range []policy.Algorithm{policy.FixedWindow, policy.SlidingWindowCounter} {
		t.Run(string(algorithm), func(t *testing.T) {
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 1))
			synctest.Test(t, func(t *testing.T) {
				limit := fixed(200, "1s")
				limit.Algorithm = algorithm
				f := newFleet(t, 3, policyOf("p", leased(50, byKey("r", limit))))
				f.store.set(func(s *store) { s.delay = 300 * time.Microsecond })
				admitted := make(map[int64]int)
				byLease := 0
				for range 20_000 {
					advance(time.Duration(random.IntN(1000)) * time.Microsecond)
					if d := f.replicas[random.IntN(3)].Decide(t.Context(), as("alice")); d.Allowed {
						admitted[time.Now().Unix()]++
						if d.Source == "Lease" {
							byLease++
						}
					}
				}
				for second, n := range admitted {
					if n > 200 {
						t.Errorf("seed %d: %d admitted in second %d, the limit is 200", seed, n, second)
					}
				}
				if byLease < 100 {
					t.Errorf("seed %d: only %d by lease", seed, byLease)
				}
			})
		})
	}
}

// A bucket may have earned again what is used late: burst + min(R·k, L·τ/W), here 1000 + min(100, 50).
func TestABucketsLeasesExceedItsBurstByWhatItEarnsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", bucket(1000, "10s"))))) // τ = 10 s / 20
		h.send(2, as("alice"))
		advance(490 * time.Millisecond)
		admitted, _ := h.send(2000, as("alice"))
		if admitted <= 1000 || admitted > 1050 {
			t.Errorf("%d admitted at once, want more than the burst, and at most 1050", admitted)
		}
		advance(2 * time.Second)
		if again, _ := h.send(2000, as("alice")); again > 200+50 {
			t.Errorf("%d admitted 2 s later, the bucket earned 200", again)
		}
	})
}

// While the store is away a lease is used up: it was charged before. It ends when it would have ended.
func TestALeaseOutlivesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		rule := leased(100, byKey("r", fixed(10_000, "1h")))
		rule.OnStoreFailure = policy.OnStoreFailureFailClosed
		h.apply(policyOf("p", rule))
		h.send(2, as("alice"))
		h.store.set(func(s *store) { s.err = errRefused })
		h.send(5, as("bob")) // opens the breaker, and makes the connection suspect
		if admitted, last := h.send(50, as("alice")); admitted != 50 || last.Source != "Lease" {
			t.Errorf("%d of 50 admitted, last %+v, want all of them by the lease", admitted, last)
		}
		if admitted, _ := h.send(100, as("alice")); admitted != 49 {
			t.Errorf("%d admitted, want the 49 that were left", admitted)
		}
		advance(1100 * time.Millisecond)
		if admitted, last := h.send(1, as("alice")); admitted != 0 || last.Source != "FailClosed" {
			t.Errorf("afterwards: %+v", last)
		}
	})
}

// A store that may have lost charges gets nothing back: it would be given what it never had.
func TestASuspectedStoreGetsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		h.send(2, as("alice"))
		h.store.set(func(s *store) { s.err = errRefused })
		h.send(5, as("bob")) // one after the other: three failures open the breaker
		h.store.set(func(s *store) { s.err = nil })
		h.store.lose()
		synctest.Wait()
		advance(100 * time.Millisecond)
		h.Probe()
		if d := h.Decide(t.Context(), as("alice")); d.Source == "Lease" {
			t.Errorf("a lease of before is used: %+v", d)
		}
		advance(2 * time.Second)
		h.store.set(func(s *store) {
			for _, r := range s.refunds {
				t.Errorf("given back: %+v", r)
			}
		})
		if f := h.Figures(); f.Leased[enforcer.LeaseDropped] != 99 || f.Leased[enforcer.LeaseReturned] != 0 {
			t.Errorf("leased %v, want 99 dropped", f.Leased)
		}
	})
}

func TestWhatEndsALease(t *testing.T) {
	rule := leased(100, byKey("r", fixed(10_000, "1h")))
	for name, step := range map[string]func(h *harness){
		"another revision": func(h *harness) { h.apply(policyOf("p", leased(100, byKey("r", fixed(9_000, "1h"))))) },
		"a reset": func(h *harness) {
			c := []enforcer.Counter{h.counter("alice", 10_000)}
			if err := h.store.Reset(h.t.Context(), c); err != nil {
				h.t.Fatal(err)
			}
			h.Forget(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", rule))
				if _, last := h.send(3, as("alice")); last.Source != "Lease" {
					t.Fatalf("before: %+v", last)
				}
				step(h)
				if d := h.Decide(t.Context(), as("alice")); d.Source != "Store" || !d.Allowed {
					t.Errorf("afterwards: %+v", d)
				}
				advance(1100 * time.Millisecond)
				used := int64(4)
				if name == "a reset" {
					used = 1
				}
				d := h.Peek(t.Context(), as("alice"))
				if d.Remaining != d.Limit-used {
					t.Errorf("%d left of %d, want %d used", d.Remaining, d.Limit, used)
				}
			})
		})
	}
}

// Whether a lease is taken depends on every rule that enforces; a shadow rule is charged as the requests were made.
func TestLeasesOverSeveralRules(t *testing.T) {
	shadow := byKey("shadow", fixed(50, "1h"))
	shadow.Mode = policy.ModeShadow
	for name, c := range map[string]struct {
		rules []policy.Rule
		lease bool
	}{
		"both have one":        {[]policy.Rule{leased(100, byKey("r", fixed(10_000, "1h"))), leased(20, byKey("s", fixed(5_000, "1m")))}, true},
		"one of them has none": {[]policy.Rule{leased(100, byKey("r", fixed(10_000, "1h"))), byKey("s", fixed(5_000, "1m"))}, false},
		"a shadow rule":        {[]policy.Rule{leased(100, byKey("r", fixed(10_000, "1h"))), shadow}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", c.rules...))
				admitted, last := h.send(100, as("alice"))
				if admitted != 100 || (last.Source == "Lease") != c.lease {
					t.Errorf("%d of 100 admitted, the last %+v", admitted, last)
				}
				advance(1100 * time.Millisecond)
				if d := h.Peek(t.Context(), as("alice")); d.Limit-d.Remaining != 100 {
					t.Errorf("%d of %d left, want 100 used", d.Remaining, d.Limit)
				}
				for _, r := range h.Figures().Rules {
					if r.Rule != "shadow" {
						continue
					}
					if a, d := r.Decisions[enforcer.ShadowAdmitted], r.Decisions[enforcer.ShadowDenied]; a != 50 || d != 50 {
						t.Errorf("the shadow rule admitted %d and denied %d, want 50 and 50", a, d)
					}
				}
			})
		})
	}
}

// Requests that cost differently are different entries, with leases of their own.
func TestLeasesOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(10, costly("r", fixed(1000, "1h")))))
		used := int64(0)
		for i := range 60 {
			cost := int64(1 + i%3)
			d := h.Decide(t.Context(), of("alice", fmt.Sprint(cost)))
			if !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
			used += cost
		}
		advance(1100 * time.Millisecond)
		if left := h.left("alice"); left != 1000-used {
			t.Errorf("%d left, want %d", left, 1000-used)
		}
		if asked := h.store.asked(); asked > 15 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// A peek sees the lease and takes nothing of it.
func TestAPeekSeesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		h.send(10, as("alice"))
		for range 3 {
			if d := h.Peek(t.Context(), as("alice")); !d.Allowed || d.Source != "Lease" || d.Remaining != 9_990 {
				t.Errorf("peek: %+v, want 9990 left", d)
			}
		}
		if d := h.Decide(t.Context(), as("alice")); d.Remaining != 9_989 {
			t.Errorf("decision: %+v", d)
		}
	})
}

// What a replica was charged with a lease and did not use is not its own use: the store is not told of it.
func TestAnUnusedLeaseIsNotToldToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", leased(100, byKey("r", fixed(10_000, "1h")))))
		h.send(30, as("alice"))
		advance(1100 * time.Millisecond) // 71 given back
		h.store.set(func(s *store) { s.err = errRefused })
		h.send(5, as("bob")) // one after the other: three failures open the breaker
		h.store.lose()
		h.store.set(func(s *store) { s.err = nil })
		advance(100 * time.Millisecond)
		h.Probe()
		advance(15 * time.Second)
		if left := h.left("alice"); left != 10_000-30 {
			t.Errorf("the store has %d left after the loss, want 30 told", left)
		}
	})
}
