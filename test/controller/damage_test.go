package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/controllers"
	"github.com/weir-dev/weir/internal/policy"
)

// key is one of the workload's in the table.
func (w *workload) key(kind string) string {
	return "weir:" + w.table + ":" + kind + ":{" + w.String() + "}"
}

// types are those of the workload's keys that are no strings.
var types = map[string]string{"fence": "hash", "members": "zset", "deadlines": "zset", "reports": "hash"}

// damage puts something of another type in the place of a key, past all fences, and has the controller look.
func (w *workload) damage(ctx context.Context, kind string) error {
	pipeline := w.redis.TxPipeline()
	pipeline.Del(ctx, w.key(kind))
	if types[kind] == "" {
		pipeline.RPush(ctx, w.key(kind), "x")
	} else {
		pipeline.Set(ctx, w.key(kind), "x", 0)
	}
	pipeline.Publish(ctx, "weir:"+w.table+":asks:"+w.Namespace, w.String())
	_, err := pipeline.Exec(ctx)
	return err
}

// mended is satisfied when no key of the workload is of another type than the controller's.
func (w *workload) mended(ctx context.Context) error {
	for _, kind := range controllers.RepairedKeys {
		got, err := w.redis.Type(ctx, w.key(kind)).Result()
		if err != nil {
			return err
		}
		want := types[kind]
		if want == "" {
			want = "string"
		}
		if got != want && got != "none" {
			return fmt.Errorf("%s is a %s, want a %s", kind, got, want)
		}
	}
	return nil
}

// Keys of one workload that are of another type are that workload's trouble: an edit in another namespace reaches the table
// as fast as ever, and the table is up, while each of them is damaged again and again. The controller replaces them, and the
// workload's own policies are in force again.
func TestDamagedKeysTroubleNobodyElse(t *testing.T) {
	const edits, every = 15, 300 * time.Millisecond
	i, redis, w := setting(t)
	other := newWorkload(t, i.cluster, createNamespace(t, i.cluster, "ops"), redis.Addr, w.table)
	i.looksAfter = append(i.looksAfter, other.Namespace)
	m := i.start(redis.Addr)
	for _, each := range []*workload{w, other} {
		each.deploy(1)
		each.limit("login", 5)
		each.waitRow(hasPolicies("login"))
	}
	usual := other.timeEdits(edits, 0)

	// The controller alone mends each of them.
	for _, kind := range controllers.RepairedKeys {
		series := `weir_controller_table_repairs_total{key="` + kind + `"}`
		before := m.metric(series)
		if err := w.damage(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		eventually(t, func(context.Context) error {
			if m.metric(series) == before {
				return fmt.Errorf("%s is not repaired", kind)
			}
			return nil
		})
		eventually(t, w.mended)
		w.waitRow(hasPolicies("login"))
		w.waitReplicas(1)
	}

	// With enforcers beside it, and all the time.
	pod := w.enforce("checkout-a")
	ctx, cancel := context.WithCancel(t.Context())
	var trouble sync.WaitGroup
	damaged := 0
	trouble.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for ; ; damaged++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			kind := controllers.RepairedKeys[damaged%len(controllers.RepairedKeys)]
			if err := w.damage(ctx, kind); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var troubled []time.Duration
	for range edits {
		troubled = append(troubled, other.timeEdits(1, 0)...)
		if up := m.metric("weir_controller_table_up"); up != 1 {
			t.Errorf("weir_controller_table_up is %v", up)
		}
		<-time.After(every)
	}
	cancel()
	trouble.Wait()
	t.Logf("an edit was in the table after %v usually and %v while %d keys were damaged (median), %v and %v at worst",
		middle(usual), middle(troubled), damaged, slices.Max(usual), slices.Max(troubled))
	if middle(troubled) > 5*middle(usual)+500*time.Millisecond || slices.Max(troubled) > 4*time.Second {
		t.Error("the others' edits were slowed down")
	}
	if damaged < 100 {
		t.Errorf("only %d keys were damaged", damaged)
	}

	generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(7)) })
	row := w.waitRow(func(row policy.Row) error {
		if got := row.Policies[0].Generation; got != generation {
			return fmt.Errorf("generation %d, want %d", got, generation)
		}
		return nil
	})
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{pod}, row.Revision) })
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	eventually(t, w.mended)
	log := m.logged()
	if strings.Contains(log, "Policy table does not answer") || m.metric("weir_controller_table_failures_total") > 0 {
		t.Error("the damage was taken for an outage")
	}
	if told := strings.Count(log, "Deleted keys of the workload"); told == 0 || told > 3 {
		t.Errorf("the log tells of repairs %d times, want once a minute", told)
	}
}
