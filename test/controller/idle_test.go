package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
)

// B51: nothing happens, and so nothing is written: neither a row or a count to Redis, nor anything to the API server.
//
// An hour is 120 resyncs of 30 s. Here each takes a second, and there are enough of them for every workload to be looked
// at several times. WEIR_IDLE=10m looks on for ten real minutes, with the usual resync.
func TestAnIdleClusterWritesNothing(t *testing.T) {
	const policies, resyncs = 50, 6
	idle, resync := time.Duration(0), time.Second
	if text := os.Getenv("WEIR_IDLE"); text != "" {
		var err error
		if idle, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		resync = 30 * time.Second
	}
	i, redis, w := setting(t)
	// Without an election nobody renews the Lease, so that every write is one too many.
	m := i.start(redis.Addr, "--leader-elect=false", "--resync="+resync.String())
	// One workload enforces, one has pods that never report, one does not exist, and one is scaled to zero.
	d := w.deploy(2)
	w.enforce("checkout-a")
	w.enforce("checkout-b")
	silent, absent, asleep := w.beside("silent"), w.beside("absent"), w.beside("asleep")
	silent.deploy(2)
	asleep.deploy(0)
	for n := range policies - 3 {
		w.limit(fmt.Sprintf("policy-%02d", n), int64(n))
	}
	silent.limit("silent", 5)
	absent.limit("absent", 5)
	asleep.limit("asleep", 5)
	for n := range policies - 3 {
		w.waitCondition(fmt.Sprintf("policy-%02d", n), v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	}
	w.waitCondition("silent", v1alpha1.ConditionEnforced, metav1.ConditionFalse, v1alpha1.ReasonReplicasNotReporting)
	w.waitCondition("absent", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	w.waitCondition("asleep", v1alpha1.ConditionEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNoReplicas)
	settle(t, m)
	if idle > 0 {
		w.forgetRaises()
	}

	writes, api, versions, table, began := m.writes(), m.apiWrites(), w.versions(), w.published(), m.passes()
	// An edit of the target that changes nothing that counts.
	before := d.DeepCopy()
	d.Spec.Template.Annotations = map[string]string{"unrelated": "edit"}
	if err := w.admin.Patch(t.Context(), d, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, max(patience, 2*idle), func(context.Context) error {
		if m.passes() < began+4*max(resyncs, idle.Seconds()/resync.Seconds()*0.9) {
			return errors.New("the workloads were not looked at often enough")
		}
		return nil
	})
	if got := m.writes(); got != writes {
		t.Errorf("%v rows, counts and statuses written, were %v", got, writes)
	}
	if got := m.apiWrites(); got != api {
		t.Errorf("%v requests to the API server were no reads, before %v", got, api)
	}
	if diff := cmp.Diff(versions, w.versions()); diff != "" {
		t.Errorf("policies were written (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(table, w.published()); diff != "" {
		t.Errorf("the table was written (-before +after):\n%s", diff)
	}
}

// beside is another workload of the same namespace and table; nothing of it exists yet.
func (w *workload) beside(name string) *workload {
	other := *w
	other.Name = name
	return &other
}

// forgetRaises waits until no count keeps a rise or a fall, which end by themselves after 60 s.
func (w *workload) forgetRaises() {
	w.t.Helper()
	waitFor(w.t, 3*patience, func(context.Context) error {
		for key, value := range w.published() {
			if strings.Contains(key, ":replicas:") {
				replicas, err := policy.DecodeReplicas([]byte(value))
				if err != nil || replicas.RaisedTo > 0 || len(replicas.Falls) > 0 {
					return fmt.Errorf("%s is %s (%w)", key, value, err)
				}
			}
		}
		return nil
	})
}

// published are the rows and counts of the table, byte for byte.
func (w *workload) published() map[string]string {
	w.t.Helper()
	found := map[string]string{}
	for _, kind := range []string{"row", "replicas"} {
		keys, err := w.redis.Keys(w.t.Context(), "weir:"+w.table+":"+kind+":*").Result()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, key := range keys {
			if found[key], err = w.redis.Get(w.t.Context(), key).Result(); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return found
}

// writes counts what the controller wrote to the table and to the API server. The owner's sign of life is not counted.
func (m *manager) writes() float64 {
	total := m.metric("weir_controller_status_writes_total")
	for _, kind := range []string{"row", "tombstone", "replicas"} {
		total += m.metric(`weir_controller_table_writes_total{kind="` + kind + `"}`)
	}
	return total
}

// apiWrites counts the controller's requests to the API server that were no reads, whatever they were for.
func (m *manager) apiWrites() float64 {
	total := 0.0
	for series, value := range m.all() {
		if strings.HasPrefix(series, "rest_client_requests_total{") && !strings.Contains(series, `method="GET"`) {
			total += value
		}
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
