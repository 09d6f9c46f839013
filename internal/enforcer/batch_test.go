package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// Callers who come while a batch is under way go together in the next one, and equal ones are one entry.
func TestCallersAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(40, "1h"))))
		h.store.set(func(s *store) { s.delay = 2 * time.Millisecond })
		var group sync.WaitGroup
		var admitted atomic.Int64
		for i := range 100 {
			group.Go(func() {
				if h.Decide(t.Context(), as(fmt.Sprintf("key %d", i%2))).Allowed {
					admitted.Add(1)
				}
			})
		}
		group.Wait()
		if got := admitted.Load(); got != 80 {
			t.Errorf("admitted %d, want 40 for each of two keys", got)
		}
		h.store.set(func(s *store) {
			if s.takes != 2 {
				t.Errorf("%d round trips with %v entries, want 2: the first caller's, and everybody else's", s.takes, s.entries)
			}
			if last := s.entries[len(s.entries)-1]; last != 2 {
				t.Errorf("%d entries in the second, want one for each key", last)
			}
		})
	})
}

// A lone caller waits for nobody.
func TestALoneCallerIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(40, "1h"))))
		h.store.set(func(s *store) { s.delay = 3 * time.Millisecond })
		start := time.Now()
		h.Decide(t.Context(), as("alice"))
		if took := time.Since(start); took != 3*time.Millisecond {
			t.Errorf("a decision took %v, want the store's 3 ms", took)
		}
	})
}

// Callers of one entry are answered as if one after the other.
func TestRemainingOfACoalescedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(10, "1h"))))
		h.store.set(func(s *store) { s.delay = time.Millisecond })
		var mu sync.Mutex
		seen := make(map[int64]int)
		denied := 0
		var group sync.WaitGroup
		for range 15 {
			group.Go(func() {
				d := h.Decide(t.Context(), as("alice"))
				mu.Lock()
				defer mu.Unlock()
				if d.Allowed {
					seen[d.Remaining]++
				} else if denied++; d.Remaining != 0 || d.RetryAfter <= 0 {
					t.Errorf("denied with %d left, retry after %v", d.Remaining, d.RetryAfter)
				}
			})
		}
		group.Wait()
		if denied != 5 {
			t.Errorf("denied %d, want 5", denied)
		}
		for left := range int64(10) {
			if seen[left] != 1 {
				t.Errorf("%d callers were told that %d are left, want 1", seen[left], left)
			}
		}
	})
}

// With a round trip longer than a quarter of the timeout, batches overlap, but no more than four.
func TestBatchesOverlapWhenTheStoreIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(1_000_000, "1h"))))
		h.store.set(func(s *store) { s.delay = 6 * time.Millisecond })
		var group sync.WaitGroup
		var late atomic.Int64
		for i := range 200 {
			group.Go(func() {
				advance(time.Duration(i) * 100 * time.Microsecond)
				if d := h.Decide(t.Context(), as("alice")); d.Source != "Store" {
					late.Add(1)
				}
			})
		}
		group.Wait()
		if got := late.Load(); got != 0 {
			t.Errorf("%d of 200 callers got no answer in time from a store that takes 6 ms", got)
		}
	})
}

