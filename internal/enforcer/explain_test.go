package enforcer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// asked remembers what a decision asked for.
type asked struct {
	*memstore.Store
	counters []enforcer.Counter
}

func (a *asked) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	a.counters = append([]enforcer.Counter(nil), entries[0].Counters...)
	return a.Store.Take(ctx, entries, answers)
}

// What is explained must be what a decision asks the store for.
func TestExplainNamesTheCountersOfTheDecision(t *testing.T) {
	limit := func(n int64, id string) []policy.RowLimit {
		return []policy.RowLimit{{ID: id, Algorithm: policy.FixedWindow, Requests: n, Window: 60_000_000}}
	}
	rules := []policy.RowRule{
		{Name: "skip", Match: []policy.Match{{Methods: []string{"POST"}}}, Key: []policy.KeyPart{{Header: "X-Api-Key"}}, WhenKeyMissing: policy.WhenKeyMissingSkip, Limits: limit(5, "a")},
		{Name: "route", Match: []policy.Match{{Route: "/users/{id}"}}, Key: []policy.KeyPart{{Request: policy.RequestKeyRoute}}, WhenKeyMissing: policy.WhenKeyMissingClientIP, Limits: limit(50, "b")},
		{Name: "tiers", Key: []policy.KeyPart{{FirstOf: []policy.KeyPart{{Attribute: "user"}, {Header: "X-Api-Key"}}}}, WhenKeyMissing: policy.WhenKeyMissingClientIP, Limits: limit(10, "c"),
			Overrides: []policy.RowOverride{{When: policy.AttributeMatch{Attribute: "user", Values: []string{"vip"}}, Limits: limit(99, "c")}},
			Cost:      &policy.Cost{Attribute: "rows", Max: 4}},
	}
	for i := range rules {
		rules[i].Policy, rules[i].Mode, rules[i].OnStoreFailure = "p", policy.ModeEnforce, policy.OnStoreFailureFailOpen
	}
	for _, evaluation := range []policy.Evaluation{policy.EvaluationAll, policy.EvaluationFirstMatch} {
		row := policy.Row{
			Version: 1, Workload: "shop/apps/Deployment/checkout", Owner: "test", Revision: policy.Revision{Epoch: "1", N: 1},
			Policies: []policy.RowPolicy{{Name: "p", Evaluation: evaluation}}, Rules: rules,
		}
		encoded, err := policy.EncodeRow(row)
		if err != nil {
			t.Fatal(err)
		}
		store := &asked{Store: memstore.New(memstore.Options{})}
		e := enforcer.New(enforcer.Options{Store: store, InProcess: true, Local: memstore.New(memstore.Options{}), Table: enforcer.FixedRow(encoded)})
		if err := e.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 2))
		pick := func(values ...string) string { return values[random.IntN(len(values))] }
		for range 500 {
			r := enforcer.Request{
				Method: pick("GET", "POST"), Path: pick("/users/42", "/items", "/items/..%2fusers%2F42", "/users/a%2Fb"), Remote: pick("203.0.113.7:1", ""),
				Header: http.Header{}, Attributes: map[string]string{"user": pick("", "vip", "joe"), "rows": pick("", "3", "9")},
			}
			if key := pick("", "acme"); key != "" {
				r.Header.Set("X-Api-Key", key)
			}
			store.counters = nil
			e.Decide(t.Context(), r)
			explained, _ := e.Explain(r)
			var counters []enforcer.Counter
			for _, x := range explained {
				for _, l := range x.Limits {
					counters = append(counters, l.Counter)
				}
			}
			if diff := cmp.Diff(store.counters, counters); diff != "" {
				t.Fatalf("%s, %s (-asked +explained):\n%s", evaluation, fmt.Sprintf("%+v", r), diff)
			}
		}
	}
}
