package enforcer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// promptStore returns with its context's deadline, and remembers how long it was given.
type promptStore struct {
	*store
	mu    sync.Mutex
	given []time.Duration
}

func (*promptStore) Prompt() bool { return true }

func (s *promptStore) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	deadline, _ := ctx.Deadline()
	s.mu.Lock()
	s.given = append(s.given, time.Until(deadline))
	s.mu.Unlock()
	return s.store.Take(ctx, entries, answers)
}

// alone is how many of the takes had the deadline of one caller. A batch has a longer one.
func (s *promptStore) alone() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.given {
		if d <= enforcer.DefaultStoreTimeout {
			n++
		}
	}
	return n
}

func newPromptHarness(t *testing.T) (*harness, *promptStore) {
	t.Helper()
	s := &promptStore{}
	h := newHarness(t, func(o *enforcer.Options) {
		s.store, _ = o.Store.(*store)
		o.Store = s
	})
	h.apply(policyOf("p", byKey("r", fixed(1000, "1h"))))
	h.Decide(t.Context(), as("alice")) // the store is quick
	return h, s
}

func TestALoneCallerAsksItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newPromptHarness(t)
		for i := range 10 {
			if d := h.Decide(t.Context(), as("alice")); !d.Allowed || d.Source != "Store" || d.Remaining != int64(998-i) {
				t.Errorf("decision %d: %+v", i, d)
			}
		}
		if got := s.alone(); got != 10 {
			t.Errorf("%d callers asked alone, want all 10", got)
		}
	})
}

// While batches hold hardly anybody, a few are under way at once. Whoever comes meanwhile gathers, as behind any batch.
func TestOthersGatherBehindLoneCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newPromptHarness(t)
		h.store.set(func(s *store) { s.delay = 2 * time.Millisecond })
		asked := h.store.asked()
		if got := h.sendAll(100, as("alice")); got != 100 {
			t.Errorf("admitted %d, want 100", got)
		}
		if got := h.store.asked() - asked; got != 5 || s.alone() != 4 {
			t.Errorf("%d round trips, %d of them alone; want those of the first four, and everybody else's", got, s.alone())
		}
	})
}

// Where many ask at once, one batch is under way: so each of them holds the most.
func TestACrowdGoesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newPromptHarness(t)
		h.store.set(func(s *store) { s.delay = 2 * time.Millisecond })
		h.sendAll(100, as("alice"))
		asked, alone := h.store.asked(), s.alone()
		h.sendAll(100, as("alice"))
		if got := h.store.asked() - asked; got != 2 || s.alone() != alone+1 {
			t.Errorf("%d round trips, %d of them alone; want the first caller's, and everybody else's", got, s.alone()-alone)
		}
		for range 12 {
			h.Decide(t.Context(), as("alice"))
		}
		asked = h.store.asked()
		h.sendAll(4, as("alice"))
		if got := h.store.asked() - asked; got != 4 {
			t.Errorf("%d round trips for four callers after the crowd has gone, want one for each", got)
		}
	})
}

// A store that falls silent holds a lone caller for StoreTimeout and not longer, and then nobody asks it alone.
func TestALoneCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newPromptHarness(t)
		h.store.set(func(s *store) { s.silent = true })
		for i := range 5 {
			start := time.Now()
			d := h.Decide(t.Context(), as("alice"))
			if took := time.Since(start); d.Source != "LocalShare" || took > enforcer.DefaultStoreTimeout {
				t.Errorf("decision %d after %v: %+v", i, took, d)
			}
		}
		advance(2 * time.Second) // the batches behind the callers give up
		if got := s.alone(); got != 1 {
			t.Errorf("%d callers asked alone, want only the first, who could not know", got)
		}
		f := h.Figures()
		if !f.BreakerOpen || f.Failures[enforcer.ReasonTimeout] == 0 || f.Late[enforcer.LateLost] == 0 {
			t.Errorf("breaker open %t, failures %v, late %v", f.BreakerOpen, f.Failures, f.Late)
		}
	})
}

// One who hangs up while asking alone is told so, and what was charged for it is given back.
func TestALoneCallerWhoHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newPromptHarness(t)
		h.store.set(func(s *store) { s.delay = 2 * time.Millisecond })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if d := h.Decide(ctx, as("alice")); d.Allowed || d.Source != "Canceled" {
			t.Errorf("got %+v", d)
		}
		synctest.Wait()
		if d := h.Peek(t.Context(), as("alice")); d.Remaining != 999 {
			t.Errorf("%d left, want 999: nobody but the first was served", d.Remaining)
		}
		if got := h.Figures().Late[enforcer.LateRefunded]; got != 1 {
			t.Errorf("%d refunds counted, want 1", got)
		}
	})
}

// A failure is the rule's choice, and counted once.
func TestALoneCallersFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newPromptHarness(t)
		h.store.set(func(s *store) { s.err = errRefused })
		if d := h.Decide(t.Context(), as("alice")); d.Source != "LocalShare" || d.Cause == "" {
			t.Errorf("got %+v", d)
		}
		if got := h.Figures().Failures[enforcer.ReasonRefused]; got != 1 {
			t.Errorf("%d failures counted, want 1", got)
		}
	})
}