// However silent the store is, a decision comes when StoreTimeout is over (B19).
func TestDeadlineIsOurs(t *testing.T) {
	for _, mode := range []policy.OnStoreFailure{
		policy.OnStoreFailureLocalShare, policy.OnStoreFailureFailOpen, policy.OnStoreFailureFailClosed,
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			rule := byKey("r", fixed(1000, "1h"))
			rule.OnStoreFailure = mode
			h.apply(policyOf("p", rule))
			h.store.set(func(s *store) { s.silent = true })
			var longest atomic.Int64
			var group sync.WaitGroup
			for i := range 600 { // 200 a second for 3 s
				group.Go(func() {
					advance(time.Duration(i) * 5 * time.Millisecond)
					start := time.Now()
					d := h.Decide(t.Context(), as("alice"))
					took := time.Since(start)
					for {
						old := longest.Load()
						if int64(took) <= old || longest.CompareAndSwap(old, int64(took)) {
							break
						}
					}
					if i > 100 && took != 0 {
						t.Errorf("decision %d took %v although the breaker is open", i, took)
					}
					if d.Allowed != (mode != policy.OnStoreFailureFailClosed) || d.Source == "Store" {
						t.Errorf("decision %d: %+v", i, d)
					}
				})
			}
			group.Wait()
			if got := time.Duration(longest.Load()); got != enforcer.DefaultStoreTimeout {
				t.Errorf("%s: the longest decision took %v, want %v", mode, got, enforcer.DefaultStoreTimeout)
			}
			if f := h.Figures(); !f.BreakerOpen || f.BreakerTrips != 1 || f.Failures[enforcer.ReasonTimeout] == 0 {
				t.Errorf("breaker open %t after %d trips, failures %v", f.BreakerOpen, f.BreakerTrips, f.Failures)
			}

			// The store is back: a probe finds it, and the next decision is the store's.
			h.store.set(func(s *store) { s.silent = false })
			for range 100 {
				advance(100 * time.Millisecond)
				h.Decide(t.Context(), as("bob"))
				synctest.Wait()
			}
			if d := h.Decide(t.Context(), as("bob")); d.Source != "Store" || h.Figures().BreakerOpen {
				t.Errorf("%s: decided by %s 10 s after the store is back", mode, d.Source)
			}
		})
	}
}

// Every kind of failure reaches the rule's choice, and has its own reason (B21).
func TestFailureModes(t *testing.T) {
	failures := map[enforcer.Reason]error{
		enforcer.ReasonRefused:   errRefused,
		enforcer.ReasonTimeout:   context.DeadlineExceeded,
		enforcer.ReasonCrossSlot: &enforcer.StoreError{Reason: enforcer.ReasonCrossSlot, Err: errors.New("CROSSSLOT")},
		enforcer.ReasonReply:     fmt.Errorf("taking: %w", &enforcer.StoreError{Reason: enforcer.ReasonReply, Err: errors.New("nil")}),
		enforcer.ReasonScript:    &enforcer.StoreError{Reason: enforcer.ReasonScript, Err: errors.New("ERR")},
		enforcer.ReasonOther:     errors.New("something else"),
	}
	want := map[policy.OnStoreFailure][]outcome{ // of a limit of 1
		policy.OnStoreFailureFailOpen:   {{true, 200, "p/r", "FailOpen"}, {true, 200, "p/r", "FailOpen"}},
		policy.OnStoreFailureFailClosed: {{false, 503, "p/r", "FailClosed"}, {false, 503, "p/r", "FailClosed"}},
		policy.OnStoreFailureLocalShare: {{true, 200, "p/r", "LocalShare"}, {false, 429, "p/r", "LocalShare"}},
	}
	for reason, failure := range failures {
		for mode, outcomes := range want {
			t.Run(fmt.Sprintf("%s %s", reason, mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					rule := byKey("r", fixed(1, "1h"))
					rule.OnStoreFailure = mode
					h.apply(policyOf("p", rule))
					h.store.set(func(s *store) { s.err = failure })
					for i, want := range outcomes {
						d := h.Decide(t.Context(), as("alice"))
						if got := outcomeOf(d); got != want {
							t.Errorf("decision %d: %+v, want %+v", i, got, want)
						}
						if d.Cause == "" {
							t.Errorf("decision %d has no cause", i)
						}
						if d.Status == 503 && d.RetryAfter <= 0 {
							t.Errorf("decision %d does not say when to come back", i)
						}
					}
					asked := uint64(2)
					if mode == policy.OnStoreFailureLocalShare {
						asked = 1 // until the store was told of what the share admitted, that denies without the store
					}
					if got := h.Figures().Failures; got[reason] != asked {
						t.Errorf("failures %v, want %d of %s", got, asked, reason)
					}
				})
			})
		}
	}
}

