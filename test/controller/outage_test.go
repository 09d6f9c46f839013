package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

func tombstone(row policy.Row) error {
	if len(row.Rules) > 0 {
		return fmt.Errorf("the row still has %d rules", len(row.Rules))
	}
	return nil
}

func TestItStartsWithoutRedisAndWritesWhenItComes(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(3)
	redis.Kill()
	m := i.start(redis.Addr)
	w.limit("login", 5)
	w.waitCondition("login", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonStoreUnreachable)
	if got := m.metric("weir_controller_table_up"); got != 0 {
		t.Errorf("table up is %v while Redis is away", got)
	}

	redis.Start()
	w.waitRow(hasPolicies("login"))
	w.waitReplicas(3)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	if got := m.metric("weir_controller_table_up"); got != 1 {
		t.Errorf("table up is %v while Redis answers", got)
	}
}

func TestAnOutageTakesNothingBack(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	w.enforce("checkout-a")
	i.start(redis.Addr, "--resync=1s")
	w.limit("login", 5)
	before := w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)

	redis.Kill()
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionUnknown, v1alpha1.ReasonStoreUnreachable)
	during := w.policy("login")
	for _, condition := range []v1alpha1.ConditionType{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
		was, is := find(before, condition), find(during, condition)
		if is.Status != metav1.ConditionTrue || !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Errorf("the outage moved %s: %+v, was %+v", condition, is, was)
		}
	}

	redis.Start() // empty
	w.waitRow(hasPolicies("login"))
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
}

func find(p *v1alpha1.RateLimitPolicy, condition v1alpha1.ConditionType) metav1.Condition {
	for _, c := range p.Status.Conditions {
		if c.Type == string(condition) {
			return c
		}
	}
	return metav1.Condition{}
}

func TestALostRowComesBackAtOnceWhenAnEnforcerMissesIt(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	e := w.enforce("checkout-a")
	i.start(redis.Addr, "--resync=1h")
	w.limit("login", 5)
	row := w.waitRow(hasPolicies("login"))
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, row.Revision) })

	if err := w.redis.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	e.step(t.Context())
	again := w.waitRow(hasPolicies("login"))
	if again.Revision.Compare(row.Revision) <= 0 {
		t.Errorf("the row came back as %v, which no enforcer that runs %v takes", again.Revision, row.Revision)
	}
	w.waitReplicas(1)
}

func TestTheLastPolicyLeavesATombstone(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	e := w.enforce("checkout-a")
	i.start(redis.Addr)
	p := w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	w.remove(p)
	row := w.waitRow(tombstone)
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, row.Revision) })
	if rules := e.enforces(); rules != 0 {
		t.Errorf("the enforcer still has %d rules", rules)
	}
	ttl, err := w.redis.PTTL(t.Context(), "weir:"+w.table+":row:{"+w.String()+"}").Result()
	if err != nil || ttl <= 23*time.Hour || ttl > 24*time.Hour {
		t.Errorf("the tombstone expires after %v (%v), want 24 h", ttl, err)
	}
}

// removeNamespace returns how long it took until the namespace was gone, which is at least the pace of Kubernetes's own
// namespace controller.
func (w *workload) removeNamespace(name string) time.Duration {
	w.t.Helper()
	began := time.Now()
	w.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	eventually(w.t, func(ctx context.Context) error {
		err := w.admin.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the namespace is still there"), err)
	})
	return time.Since(began)
}

// B49: a namespace full of policies goes although Redis is away; its rows follow within a resync when Redis is back, in spite
// of a restart of the controller in between, and pods that still run stop enforcing them. Nobody else's rows are touched.
func TestANamespaceGoesWithoutRedis(t *testing.T) {
	const workloads, resync = 5, 2 * time.Second
	t.Parallel()
	c := kube.Cluster(t)
	// The rows survive the outage, so that they have to be taken away.
	redis := env.Redis(t, env.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	i := install(t, c)
	checkout := newWorkload(t, c, createNamespace(t, c, "team-a"), redis.Addr, i.namespace)
	other := newWorkload(t, c, createNamespace(t, c, "team-b"), redis.Addr, i.namespace)
	i.looksAfter = []string{checkout.Namespace, other.Namespace}
	m := i.start(redis.Addr, "--resync="+resync.String())
	var doomed []*workload
	var enforcers []*enforcer
	for n := range workloads {
		w := checkout.beside(fmt.Sprintf("service-%d", n))
		w.limit("policy-"+w.Name, 5)
		doomed, enforcers = append(doomed, w), append(enforcers, w.enforce(w.Name+"-a"))
	}
	other.limit("login", 5)
	for n, w := range doomed {
		row := w.waitRow(hasPolicies("policy-" + w.Name))
		eventually(t, func(context.Context) error { return acknowledged(enforcers[n:n+1], row.Revision) })
	}
	untouched := other.waitRow(hasPolicies("login"))

	redis.Kill()
	plain := other.removeNamespace(createNamespace(t, c, "team-c"))
	took := other.removeNamespace(checkout.Namespace)
	t.Logf("the namespace was gone after %v, one without policies after %v", took, plain)
	if took > plain+10*time.Second {
		t.Errorf("the policies kept their namespace for %v", took-plain)
	}

	m.process.Stop(10 * time.Second)
	i.start(redis.Addr, "--resync="+resync.String())
	redis.Start()
	began := time.Now()
	for n, w := range doomed {
		gone := w.waitRow(tombstone)
		eventually(t, func(context.Context) error { return acknowledged(enforcers[n:n+1], gone.Revision) })
		if rules := enforcers[n].enforces(); rules != 0 {
			t.Errorf("the enforcer of %s still has %d rules", w.Name, rules)
		}
	}
	took = time.Since(began)
	t.Logf("all rows were tombstones, in the pods too, %v after Redis answered again", took)
	if took > 10*resync {
		t.Errorf("the rows went after %v, want within the resync of %v (asserted at ten times that)", took, resync)
	}
	if row, _, err := other.read(t.Context()); err != nil || row.Revision != untouched.Revision {
		t.Errorf("the other namespace's row is %v (%v), was %v", row.Revision, err, untouched.Revision)
	}
}

// When Redis comes back, empty, every workload is looked at at once: here the next resync is an hour away.
func TestEverythingComesBackWithRedis(t *testing.T) {
	const workloads, most = 20, 5 * time.Second
	i, redis, w := setting(t)
	i.start(redis.Addr, "--resync=1h")
	var all []*workload
	for n := range workloads {
		all = append(all, w.beside(fmt.Sprintf("service-%02d", n)))
		all[n].limit(all[n].Name, 5)
	}
	before := map[string]policy.Row{}
	for _, each := range all {
		before[each.Name] = each.waitRow(hasPolicies(each.Name))
		each.waitCondition(each.Name, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	}
	redis.Kill()
	redis.Start()
	began := time.Now()
	for _, each := range all {
		if row := each.waitRow(hasPolicies(each.Name)); row.Revision.Compare(before[each.Name].Revision) <= 0 {
			t.Errorf("the row of %s came back as %v, was %v", each.Name, row.Revision, before[each.Name].Revision)
		}
		each.waitReplicas(1)
	}
	took := time.Since(began)
	t.Logf("%d rows were there again after %v", workloads, took)
	if took > 10*most {
		t.Errorf("the rows came back after %v, want within %v (asserted at ten times that)", took, most)
	}
}
