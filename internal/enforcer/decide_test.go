package enforcer_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// outcome is what a case expects of one decision.
type outcome struct {
	allowed bool
	status  int
	rule    string
	source  string
}

func outcomeOf(d enforcer.Decision) outcome {
	o := outcome{allowed: d.Allowed, status: d.Status, source: d.Source}
	if d.Rule != "" {
		o.rule = d.Policy + "/" + d.Rule
	}
	return o
}

func TestDecide(t *testing.T) {
	never, denyKey, skipKey, anonymousKey := byKey("never", fixed(0, "1m")), byKey("keyed", fixed(1, "1m")), byKey("skipped", fixed(1, "1m")), byKey("keyed", fixed(1, "1m"))
	denyKey.WhenKeyMissing = policy.WhenKeyMissingDeny
	skipKey.WhenKeyMissing = policy.WhenKeyMissingSkip
	anonymousKey.WhenKeyMissing = policy.WhenKeyMissingAnonymous
	shadow := byKey("shadow", fixed(1, "1m"))
	shadow.Mode = policy.ModeShadow
	costly := byKey("costly", bucket(10, "1m"))
	costly.Cost = &policy.Cost{Attribute: "rows", Max: 1000}
	tiers := byKey("tiers", fixed(1, "1m"))
	tiers.Overrides = []policy.Override{
		{When: policy.AttributeMatch{Attribute: "plan", Values: []string{"scale", "huge"}}, Limits: []policy.Limit{fixed(3, "1m")}},
		{When: policy.AttributeMatch{Attribute: "plan", Values: []string{"internal"}}, Unlimited: true},
	}
	first := policyOf("p", skipKey, byKey("second", fixed(1, "1m")))
	first.Spec.Evaluation = policy.EvaluationFirstMatch
	for i := range first.Spec.Rules { // only the last may be without
		first.Spec.Rules[i].Match = []policy.Match{{PathPrefix: "/"}}
	}
	last := policy.Rule{Name: "last", Limits: []policy.Limit{fixed(100, "1m")}}
	first.Spec.Rules = append(first.Spec.Rules, last)
	probes := policyOf("p", byKey("r", fixed(1, "1m")))
	probes.Spec.Exempt = []policy.Exemption{{PathPrefix: "/healthz"}}
	onlyRoute := byKey("routed", fixed(1, "1m"))
	onlyRoute.Match = []policy.Match{{Route: "/other"}}

	with := func(attribute, value string) enforcer.Request {
		r := as("alice")
		r.Attributes = map[string]string{attribute: value}
		return r
	}
	unkeyed := func(remote string) enforcer.Request {
		return enforcer.Request{Method: "POST", Path: "/exports", Remote: remote}
	}
	probe := enforcer.Request{Method: "GET", Path: "/healthz"}
	ok := func(rule string) outcome { return outcome{true, 200, rule, "Store"} }
	over := func(rule string) outcome { return outcome{false, 429, rule, "Store"} }

	tests := map[string]struct {
		policies []policy.Policy
		requests []enforcer.Request
		want     []outcome
	}{
		"a limit of two": {
			[]policy.Policy{policyOf("p", byKey("r", fixed(2, "1m")))},
			[]enforcer.Request{as("alice"), as("alice"), as("alice"), as("bob")},
			[]outcome{ok("p/r"), ok("p/r"), over("p/r"), ok("p/r")},
		},
		"no rule applies": {
			[]policy.Policy{policyOf("p", onlyRoute)}, []enforcer.Request{as("alice")}, []outcome{{true, 200, "", "NoRule"}},
		},
		"no policies at all, as a tombstone says": {nil, []enforcer.Request{as("alice")}, []outcome{{true, 200, "", "NoRule"}}},
		"an exempt request": {
			[]policy.Policy{probes}, []enforcer.Request{probe, probe}, []outcome{{true, 200, "", "Exempt"}, {true, 200, "", "Exempt"}},
		},
		"an exemption is its policy's only": {
			[]policy.Policy{probes, policyOf("q", policy.Rule{Name: "all", Limits: []policy.Limit{fixed(1, "1m")}})},
			[]enforcer.Request{probe, probe}, []outcome{ok("q/all"), over("q/all")},
		},
		"policies add up, and the strictest wins": {
			[]policy.Policy{policyOf("p", byKey("r", fixed(5, "1m"))), policyOf("q", byKey("r", fixed(1, "1m")))},
			[]enforcer.Request{as("alice"), as("alice")}, []outcome{ok("q/r"), over("q/r")},
		},
		"several limits of a rule all apply": {
			[]policy.Policy{policyOf("p", byKey("r", fixed(5, "1m"), fixed(1, "1h")))},
			[]enforcer.Request{as("alice"), as("alice")}, []outcome{ok("p/r"), over("p/r")},
		},
		"under FirstMatch a skipped rule lets the next decide": {
			[]policy.Policy{first}, []enforcer.Request{unkeyed("1.2.3.4:1"), unkeyed("1.2.3.4:1"), as("alice"), as("alice")},
			[]outcome{ok("p/second"), over("p/second"), ok("p/skipped"), over("p/skipped")},
		},
		"a limit of none denies without asking": {
			[]policy.Policy{policyOf("p", never)}, []enforcer.Request{as("alice")}, []outcome{{false, 429, "p/never", "DenyCache"}},
		},
		"a cost above the capacity is never admitted, and charges nothing": {
			[]policy.Policy{policyOf("p", costly)},
			[]enforcer.Request{with("rows", "11"), with("rows", "10"), with("rows", "1")},
			[]outcome{{false, 429, "p/costly", "DenyCache"}, ok("p/costly"), over("p/costly")},
		},
		"a cost that is no number is 1": {
			[]policy.Policy{policyOf("p", costly)},
			[]enforcer.Request{with("rows", "-5"), with("rows", "0"), with("rows", "many"), with("rows", "8"), as("alice")},
			[]outcome{ok("p/costly"), ok("p/costly"), ok("p/costly"), over("p/costly"), ok("p/costly")},
		},
		"an override has other numbers on the same counter": {
			[]policy.Policy{policyOf("p", tiers)},
			[]enforcer.Request{as("alice"), as("alice"), with("plan", "huge"), with("plan", "scale"), with("plan", "scale")},
			[]outcome{ok("p/tiers"), over("p/tiers"), ok("p/tiers"), ok("p/tiers"), over("p/tiers")},
		},
		"an unlimited caller is not counted": {
			[]policy.Policy{policyOf("p", tiers)}, []enforcer.Request{with("plan", "internal"), with("plan", "internal"), as("alice")},
			[]outcome{{true, 200, "p/tiers", "Exempt"}, {true, 200, "p/tiers", "Exempt"}, ok("p/tiers")},
		},
		"a missing key can be refused": {
			[]policy.Policy{policyOf("p", denyKey)}, []enforcer.Request{unkeyed("1.2.3.4:1")}, []outcome{{false, 400, "p/keyed", "KeyMissing"}},
		},
		"a missing key counts by client": {
			[]policy.Policy{policyOf("p", byKey("r", fixed(1, "1m")))},
			[]enforcer.Request{unkeyed("1.2.3.4:1"), unkeyed("1.2.3.4:2"), unkeyed("1.2.3.5:1")},
			[]outcome{ok("p/r"), over("p/r"), ok("p/r")},
		},
		"a missing key can be anonymous": {
			[]policy.Policy{policyOf("p", anonymousKey)}, []enforcer.Request{unkeyed("1.2.3.4:1"), unkeyed("1.2.3.5:1")},
			[]outcome{ok("p/keyed"), over("p/keyed")},
		},
		"a rule without a key is one budget for all": {
			[]policy.Policy{policyOf("p", policy.Rule{Name: "all", Limits: []policy.Limit{fixed(1, "1m")}})},
			[]enforcer.Request{as("alice"), as("bob")}, []outcome{ok("p/all"), over("p/all")},
		},
		"a shadow rule never denies": {
			[]policy.Policy{policyOf("p", shadow)}, []enforcer.Request{as("alice"), as("alice")},
			[]outcome{{true, 200, "", "NoRule"}, {true, 200, "", "NoRule"}},
		},
		"a shadow rule beside an enforced one": {
			[]policy.Policy{policyOf("p", shadow, byKey("r", fixed(2, "1m")))}, []enforcer.Request{as("alice"), as("alice"), as("alice")},
			[]outcome{ok("p/r"), ok("p/r"), over("p/r")},
		},
	}
	for _, inProcess := range []bool{false, true} {
		for name, tc := range tests {
			t.Run(fmt.Sprintf("%s, in process %t", name, inProcess), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t, func(o *enforcer.Options) { o.InProcess = inProcess })
					h.apply(tc.policies...)
					for i, r := range tc.requests {
						if diff := cmp.Diff(tc.want[i], outcomeOf(h.Decide(t.Context(), r)), cmp.AllowUnexported(outcome{})); diff != "" {
							t.Errorf("request %d (-want +got):\n%s", i, diff)
						}
					}
				})
			})
		}
	}
}

func TestDecisionNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		advance(20 * time.Second) // the bubble starts at a whole minute
		h := newHarness(t)
		h.apply(policyOf("checkout", byKey("exports", fixed(2, "1m"), fixed(50, "24h"))))
		want := enforcer.Decision{
			Allowed: true, Status: http.StatusOK, Policy: "checkout", Rule: "exports", Source: "Store",
			Limit: 2, Window: time.Minute, Remaining: 1, ResetAfter: 40 * time.Second, MoreAfter: 40 * time.Second,
		}
		if diff := cmp.Diff(want, h.Decide(t.Context(), as("alice"))); diff != "" {
			t.Errorf("admitted (-want +got):\n%s", diff)
		}
		h.Decide(t.Context(), as("alice"))
		want.Allowed, want.Status, want.Remaining, want.RetryAfter, want.MoreAfter = false, http.StatusTooManyRequests, 0, 40*time.Second, 0
		if diff := cmp.Diff(want, h.Decide(t.Context(), as("alice"))); diff != "" {
			t.Errorf("denied (-want +got):\n%s", diff)
		}
	})
}

// Of several limits that deny, the one that denies for longest is shown; of those that admit, the one with least room.
func TestBindingLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(3, "1m"), fixed(3, "1h"), fixed(9, "24h"))))
		if d := h.Decide(t.Context(), as("alice")); d.Window != time.Hour || d.Remaining != 2 {
			t.Errorf("admitted by %v with %d left, want the hour: as little left, and longer until it is full again", d.Window, d.Remaining)
		}
		h.send(2, as("alice"))
		if d := h.Decide(t.Context(), as("alice")); d.Allowed || d.Window != time.Hour || d.RetryAfter <= time.Minute {
			t.Errorf("denied by %v for %v, want the hour", d.Window, d.RetryAfter)
		}
	})
}

