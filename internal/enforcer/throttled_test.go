package enforcer_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// lastDenied polls, and returns the report of it, nil if there is none.
func (h *harness) lastDenied() []policy.DeniedRule {
	h.t.Helper()
	h.table.set(func(t *table) { t.denied = nil })
	if err := h.Poll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	var last []policy.DeniedRule
	h.table.set(func(t *table) {
		if n := len(t.denied); n > 0 {
			last = t.denied[n-1].Rules
		}
	})
	return last
}

func (h *harness) identity(key string) string {
	id := enforcer.IdentityOf(h.Enforcer, as(key))
	return hex.EncodeToString(id[:])
}

// However a rule comes to deny, it is known whom.
func TestWhoIsDeniedIsReported(t *testing.T) {
	closed := byKey("r", fixed(2, "1h"))
	closed.OnStoreFailure = policy.OnStoreFailureFailClosed
	shadow := byKey("r", fixed(2, "1h"))
	shadow.Mode = policy.ModeShadow
	needy := byKey("r", fixed(2, "1h"))
	needy.WhenKeyMissing = policy.WhenKeyMissingDeny
	type denied map[string]int64
	for name, tc := range map[string]struct {
		rule policy.Rule
		send map[string]int // requests by key
		fail error
		want denied
	}{
		"by the store, and by what is remembered of it": {byKey("r", fixed(2, "1h")), map[string]int{"alice": 12, "bob": 5, "carol": 2}, nil, denied{"alice": 10, "bob": 3}},
		"by the local share":                            {byKey("r", fixed(2, "1h")), map[string]int{"alice": 12}, errRefused, denied{"alice": 10}},
		"by the prefilter":                              {prefiltered(1, byKey("r", fixed(2, "1h"))), map[string]int{"alice": 12}, nil, denied{"alice": 10}},
		"by a limit of nothing":                         {byKey("r", fixed(0, "1h")), map[string]int{"alice": 3}, nil, denied{"alice": 3}},
		"nobody, who failed closed":                     {closed, map[string]int{"alice": 12}, errRefused, denied{}},
		"nobody, who met a shadow rule":                 {shadow, map[string]int{"alice": 12}, nil, denied{}},
		"nobody, who has no key":                        {needy, map[string]int{"": 3}, nil, denied{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(policyOf("p", tc.rule))
				h.store.set(func(s *store) { s.err = tc.fail })
				for key, n := range tc.send {
					h.send(n, as(key))
					h.Peek(t.Context(), as(key)) // who only asks is not counted
				}
				got := denied{}
				for _, r := range h.lastDenied() {
					if r.Policy != "p" || r.Rule != "r" {
						t.Errorf("denied by %s/%s", r.Policy, r.Rule)
					}
					for _, id := range r.Identities {
						for key := range tc.send {
							if id.ID == h.identity(key) {
								got[key] = id.Denied
							}
						}
						if id.Over != 0 || id.Name != "" {
							t.Errorf("%+v", id)
						}
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What is reported is of the last one to two minutes, and then it is over.
func TestReportsOfTheDeniedAreOfLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(0, "1h"))))
		total := func() int64 {
			var n int64
			for _, r := range h.lastDenied() {
				n += r.Total
			}
			return n
		}
		for _, step := range []struct {
			send int
			then time.Duration
			want int64
		}{
			{10, 0, 10}, {0, 59 * time.Second, 10}, {3, time.Second, 13}, {1, 59 * time.Second, 14}, {0, time.Second, 1}, {0, time.Minute, 0},
		} {
			h.send(step.send, as("alice"))
			advance(step.then)
			if got := total(); got != step.want {
				t.Errorf("%d denied after %v more, want %d", got, step.then, step.want)
			}
		}
	})
}