// Callers who hang up say nothing about the store (B23).
func TestCallersWhoHangUpAreNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(1000, "1h"))))
		h.store.set(func(s *store) { s.delay = 3 * time.Millisecond })
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			start := time.Now()
			if d := h.Decide(ctx, as("alice")); d.Allowed || d.Source != "Canceled" {
				t.Errorf("a caller who hung up got %+v", d)
			}
			if took := time.Since(start); took != time.Millisecond {
				t.Errorf("it took %v, want the caller's 1 ms", took)
			}
			cancel()
		}
		advance(time.Second)
		synctest.Wait()
		f := h.Figures()
		if f.BreakerOpen || f.BreakerTrips != 0 {
			t.Error("the breaker opened on callers who hung up")
		}
		for reason, n := range f.Failures {
			if n != 0 {
				t.Errorf("%d failures of kind %s", n, reason)
			}
		}
		// What was charged for them was given back.
		if d := h.Peek(t.Context(), as("alice")); d.Remaining != 1000 {
			t.Errorf("%d left, want all 1000: nobody was served", d.Remaining)
		}
		if got := f.Late[enforcer.LateRefunded]; got == 0 {
			t.Error("no refund was counted")
		}
	})
}

// An answer that comes late still counts, once.
func TestLateAnswers(t *testing.T) {
	limited := func(mode policy.OnStoreFailure, n int64) policy.Rule {
		rule := byKey("r", fixed(n, "1h"))
		rule.OnStoreFailure = mode
		return rule
	}
	tests := map[string]struct {
		mode  policy.OnStoreFailure
		limit int64
		fails bool
		want  map[enforcer.Late]uint64
		left  int64 // in the store, of the limit
	}{
		"a grant for one admitted locally stands": {
			policy.OnStoreFailureLocalShare, 10, false, map[enforcer.Late]uint64{enforcer.LateUsed: 4}, 6,
		},
		"a grant for one admitted by Open stands": {
			policy.OnStoreFailureFailOpen, 10, false, map[enforcer.Late]uint64{enforcer.LateUsed: 4}, 6,
		},
		"a grant for one who was denied is given back": {
			policy.OnStoreFailureFailClosed, 10, false, map[enforcer.Late]uint64{enforcer.LateRefunded: 4}, 10,
		},
		"a late denial": {
			policy.OnStoreFailureFailOpen, 3, false, map[enforcer.Late]uint64{enforcer.LateUsed: 3, enforcer.LateDenied: 1}, 0,
		},
		"no answer at all": {
			policy.OnStoreFailureFailOpen, 10, true, map[enforcer.Late]uint64{enforcer.LateLost: 4}, 6,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", limited(tc.mode, tc.limit)))
				h.store.set(func(s *store) { s.delay, s.silent = 50*time.Millisecond, tc.fails })
				h.sendAll(4, as("alice"))
				advance(5 * time.Second)
				synctest.Wait()
				f := h.Figures()
				for _, late := range enforcer.Lates() {
					if got := f.Late[late]; got != tc.want[late] {
						t.Errorf("%d late replies %v, want %d", got, late, tc.want[late])
					}
				}
				answers := make([]enforcer.Answer, 1)
				entry := enforcer.Entry{Counters: []enforcer.Counter{h.counter("alice", tc.limit)}, Enforced: 1}
				if _, err := h.store.counters.Take(t.Context(), []enforcer.Entry{entry}, answers); err != nil {
					t.Fatal(err)
				}
				if got := answers[0].Results[0].Remaining; got != tc.left {
					t.Errorf("%d left in the store, want %d", got, tc.left)
				}
			})
		})
	}
}

// Of what a batch was granted, callers who still wait come first, and those who hung up give theirs up.
func TestGrantsGoToThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(5, "1h"))))
		h.store.set(func(s *store) { s.delay = 4 * time.Millisecond })
		h.Decide(t.Context(), as("bob")) // so that the others of this test go in one batch, behind another of bob's
		var group sync.WaitGroup
		var admitted atomic.Int64
		group.Go(func() { h.Decide(t.Context(), as("bob")) })
		synctest.Wait()
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			if i < 5 {
				ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond) // while the batch is under way
			}
			defer cancel()
			group.Go(func() {
				if h.Decide(ctx, as("alice")).Allowed {
					admitted.Add(1)
				}
			})
		}
		group.Wait()
		if got := admitted.Load(); got != 5 {
			t.Errorf("admitted %d of the five who waited, want all: five who came before them had hung up", got)
		}
	})
}