func TestPeekChargesAndCountsNothing(t *testing.T) {
	for _, inProcess := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, func(o *enforcer.Options) { o.InProcess = inProcess })
			h.apply(policyOf("p", byKey("r", fixed(2, "1m"))))
			for range 5 {
				if d := h.Peek(t.Context(), as("alice")); !d.Allowed || d.Remaining != 2 || d.RetryAfter != 0 {
					t.Fatalf("peek: %+v, want 2 left", d)
				}
			}
			h.send(2, as("alice"))
			if d := h.Peek(t.Context(), as("alice")); d.Allowed || d.Remaining != 0 || d.RetryAfter == 0 || d.Status != 429 {
				t.Errorf("peek of a spent limit: %+v, want a denial with a wait", d)
			}
			if got := h.Figures().Rules[0].Decisions; got[enforcer.StoreAdmitted] != 2 || got[enforcer.StoreDenied] != 0 {
				t.Errorf("counted %v, want the two decisions only", got)
			}
		})
	}
}

// A rule in shadow mode counts what it would have done, on its own counters, and only what was admitted.
func TestShadowIsCounted(t *testing.T) {
	for _, inProcess := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, func(o *enforcer.Options) { o.InProcess = inProcess })
			shadow := byKey("shadow", fixed(2, "1m"))
			shadow.Mode = policy.ModeShadow
			h.apply(policyOf("p", shadow, byKey("r", fixed(5, "1m"))))
			if admitted := h.sendAll(20, as("alice")); admitted != 5 {
				t.Fatalf("admitted %d, want 5", admitted)
			}
			got := h.Figures().Rules[0].Decisions
			if got[enforcer.ShadowAdmitted] != 2 || got[enforcer.ShadowDenied] != 3 {
				t.Errorf("shadow admitted %d and denied %d, want 2 and 3 of the 5 that were admitted",
					got[enforcer.ShadowAdmitted], got[enforcer.ShadowDenied])
			}
		})
	}
}

func TestMissingKeysAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(5, "1m"))))
		h.send(1, as("alice"))
		h.send(3, enforcer.Request{Remote: "1.2.3.4:1"})
		if got := h.Figures().Rules[0].KeyMissing; got != 3 {
			t.Errorf("%d requests without a key, want 3", got)
		}
	})
}

// Two rules with different costs apply to one request; each charges its own.
func TestCostsOfSeveralRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		costly := byKey("costly", fixed(100, "1m"))
		costly.Cost = &policy.Cost{Attribute: "rows", Max: 1000}
		h.apply(policyOf("p", costly, byKey("plain", fixed(100, "1m"))))
		r := as("alice")
		r.Attributes = map[string]string{"rows": "30"}
		if admitted, last := h.send(5, r); admitted != 3 || last.Rule != "costly" || last.Remaining != 10 {
			t.Errorf("admitted %d, last by %s with %d left, want 3 and 10 left of the costly rule", admitted, last.Rule, last.Remaining)
		}
		if d := h.Peek(t.Context(), as("alice")); d.Remaining != 10 {
			t.Errorf("%d left, want 10", d.Remaining)
		}
	})
}

// Every spelling of a path shares one budget where the middleware knows no template (B45).
func TestSpellingsShareOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		rule := byKey("validate", fixed(5, "1m"))
		rule.Match = []policy.Match{{Route: "/users/{id}/validate"}}
		h.apply(policyOf("p", rule))
		admitted := 0
		for _, path := range []string{
			"/users/42/validate", "//users/42/validate", "/users//42/validate", "/users/42/validate/",
			"/users/./42/validate", "/users/%34%32/validate",
		} {
			r := as("alice")
			r.Path = path
			n, _ := h.send(5, r)
			admitted += n
		}
		if admitted != 5 {
			t.Errorf("admitted %d over all spellings, want 5", admitted)
		}
	})
}

func TestMatchingAndIdentityAllocateNothing(t *testing.T) {
	h := newHarness(t, func(o *enforcer.Options) { o.InProcess, o.Store = true, newStore().counters })
	rule := byKey("r", bucket(1000, "1s"))
	rule.Match = []policy.Match{{Methods: []string{"POST"}, Route: "/exports/{id}"}}
	h.apply(policyOf("p", rule))
	r := as(strings.Repeat("k", 40))
	r.Route = "POST /exports/{id}"
	h.Decide(t.Context(), r)
	ctx := t.Context()
	if allocs := testing.AllocsPerRun(1000, func() { h.Decide(ctx, r) }); allocs > forgets {
		t.Errorf("%g allocations for a whole decision in memory, want %d", allocs, forgets)
	}
}

func TestADenialAllocatesNothing(t *testing.T) {
	h := newHarness(t)
	h.apply(policyOf("p", byKey("r", fixed(1, "24h"))))
	r := as(strings.Repeat("k", 40))
	h.send(2, r)
	ctx := t.Context()
	asked := h.store.asked()
	allocs := testing.AllocsPerRun(1000, func() { h.Decide(ctx, r) })
	if h.store.asked() == asked && allocs > forgets {
		t.Errorf("%g allocations for a denial, want %d", allocs, forgets)
	}
}

