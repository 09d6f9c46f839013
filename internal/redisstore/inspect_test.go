package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

func TestInspectReadsAndChangesNothing(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	empty, err := Inspect(ctx, w.application, testTable, checkout)
	if err != nil || empty.Row != nil || empty.Owner != "" || len(empty.Members) != 0 {
		t.Fatalf("an empty table: %+v, %v", empty, err)
	}
	m := w.member()
	table := w.claimed(t, "blue")
	row := policy.Row{Version: 1, Workload: checkout.String(), Owner: "blue", Revision: policy.Revision{Epoch: "1", N: 1}}
	if refusal, err := table.Publish(ctx, checkout, row); err != nil || refusal != policy.Accepted {
		t.Fatal(refusal, err)
	}
	heartbeat(t, m, "pod-z")
	heartbeat(t, m, "pod-a")
	heartbeat(t, m, "pod-late")
	w.admin.ZAdd(ctx, m.keys.deadlines(checkout), redis.Z{Score: 1, Member: "pod-late/1"})
	dump := func() map[string]string {
		all := map[string]string{}
		for _, key := range w.admin.Keys(ctx, "*").Val() {
			all[key] = w.admin.Dump(ctx, key).Val()
		}
		return all
	}
	before := dump()
	got, err := Inspect(ctx, w.application, testTable, checkout)
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for _, member := range got.Members {
		pods = append(pods, member.Pod)
	}
	if diff := cmp.Diff([]string{"pod-z", "pod-a"}, pods); diff != "" && !cmp.Equal([]string{"pod-a", "pod-z"}, pods) { // of one ms
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if got.Owner != "blue" || got.Row == nil {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(before, dump()); diff != "" {
		t.Errorf("the table changed (-before +after):\n%s", diff)
	}
}

// Whom enforcers denied is kept beside their reports for as long as they live, and the application's user may do both.
func TestDeniedIdentities(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	m := w.member()
	report := func(pod string, denied int64) policy.DeniedReport {
		return policy.DeniedReport{Version: policy.RowVersion, Pod: pod, From: 1, To: 2, Rules: []policy.DeniedRule{{
			Policy: "p", Rule: "r", Total: denied, Identities: []policy.DeniedIdentity{{ID: strings.Repeat("0a", 16), Denied: denied}},
		}}}
	}
	for _, pod := range []string{"a", "b", "silent"} {
		heartbeat(t, m, pod)
	}
	for pod, denied := range map[string]int64{"a": 1, "b": 2, "gone": 3} {
		if err := m.ReportDenied(t.Context(), pod+"/1", report(pod, denied), 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.ReportDenied(t.Context(), "a/1", report("a", 7), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	got, err := Denied(t.Context(), w.application, testTable, checkout)
	if diff := cmp.Diff([]policy.DeniedReport{report("a", 7), report("b", 2)}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if ttl := w.admin.PTTL(t.Context(), "weir:t1:denied:{shop/apps/Deployment/checkout}:a/1").Val(); ttl <= 10*time.Second || ttl > 15*time.Second {
		t.Errorf("it expires in %v, want three polls", ttl)
	}
	none, err := Denied(t.Context(), w.application, testTable, policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "other"})
	if err != nil || len(none) != 0 {
		t.Errorf("%v, %v", none, err)
	}
	if _, err := Denied(t.Context(), w.application, testTable, policy.Workload{Namespace: "bank", Group: "apps", Kind: "Deployment", Name: "checkout"}); err == nil {
		t.Error("the user of one namespace reads another's")
	}
}
