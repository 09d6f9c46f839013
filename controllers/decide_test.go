package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

const ours = "installation-1"

var checkout = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// limit is a policy of one rule for checkout.
func limit(name string, requests int64) v1alpha1.RateLimitPolicy {
	return v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(testTime), ResourceVersion: "100",
		},
		Spec: v1alpha1.RateLimitPolicySpec{
			TargetRef: v1alpha1.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules:     []v1alpha1.Rule{{Name: "all", Limits: []v1alpha1.Limit{{Requests: &requests, Window: "1m"}}}},
		},
	}
}

// held is the row that these policies have in the table.
func held(policies ...v1alpha1.RateLimitPolicy) *policy.Row {
	row, _ := compile(&input{workload: checkout, policies: policies, list: "99"}, ours)
	row.Revision = policy.Revision{Epoch: "50", N: 3}
	return &row
}

// inTable is a table of ours with this row.
func inTable(row *policy.Row, members ...policy.Report) tableView {
	view := tableView{state: tableOurs, row: row, published: policy.Published{Members: members}}
	if row != nil {
		view.published.Row = []byte("{}")
	}
	return view
}

func TestDecideOnTheRow(t *testing.T) {
	login, export := limit("login", 5), limit("export", 10)
	broken := limit("login", 5)
	broken.Spec.Rules[0].Limits[0].Window = "0s"
	foreign := held(login)
	foreign.Owner = "installation-2"
	runs := func(epoch string, n int64) policy.Report {
		return policy.Report{Member: "a/1", Pod: "a", Revision: policy.Revision{Epoch: epoch, N: n}}
	}
	type want struct{ WriteRow, Removes, Forget bool }
	cases := map[string]struct {
		policies []v1alpha1.RateLimitPolicy
		table    tableView
		had      bool
		want     want
	}{
		"no row yet":                 {policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(nil), want: want{WriteRow: true}},
		"the row is as it should be": {policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(held(login)), want: want{}},
		"another number":             {policies: []v1alpha1.RateLimitPolicy{limit("login", 6)}, table: inTable(held(login)), want: want{WriteRow: true}},
		"one policy more":            {policies: []v1alpha1.RateLimitPolicy{export, login}, table: inTable(held(login)), want: want{WriteRow: true}},
		"one policy less needs a second look": {
			policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(held(export, login)), want: want{WriteRow: true, Removes: true},
		},
		"the last policy is gone": {table: inTable(held(login)), want: want{WriteRow: true, Removes: true}},
		"a policy that became invalid": {
			policies: []v1alpha1.RateLimitPolicy{broken}, table: inTable(held(login)), want: want{WriteRow: true, Removes: true},
		},
		"a tombstone stays":   {table: inTable(held()), want: want{}},
		"a tombstone expired": {table: inTable(nil), want: want{Forget: true}},
		"the table lost a row whose policies are gone": {
			table: inTable(nil), had: true, want: want{WriteRow: true, Removes: true},
		},
		"an enforcer asks for a row that nobody wants any more": {
			table: inTable(nil, runs("50", 3)), want: want{WriteRow: true, Removes: true},
		},
		"a row that cannot be read, without policies": {
			table: tableView{state: tableOurs, published: policy.Published{Row: []byte("?")}}, want: want{WriteRow: true, Removes: true},
		},
		"nothing is forgotten while the table is away":           {table: tableView{}, want: want{WriteRow: true, Removes: true}},
		"a row of another installation without policies of ours": {table: inTable(foreign), want: want{}},
		"a row of another installation for a policy of ours": {
			policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(foreign), want: want{WriteRow: true},
		},
		"an enforcer runs a later revision: the table was rolled back": {
			policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(held(login), runs("50", 4)), want: want{WriteRow: true},
		},
		"an enforcer runs an earlier revision": {
			policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(held(login), runs("50", 2)), want: want{},
		},
		"an enforcer reports nonsense": {
			policies: []v1alpha1.RateLimitPolicy{login}, table: inTable(held(login), runs("9999999999999999999999999", 1)), want: want{},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := decide(&input{
				now: testTime, workload: checkout, policies: c.policies, list: "100",
				table: c.table, memory: &memory{hadPolicies: c.had},
			}, ours)
			if diff := cmp.Diff(c.want, want{d.writeRow, d.removes, d.forget}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (d.replicas != nil) != (len(c.policies) > 0) {
				t.Errorf("replicas %+v with %d policies", d.replicas, len(c.policies))
			}
		})
	}
}