// A caller who leaves before its batch is sent asks for nothing.
func TestNotSentIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *enforcer.Options) { o.StoreTimeout = time.Second })
		h.apply(policyOf("p", byKey("r", fixed(5, "1h"))))
		h.store.set(func(s *store) { s.delay = 100 * time.Millisecond })
		var group sync.WaitGroup
		group.Go(func() { h.Decide(t.Context(), as("bob")) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		h.Decide(ctx, as("alice"))
		group.Wait()
		synctest.Wait()
		h.store.set(func(s *store) {
			if s.takes != 1 || len(s.refunds) != 0 {
				t.Errorf("%d round trips and %d refunds, want one and none", s.takes, len(s.refunds))
			}
		})
	})
}

// A queue that is full answers at once, by the rule's choice, and says so.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(5, "1h"))))
		h.store.set(func(s *store) { s.delay = 9 * time.Millisecond })
		var group sync.WaitGroup
		var full atomic.Int64
		for i := range 10_000 { // four batches are under way and 32 wait, of 256 each
			group.Go(func() {
				if d := h.Decide(t.Context(), as(fmt.Sprint(i))); strings.Contains(d.Cause, "too many requests wait") {
					if d.Source != "LocalShare" {
						t.Errorf("decided by %s", d.Source)
					}
					full.Add(1)
				}
			})
		}
		group.Wait()
		advance(time.Second) // batches end behind the callers that they lost
		if got := h.Figures().Failures[enforcer.ReasonFull]; got == 0 || int64(got) != full.Load() {
			t.Errorf("%d callers found the queue full, %d decisions say so", got, full.Load())
		}
		if h.Figures().BreakerOpen {
			t.Error("a full queue opened the breaker")
		}
	})
}

// One slot of a cluster that fails is the failure of its entries only.
func TestOneEntryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *enforcer.Options) { o.Store = halfStore{newStore()} })
		h.apply(policyOf("p", byKey("r", fixed(5, "1h"))))
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			d := h.Decide(t.Context(), as(key))
			if !d.Allowed || d.Source != "Store" && d.Source != "LocalShare" {
				t.Errorf("%s: %+v", key, d)
			}
		}
		f := h.Figures()
		counts := f.Rules[0].Decisions
		if counts[enforcer.StoreAdmitted] == 0 || counts[enforcer.ShareAdmitted] == 0 ||
			f.Failures[enforcer.ReasonMoved] != counts[enforcer.ShareAdmitted] {
			t.Errorf("decisions %v, failures %v", counts, f.Failures)
		}
	})
}

// halfStore fails the entries of half of the identities.
type halfStore struct{ *store }

func (s halfStore) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	now, err := s.store.Take(ctx, entries, answers)
	for i := range entries {
		if entries[i].Counters[0].Identity[0]%2 == 0 {
			answers[i] = enforcer.Answer{Err: &enforcer.StoreError{Reason: enforcer.ReasonMoved, Err: errors.New("CLUSTERDOWN")}}
		}
	}
	return now, err
}

// A store that does not answer some requests does not make room for more: until it is told of those that the share
// admitted, both must admit.
func TestABlipMakesNoRoom(t *testing.T) {
	for name, failure := range map[string]error{
		"out of memory": &enforcer.StoreError{Reason: enforcer.ReasonMemory, Err: errors.New("OOM")},
		"an error":      errors.New("something else"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", byKey("r", fixed(10, "1h"))))
				admitted := 0
				for i := range 40 {
					var err error
					if i%8 == 3 || i%8 == 4 {
						err = failure
					}
					h.store.set(func(s *store) { s.err = err })
					if h.Decide(t.Context(), as("alice")).Allowed {
						admitted++
					}
				}
				if admitted != 10 || h.Figures().BreakerTrips != 0 {
					t.Errorf("admitted %d of a limit of 10 with %d trips of the breaker", admitted, h.Figures().BreakerTrips)
				}
				if got := h.Decide(t.Context(), as("bob")); got.Source != enforcer.SourceStore {
					t.Errorf("another key is decided by %s", got.Source)
				}
			})
		})
	}
}
