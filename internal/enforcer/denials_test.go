package enforcer_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

func costly(name string, limits ...policy.Limit) policy.Rule {
	rule := byKey(name, limits...)
	rule.Cost = &policy.Cost{Attribute: "rows", Max: 1000}
	return rule
}

func of(key, rows string) enforcer.Request {
	r := as(key)
	r.Attributes = map[string]string{"rows": rows}
	return r
}

// A denied key is denied without the store until the wait that it told is over, for a second at most.
func TestAFloodIsDeniedWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(2, "1m"))))
		_, first := h.send(3, as("alice"))
		if first.Allowed || first.Source != "Store" {
			t.Fatalf("the first denial: %+v", first)
		}
		asked := h.store.asked()
		advance(300 * time.Millisecond)
		admitted, last := h.send(1000, as("alice"))
		if admitted != 0 || last.Source != "DenyCache" || last.Status != 429 || h.store.asked() != asked {
			t.Errorf("%d admitted, %d round trips, last %+v", admitted, h.store.asked()-asked, last)
		}
		if want := first.RetryAfter - 300*time.Millisecond; last.RetryAfter != want || last.Limit != 2 || last.Window != time.Minute {
			t.Errorf("the denial is %+v, want a wait of %v", last, want)
		}
		if d := h.Decide(t.Context(), as("bob")); !d.Allowed {
			t.Errorf("another key is denied: %+v", d)
		}
		advance(time.Second)
		if d := h.Decide(t.Context(), as("alice")); d.Allowed || d.Source != "Store" {
			t.Errorf("a second later: %+v, want the store to be asked", d)
		}
		counted := uint64(0)
		for _, r := range h.Figures().Rules {
			counted += r.Decisions[enforcer.CacheDenied]
		}
		if counted != 1000 {
			t.Errorf("%d denials counted, want 1000", counted)
		}
	})
}

// A denial says nothing of what costs less, of other numbers, or of another revision.
func TestADenialIsOfOneCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		rule := costly("r", fixed(10, "1h"))
		more := fixed(20, "1h")
		rule.Overrides = []policy.Override{{When: policy.AttributeMatch{Attribute: "plan", Values: []string{"scale"}}, Limits: []policy.Limit{more}}}
		h.apply(policyOf("p", rule))
		h.send(1, of("alice", "6"))
		for _, step := range []struct {
			rows, source string
			allowed      bool
		}{
			{"5", "Store", false}, {"5", "DenyCache", false}, {"7", "DenyCache", false}, {"4", "Store", true}, {"1", "Store", false},
		} {
			if d := h.Decide(t.Context(), of("alice", step.rows)); d.Allowed != step.allowed || d.Source != step.source {
				t.Errorf("a request of %s rows: %+v, want %+v", step.rows, d, step)
			}
		}
		scale := of("alice", "1")
		scale.Attributes["plan"] = "scale"
		if d := h.Decide(t.Context(), scale); !d.Allowed {
			t.Errorf("denied by the denial of another plan: %+v", d)
		}
		rule.Limits[0] = fixed(1000, "1h")
		h.apply(policyOf("p", rule))
		if d := h.Decide(t.Context(), of("alice", "5")); !d.Allowed {
			t.Errorf("denied by the denial of another revision: %+v", d)
		}
	})
}

// What this process gives back is there for it at once.
func TestAnOwnRefundEndsADenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.store.set(func(s *store) { s.delay = 4 * time.Millisecond })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		h.Decide(ctx, as("alice")) // is granted when it is gone already
		h.store.set(func(s *store) { s.delay = 0 })
		if d := h.Decide(t.Context(), as("alice")); d.Allowed {
			t.Fatal("the grant of the one who is gone was not charged")
		}
		advance(10 * time.Millisecond)
		synctest.Wait()
		if d := h.Decide(t.Context(), as("alice")); !d.Allowed {
			t.Errorf("denied after the refund: %+v", d)
		}
	})
}

// Whatever is charged, nothing is denied that the store would admit: here nobody gives anything back.
func TestDenialsAreTheStores(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	limits := map[string][]policy.Limit{
		"a bucket":           {bucket(30, "1s")},
		"a fixed window":     {fixed(20, "700ms")},
		"a sliding window":   {{Requests: number(20), Window: "900ms", Algorithm: policy.SlidingWindowCounter}},
		"a log":              {{Requests: number(20), Window: "900ms", Algorithm: policy.SlidingWindowLog}},
		"two limits at once": {bucket(30, "1s"), fixed(40, "3s")},
	}
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				h := newHarness(t)
				h.apply(policyOf("p", costly("r", limit...)))
				cached := 0
				for range 20_000 {
					advance(time.Duration(random.IntN(8)) * time.Millisecond)
					r := of([]string{"alice", "bob"}[random.IntN(2)], []string{"1", "2", "7"}[random.IntN(3)])
					would := h.Peek(t.Context(), r) // asks the store
					d := h.Decide(t.Context(), r)
					if d.Source == "DenyCache" {
						cached++
						if would.Allowed {
							t.Fatalf("denied %+v, and the store would have admitted: %+v", r.Attributes, would)
						}
					}
				}
				if cached == 0 {
					t.Error("no decision came from a denial")
				}
			})
		})
	}
}

// A store that gives back by itself is asked again soon.
func TestDenialsAreShortWhereTheStoreGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *enforcer.Options) { o.Store = givingBack{newStore()} })
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.send(2, as("alice"))
		advance(19 * time.Millisecond)
		if d := h.Decide(t.Context(), as("alice")); d.Source != "DenyCache" {
			t.Errorf("after 19 ms: %+v", d)
		}
		advance(time.Millisecond)
		if d := h.Decide(t.Context(), as("alice")); d.Source != "Store" {
			t.Errorf("after 20 ms: %+v", d)
		}
	})
}

type givingBack struct{ *store }

func (givingBack) GivesBack() bool { return true }

// However many keys are denied, what is remembered is bounded, and never of the wrong key.
func TestDenialsOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.store.counters = memstore.New(memstore.Options{MaxKeys: 1_000_000, Clock: func() int64 { return time.Now().UnixMicro() }})
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		const keys = 30_000
		var group sync.WaitGroup
		for worker := range 4 {
			group.Go(func() {
				for i := worker; i < keys; i += 4 {
					if admitted, _ := h.send(3, as(time.Duration(i).String())); admitted != 1 {
						t.Errorf("key %d: %d admitted, want 1", i, admitted)
					}
				}
			})
		}
		group.Wait()
	})
}

func number(n int64) *int64 { return &n }
