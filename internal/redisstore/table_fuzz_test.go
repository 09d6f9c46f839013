package redisstore

import (
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

// Whatever stands in the table's keys, no script fails: a controller that owns the table gets through to its own row, or
// is told why not, and an enforcer reads and reports. An owner that cannot be read is none, and a row that is none goes.
func FuzzTableOverAnything(f *testing.F) {
	w := newWorld(f, env.RedisOptions{})
	for _, seed := range [][4]string{
		{`{"installation":"one","epoch":"1","term":"1","seen":"1"}`, `{"v":1,"owner":"one","revision":{"epoch":"1","n":1},"rules":[]}`, `{"v":1,"n":3}`, `{"pod":"a"}`},
		{`{"installation":7}`, `{"v":2,"revision":{}}`, `{"v":9}`, `null`},
		{`{"installation":"one","term":"nan","seen":"inf","epoch":{}}`, `{"v":1,"revision":{"epoch":"9","n":1e308},"policies":{"a":1},"policyList":7}`, `[`, `"`},
		{"\xff\x00", `{"v":"1","revision":[]}`, "", ""},
		{`[[[[`, `{"v":1,"owner":{},"revision":{"epoch":"1","n":1},"policyList":"5","policies":[1,null,{"uid":[],"generation":"x"}]}`, `{}`, `{}`},
		{`"`, `{"v":1,"owner":"one","revision":{"epoch":"1","n":1},"policyList":"5","policies":[1,null,"x",{"uid":[],"generation":"x"},{"uid":NaN}]}`, `1`, `{}`},
		{`null`, `null`, `null`, `null`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]), []byte(seed[3]))
	}
	k := newKeys(testTable)
	row := policy.Row{
		Version: policy.RowVersion, Workload: checkout.String(), Owner: "one", PolicyList: "7", Revision: policy.Revision{Epoch: "5", N: 1},
		Policies: []policy.RowPolicy{}, Rules: []policy.RowRule{},
	}
	f.Fuzz(func(t *testing.T, owner, held, replicas, report []byte) {
		ctx := t.Context()
		if err := w.admin.FlushDB(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string][]byte{k.owner(): owner, k.row(checkout): held, k.replicas(checkout): replicas} {
			if err := w.admin.Set(ctx, key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.admin.HSet(ctx, k.reports(checkout), "x/1", report)
		w.admin.HSet(ctx, k.fence(checkout), "owner", owner, "term", owner, "epoch", replicas)
		w.admin.Set(ctx, k.membership(checkout), report, 0)

		member, table := w.member(), NewTable(w.controller, testTable, "one")
		if _, _, err := table.Read(ctx, checkout); err != nil {
			t.Errorf("a controller reads what it finds: %v", err)
		}
		if _, err := member.Read(ctx); err != nil {
			t.Errorf("an enforcer reads: %v", err)
		}
		if _, err := table.Claim(ctx, "5"); err != nil {
			t.Errorf("claiming: %v", err)
		}
		if _, err := table.Publish(ctx, checkout, row); err != nil {
			t.Errorf("publishing: %v", err)
		}
		if _, err := table.PublishReplicas(ctx, checkout, "5", policy.Replicas{Version: policy.RowVersion, N: 1}); err != nil {
			t.Errorf("publishing a count: %v", err)
		}
		if _, err := member.Heartbeat(ctx, policy.Report{Member: "a/1", Pod: "a"}, time.Second); err != nil {
			t.Errorf("reporting: %v", err)
		}
		if _, _, err := table.Read(ctx, checkout); err != nil {
			t.Errorf("a controller reads: %v", err)
		}
		if _, err := Inspect(ctx, w.application, testTable, checkout); err != nil {
			t.Errorf("inspecting: %v", err)
		}
	})
}