// Counts of a flood of many identities are within the bound of their sketch, and the report within its own.
func TestAFloodOfIdentitiesFitsInAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var rules []policy.Rule
		for i := range 5 {
			r := byKey(fmt.Sprintf("r%d", i), fixed(0, "1h"))
			r.Match = []policy.Match{{Methods: []string{fmt.Sprintf("M%d", i)}}}
			rules = append(rules, r)
		}
		h.apply(policyOf("p", rules...))
		const many, hot = 2000, 100
		for i := range rules {
			for k := range many {
				r := as(fmt.Sprint("key", k))
				r.Method = fmt.Sprintf("M%d", i)
				h.send(1, r)
				if k%20 == 0 {
					h.send(1, func() enforcer.Request { r.Header = as("hot").Header; return r }())
				}
			}
		}
		told := h.lastDenied()
		if len(told) != len(rules) {
			t.Fatalf("%d rules told", len(told))
		}
		identities := 0
		for _, r := range told {
			identities += len(r.Identities)
			first := r.Identities[0]
			bound := r.Total / 128
			if first.ID != h.identity("hot") || first.Denied < hot || first.Denied-first.Over > hot || first.Over > bound || r.Total != many+hot {
				t.Errorf("%s: first %+v of %d, want %d with an error of at most %d", r.Rule, first, r.Total, hot, bound)
			}
		}
		if identities > policy.MaxDeniedIdentities {
			t.Errorf("%d identities", identities)
		}
		if _, err := policy.EncodeDenied(policy.DeniedReport{Pod: "a", Rules: told}); err != nil {
			t.Error(err)
		}
	})
}

func TestApplicationsNameIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *enforcer.Options) {
			o.IdentityName = func(r *enforcer.Request) string { return "tenant of " + r.Header.Get("X-Api-Key") }
		})
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		long := strings.Repeat("é", 100)
		h.send(4, as("alice"))
		h.send(3, as(long))
		told := h.lastDenied()
		if len(told) != 1 || len(told[0].Identities) != 2 {
			t.Fatalf("%+v", told)
		}
		if got := told[0].Identities[0].Name; got != "tenant of alice" {
			t.Errorf("named %q", got)
		}
		if got := told[0].Identities[1].Name; got != "tenant of "+long[:54] {
			t.Errorf("named %q", got)
		}
	})
}

func TestCountingWhoIsDeniedAllocatesNothing(t *testing.T) {
	h := newHarness(t)
	h.apply(policyOf("p", byKey("r", fixed(0, "1h"))))
	requests := make([]enforcer.Request, 1000) // more than the sketch has room for
	for i := range requests {
		requests[i] = as(fmt.Sprint("key", i))
		h.send(1, requests[i])
	}
	ctx, i := t.Context(), 0
	allocs := testing.AllocsPerRun(5000, func() {
		i = (i + 1) % len(requests)
		h.Decide(ctx, requests[i])
	})
	if allocs > forgets {
		t.Errorf("%g allocations for a denial, want %d", allocs, forgets)
	}
}

// A table that refuses the list is no reason to doubt it: an older access list lacks the key.
func TestATableThatRefusesTheList(t *testing.T) {
	h := newHarness(t, func(o *enforcer.Options) { o.Table = refusing{o.Table.(*table)} })
	h.apply(policyOf("p", byKey("r", fixed(0, "1h"))))
	h.send(3, as("alice"))
	if err := h.Poll(t.Context()); err != nil {
		t.Error(err)
	}
	if f := h.Figures(); f.FailedPolls != 0 {
		t.Errorf("%d polls failed", f.FailedPolls)
	}
}

type refusing struct{ *table }

func (t refusing) ReportDenied(ctx context.Context, member string, r policy.DeniedReport, poll time.Duration) error {
	_ = t.table.ReportDenied(ctx, member, r, poll)
	return errRefused
}

// Whoever is named while the store is late keeps nobody else waiting.
func TestNamesAreAskedForOutsideOfTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 20 * time.Millisecond
		h := newHarness(t, func(o *enforcer.Options) {
			o.IdentityName = func(*enforcer.Request) string {
				advance(takes)
				return "somebody"
			}
		})
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.store.set(func(s *store) { s.silent = true })
		var group sync.WaitGroup
		var denied atomic.Int64
		for range 100 {
			group.Go(func() {
				start := time.Now()
				if !h.Decide(t.Context(), as("alice")).Allowed {
					denied.Add(1)
				}
				if took := time.Since(start); took > enforcer.DefaultStoreTimeout+takes {
					t.Errorf("a decision took %v", took)
				}
			})
		}
		group.Wait()
		advance(5 * time.Second) // the batch behind them gives up
		if denied.Load() != 99 {
			t.Errorf("%d denied, want 99", denied.Load())
		}
	})
}
