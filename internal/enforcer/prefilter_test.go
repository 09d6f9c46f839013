package enforcer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

func prefiltered(multiple int64, rule policy.Rule) policy.Rule {
	rule.Prefilter = &policy.Prefilter{Multiple: multiple}
	return rule
}

// Each replica asks the store for a multiple of its share, and denies the rest of a flood by itself.
func TestAPrefilterDeniesAFlood(t *testing.T) {
	for name, c := range map[string]struct {
		limit          policy.Limit
		multiple       int64
		admitted, last int64 // of 300 at one of three replicas, and of 300 more after a third of a window
	}{
		"a window":            {fixed(90, "1m"), 1, 30, 0},
		"twice its share":     {fixed(90, "1m"), 2, 60, 0},
		"a part of a request": {fixed(100, "1m"), 1, 34, 0},
		"all of the limit":    {fixed(90, "1m"), 3, 90, 0},
		"a bucket":            {bucket(90, "1m"), 1, 30, 10},
		"a log":               {policy.Limit{Requests: new(int64(90)), Window: "1m", Algorithm: policy.SlidingWindowLog}, 1, 30, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3, policyOf("p", prefiltered(c.multiple, byKey("r", c.limit))))
				advance(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
				h := f.replicas[0]
				asked := h.store.asked()
				admitted, last := h.send(300, as("alice"))
				if int64(admitted) != c.admitted || last.Source != "Prefilter" || last.Status != 429 {
					t.Errorf("%d admitted, the last %+v, want %d, and then the prefilter", admitted, last, c.admitted)
				}
				if last.RetryAfter <= 0 || last.RetryAfter > time.Minute || last.Limit != *c.limit.Requests {
					t.Errorf("the last denial is %+v", last)
				}
				if asked = h.store.asked() - asked; int64(asked) > c.admitted+1 {
					t.Errorf("asked the store %d times for %d", asked, c.admitted)
				}
				advance(20 * time.Second)
				if again, _ := h.send(300, as("alice")); int64(again) != c.last {
					t.Errorf("%d admitted 20 s later, want %d", again, c.last)
				}
				if n := h.Figures().Rules[0].Decisions[enforcer.PrefilterDenied]; n != 600-uint64(c.admitted+c.last) {
					t.Errorf("%d denials of the prefilter counted", n)
				}
				if d := h.Decide(t.Context(), as("bob")); !d.Allowed {
					t.Errorf("another key: %+v", d)
				}
			})
		})
	}
}

// A request that costs more than the multiple of the share is let pass when nothing else was.
func TestAPrefilterLetsPassWhatCostsMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", prefiltered(1, costly("r", fixed(90, "1m")))))
		if d := f.replicas[0].Decide(t.Context(), of("alice", "80")); !d.Allowed {
			t.Errorf("80 of 90: %+v", d)
		}
		if d := f.replicas[0].Decide(t.Context(), of("alice", "1")); d.Allowed || d.Source != "Prefilter" {
			t.Errorf("one more: %+v", d)
		}
	})
}

// A peek says what a decision would, and counts as nothing.
func TestAPeekPassesThePrefilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", prefiltered(1, byKey("r", fixed(30, "1m")))))
		h := f.replicas[0]
		for range 20 {
			if d := h.Peek(t.Context(), as("alice")); !d.Allowed {
				t.Fatalf("peek: %+v", d)
			}
		}
		if admitted, _ := h.send(20, as("alice")); admitted != 10 {
			t.Errorf("%d admitted, want 10", admitted)
		}
		if d := h.Peek(t.Context(), as("alice")); d.Allowed || d.Source != "Prefilter" {
			t.Errorf("peek afterwards: %+v", d)
		}
	})
}

// While the store is away local shares decide, not the prefilter.
func TestAPrefilterDoesNotStandBeforeTheLocalShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, policyOf("p", prefiltered(1, byKey("r", fixed(90, "1h")))))
		f.settle()
		f.down()
		f.replicas[0].send(5, as("bob"))
		if _, last := f.replicas[0].send(100, as("alice")); last.Source != "LocalShare" {
			t.Errorf("the last: %+v", last)
		}
	})
}