func TestPoliciesAddUpAndRefuseEachOtherNothing(t *testing.T) {
	older, newer := limit("b-older", 100), limit("a-newer", 10)
	newer.CreationTimestamp = metav1.NewTime(testTime.Add(time.Minute))
	broken := limit("broken", 1)
	broken.Spec.Rules[0].Limits[0].Window = "1e3s"

	row, refusals := compile(&input{workload: checkout, policies: []v1alpha1.RateLimitPolicy{newer, older, broken}, list: "7"}, ours)
	var names []string
	for _, rule := range row.Rules {
		names = append(names, rule.Policy)
	}
	if diff := cmp.Diff([]string{"b-older", "a-newer"}, names); diff != "" {
		t.Errorf("rules of policies, oldest first (-want +got):\n%s", diff)
	}
	if len(refusals) != 1 || refusals["broken"].reason != v1alpha1.ReasonInvalid {
		t.Errorf("refusals %+v, want the broken one alone", refusals)
	}
	if row.PolicyList != "7" || row.Owner != ours {
		t.Errorf("row of list %q and owner %q", row.PolicyList, row.Owner)
	}
}

func TestDecideWritesNoReplicasThatAreThere(t *testing.T) {
	in := &input{
		now: testTime, workload: checkout, policies: []v1alpha1.RateLimitPolicy{limit("login", 5)}, memory: &memory{},
		deployment: policy.DeploymentStatus{UID: "d", Observed: true, Desired: new(int32(3)), Replicas: 3, Ready: 3},
		table:      inTable(nil),
	}
	first := decide(in, ours)
	if !first.writeReplicas || first.replicas.N != 3 {
		t.Fatalf("first count %+v", first.replicas)
	}
	in.table.published.Replicas = first.replicas
	in.now = in.now.Add(time.Hour)
	if again := decide(in, ours); again.writeReplicas {
		t.Errorf("the same count would be written again: %+v", again.replicas)
	}
	in.table.published.Replicas, in.memory.replicas = nil, first.replicas
	in.deployment.Ready = 1
	if lost := decide(in, ours); !lost.writeReplicas || lost.replicas.N != 3 {
		t.Errorf("a lost count starts anew, with %d replicas: its history was remembered", lost.replicas.N)
	}
}

func TestNextRevision(t *testing.T) {
	r := func(epoch string, n int64) policy.Revision { return policy.Revision{Epoch: epoch, N: n} }
	cases := map[string]struct {
		tried   policy.Revision
		seen    []policy.Revision
		want    policy.Revision
		highest string
		ok      bool
	}{
		"the first":               {want: r("50", 1), highest: "50", ok: true},
		"after ours":              {tried: r("50", 4), want: r("50", 5), highest: "50", ok: true},
		"after an older leader's": {seen: []policy.Revision{r("49", 9)}, want: r("50", 1), highest: "50", ok: true},
		"after what the table and an enforcer have": {tried: r("50", 1), seen: []policy.Revision{r("50", 4), r("50", 6)}, want: r("50", 7), highest: "50", ok: true},
		"a shorter epoch is lower":                  {seen: []policy.Revision{r("9", 1)}, want: r("50", 1), highest: "50", ok: true},
		"somebody used a higher epoch":              {seen: []policy.Revision{r("50", 4), r("51", 2)}, want: r("50", 5), highest: "51"},
		"an epoch that wrote nothing but replicas":  {seen: []policy.Revision{{Epoch: "120"}}, want: r("50", 1), highest: "120"},
		"nobody wrote":                              {seen: []policy.Revision{{}}, want: r("50", 1), highest: "50", ok: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			next, highest, ok := nextRevision("50", c.tried, c.seen)
			if next != c.want || highest != c.highest || ok != c.ok {
				t.Errorf("got %v, %s, %v; want %v, %s, %v", next, highest, ok, c.want, c.highest, c.ok)
			}
		})
	}
	if got := above("18446744073709551615"); got != "18446744073709551616" {
		t.Errorf("above the highest resourceVersion is %s", got)
	}
}
