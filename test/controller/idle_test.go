package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/process"
)

// Nothing happens, over many resyncs, and so nothing is written: neither to Redis nor to the API server (B51).
func TestAnIdleClusterWritesNothing(t *testing.T) {
	const policies, resyncs = 20, 6
	i, redis, w := setting(t)
	d := w.deploy(2)
	w.enforce("checkout-a")
	w.enforce("checkout-b")
	m := i.start(redis.Addr, "--resync=1s")
	for n := range policies {
		w.limit(fmt.Sprintf("policy-%02d", n), int64(n))
	}
	for n := range policies {
		w.waitCondition(fmt.Sprintf("policy-%02d", n), v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	}
	settle(t, m)

	writes, versions, began := m.writes(), w.versions(), m.passes()
	// An edit of the target that changes nothing that counts.
	before := d.DeepCopy()
	d.Spec.Template.Annotations = map[string]string{"unrelated": "edit"}
	if err := w.admin.Patch(t.Context(), d, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		if m.passes() < began+resyncs {
			return errors.New("the workload was not looked at often enough")
		}
		return nil
	})
	if got := m.writes(); got != writes {
		t.Errorf("%v writes, were %v", got, writes)
	}
	for name, version := range w.versions() {
		if version != versions[name] {
			t.Errorf("%s was written: resourceVersion %s, was %s", name, version, versions[name])
		}
	}
}

// writes counts what the controller wrote to the table and to the API server. The owner's sign of life is not counted.
func (m *manager) writes() float64 {
	total := m.metric("weir_controller_status_writes_total")
	for _, kind := range []string{"row", "tombstone", "replicas"} {
		total += m.metric(`weir_controller_table_writes_total{kind="` + kind + `"}`)
	}
	return total
}

// passes counts reconciliations.
func (m *manager) passes() float64 {
	return m.metric(`controller_runtime_reconcile_total{controller="ratelimitpolicy",result="requeue_after"}`)
}

// settle waits until five seconds have passed without a write: the last status may have had to wait for two.
func settle(t *testing.T, m *manager) {
	t.Helper()
	const quiet = 5 * time.Second
	last, since := m.writes(), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	err := process.Poll(ctx, 100*time.Millisecond, func(context.Context) error {
		if writes := m.writes(); writes != last {
			last, since = writes, time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("the last of %v writes was %v ago", last, time.Since(since))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// versions are the resourceVersions of all policies of the namespace.
func (w *workload) versions() map[string]string {
	w.t.Helper()
	var list v1alpha1.RateLimitPolicyList
	if err := w.admin.List(w.t.Context(), &list, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	versions := map[string]string{}
	for _, p := range list.Items {
		versions[p.Name] = p.ResourceVersion
	}
	return versions
}
