package redisstore

import (
	"testing"

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