func TestWhatIsDecidedAheadOfTheStoreAllocatesNothing(t *testing.T) {
	for name, rule := range map[string]policy.Rule{
		"Lease":     leased(10_000, byKey("r", fixed(1_000_000, "24h"))),
		"Prefilter": prefiltered(1, byKey("r", fixed(1, "24h"))),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.apply(policyOf("p", rule))
			r := as(strings.Repeat("k", 40))
			h.send(2, r)
			ctx := t.Context()
			asked, source := h.store.asked(), ""
			allocs := testing.AllocsPerRun(1000, func() { source = h.Decide(ctx, r).Source })
			if h.store.asked() == asked && (allocs > forgets || source != name) {
				t.Errorf("%g allocations for a decision by %s, want %d by %s", allocs, source, forgets, name)
			}
		})
	}
}

// A decision that nobody shares with others is one round trip, whatever the number of its limits.
func TestRoundTrips(t *testing.T) {
	tests := map[string]struct {
		policies []policy.Policy
		want     int
	}{
		"one limit":       {[]policy.Policy{policyOf("p", byKey("r", fixed(1000, "1h")))}, 1},
		"several limits":  {[]policy.Policy{policyOf("p", byKey("r", fixed(1000, "1h"), bucket(1000, "1m")))}, 1},
		"several rules":   {[]policy.Policy{policyOf("p", byKey("r", fixed(1000, "1h")), byKey("s", bucket(1000, "1m")))}, 1},
		"no limit at all": {[]policy.Policy{policyOf("p", byKey("r", fixed(0, "1h")))}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.apply(tc.policies...)
				for range 10 {
					h.Decide(t.Context(), as("alice"))
				}
				if got := h.store.asked(); got != 10*tc.want {
					t.Errorf("%d round trips for 10 decisions, want %d each", got, tc.want)
				}
			})
		})
	}
}

func BenchmarkDecideDenied(b *testing.B) {
	table := &table{state: enforcer.TableState{Owner: "test"}}
	rule := byKey("r", fixed(1, "24h"))
	rule.Match = []policy.Match{{Methods: []string{"POST"}, Route: "/exports/{id}"}}
	table.state.Row = rowOf(b, 1, policyOf("p", rule))
	e := enforcer.New(enforcer.Options{
		Store: newStore(), Table: table, Local: memstore.New(memstore.Options{Clock: func() int64 { return 0 }}),
	})
	if err := e.Poll(b.Context()); err != nil {
		b.Fatal(err)
	}
	r := as("alice")
	r.Route, r.Path = "POST /exports/{id}", "/exports/7"
	b.ReportAllocs()
	for b.Loop() {
		e.Decide(b.Context(), r)
	}
}

func BenchmarkDecideInMemory(b *testing.B) {
	for _, rules := range []int{1, 10} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			table := &table{state: enforcer.TableState{Owner: "test"}}
			var list []policy.Rule
			for i := range rules {
				rule := byKey(fmt.Sprintf("r%d", i), bucket(1_000_000, "1s"))
				rule.Match = []policy.Match{{Methods: []string{"POST"}, Route: "/exports/{id}"}}
				list = append(list, rule)
			}
			table.state.Row = rowOf(b, 1, policyOf("p", list...))
			e := enforcer.New(enforcer.Options{InProcess: true, Store: newStore().counters, Table: table})
			if err := e.Poll(b.Context()); err != nil {
				b.Fatal(err)
			}
			var requests []enforcer.Request
			for i := range 10_000 {
				r := as(fmt.Sprintf("key-%d", i))
				r.Route, r.Path = "POST /exports/{id}", "/exports/7"
				requests = append(requests, r)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 1) % len(requests)
				e.Decide(b.Context(), requests[i])
			}
		})
	}
}
