package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// setting is what most tests begin with: an installation, a Redis, and the workload checkout in a namespace.
func setting(t *testing.T) (*installation, *env.RedisServer, *workload) {
	t.Helper()
	t.Parallel()
	c := kube.APIServer(t)
	redis := env.Redis(t, env.RedisOptions{})
	i := install(t, c)
	namespace := createNamespace(t, c, "shop")
	i.looksAfter = []string{namespace}
	return i, redis, newWorkload(t, c, namespace, redis.Addr, i.namespace)
}

func TestAPolicyReachesThePodsAndTheirReportReachesTheStatus(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(3)
	for _, pod := range []string{"checkout-a", "checkout-b", "checkout-c"} {
		w.enforce(pod)
	}
	m := i.start(redis.Addr)

	w.limit("login", 5)
	row := w.waitRow(hasPolicies("login"))
	w.waitReplicas(3)
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	p := w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if got := p.Status.Enforcers.Summary; got != "3/3" {
		t.Errorf("summary %q, want 3/3", got)
	}
	if got, want := p.Status.Revision, fmt.Sprintf("%s.%d", row.Revision.Epoch, row.Revision.N); got != want {
		t.Errorf("revision %q, want %q", got, want)
	}
	if p.Status.ObservedGeneration == nil || *p.Status.ObservedGeneration != p.Generation {
		t.Errorf("observed generation %v, want %d", p.Status.ObservedGeneration, p.Generation)
	}
	eventually(t, func(ctx context.Context) error { return w.told(ctx, "login", "Programmed", "Enforced") })
	for series, want := range map[string]float64{
		`weir_controller_policies{condition="Ready",status="True"}`:  1,
		`weir_controller_policies{condition="Ready",status="False"}`: 0,
		`weir_controller_table_writes_total{kind="row"}`:             1,
		`weir_controller_table_writes_total{kind="tombstone"}`:       0,
		`weir_controller_table_refusals_total{reason="revision"}`:    0,
		`weir_controller_table_up`:                                   1,
		`weir_controller_propagation_seconds_count`:                  1,
	} {
		if got := m.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}

// told is satisfied when events with these reasons, and no others, exist for a policy.
func (w *workload) told(ctx context.Context, name string, reasons ...string) error {
	var events eventsv1.EventList
	if err := w.admin.List(ctx, &events, client.InNamespace(w.Namespace)); err != nil {
		return err
	}
	var have []string
	for _, e := range events.Items {
		if e.Regarding.Name == name {
			have = append(have, e.Reason)
		}
	}
	slices.Sort(have)
	slices.Sort(reasons)
	if !slices.Equal(have, reasons) {
		return fmt.Errorf("events %v, want %v", have, reasons)
	}
	return nil
}

// The way of an edit: API write, watch, row, message, the pod's read, its heartbeat.
func TestAnEditReachesAllPodsWithinASecond(t *testing.T) {
	const edits, most = 50, time.Second
	i, redis, w := setting(t)
	w.deploy(3)
	var enforcers []*enforcer
	for _, pod := range []string{"checkout-a", "checkout-b", "checkout-c"} {
		e := w.enforce(pod)
		enforcers = append(enforcers, e)
	}
	i.start(redis.Addr)
	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))

	table := w.table
	var took []time.Duration
	for n := range edits {
		began := time.Now()
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) {
			p.Spec.Rules[0].Limits[0].Requests = new(int64(100 + n))
		})
		row := w.waitRow(func(row policy.Row) error {
			if got := row.Policies[0].Generation; got != generation {
				return fmt.Errorf("the row has generation %d, want %d", got, generation)
			}
			return nil
		})
		eventually(t, func(ctx context.Context) error { return acknowledged(enforcers, row.Revision) })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p99 := took[edits*99/100]
	t.Logf("table %s: from the API write to the last pod's report: p50 %v, p99 %v, of %d edits", table, took[edits/2], p99, edits)
	if p99 > 10*most {
		t.Errorf("p99 %v, want under %v (asserted at ten times that)", p99, most)
	}
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
}

// acknowledged is satisfied when every enforcer's report of the revision was taken by the store.
func acknowledged(enforcers []*enforcer, revision policy.Revision) error {
	for _, e := range enforcers {
		if reported := e.reported(); reported.Compare(revision) < 0 {
			return fmt.Errorf("%s reported %v, want %v", e.pod, reported, revision)
		}
	}
	return nil
}

func TestScalingIsCountedAtOnce(t *testing.T) {
	const most = 2 * time.Second
	i, redis, w := setting(t)
	d := w.deploy(3)
	i.start(redis.Addr)
	w.limit("login", 5)
	w.waitReplicas(3)

	began := time.Now()
	d.Spec.Replicas = new(int32(5))
	if err := w.admin.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	replicas := w.waitReplicas(5)
	took := time.Since(began)
	t.Logf("5 replicas were counted %v after the API write", took)
	if took > 10*most {
		t.Errorf("counted after %v, want within %v (asserted at ten times that)", took, most)
	}
	if replicas.Ready != 3 || replicas.RaisedTo != 5 {
		t.Errorf("counted %+v, want 3 ready and raised to 5", replicas)
	}
	before, _, err := w.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.report(d, appsv1.DeploymentStatus{Replicas: 5, ReadyReplicas: 5})
	eventually(t, func(ctx context.Context) error {
		row, replicas, err := w.read(ctx)
		if err == nil && row.Revision != before.Revision {
			t.Fatalf("scaling rewrote the row: %v, was %v", row.Revision, before.Revision)
		}
		if err == nil && replicas.Ready != 5 {
			err = fmt.Errorf("%d ready, want 5", replicas.Ready)
		}
		return err
	})
}

func TestPodsThatDoNotReportAreTold(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(3)
	w.enforce("checkout-a")
	w.enforce("checkout-b")
	i.start(redis.Addr)
	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	p := w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReplicasNotReporting)
	if got := p.Status.Enforcers.Summary; got != "2/3" {
		t.Errorf("summary %q, want 2/3", got)
	}

	w.enforce("checkout-c")
	p = w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if got := p.Status.Enforcers.Summary; got != "3/3" {
		t.Errorf("summary %q, want 3/3", got)
	}
}
