package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// The target goes and comes back under its name: no ghost of the former count lives on (B35).
func TestATargetThatIsDeletedAndRecreated(t *testing.T) {
	i, redis, w := setting(t)
	i.start(redis.Addr)
	w.limit("login", 5)
	w.waitCondition("login", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	w.waitRow(hasPolicies("login")) // the first pod finds its row
	w.waitReplicas(1)

	d := w.deploy(10)
	w.waitReplicas(10)
	w.waitCondition("login", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)

	w.remove(d)
	w.waitReplicas(1)
	w.waitCondition("login", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)

	w.deploy(2)
	w.waitReplicas(2)
	w.waitCondition("login", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
}

// A Deployment of which nothing is reported yet, or whose ready replicas are absent because there are none, keeps its
// policy and counts what it desires (B33).
func TestATargetWhoseReadyReplicasAreUnknownOrNone(t *testing.T) {
	i, redis, w := setting(t)
	i.start(redis.Addr)
	w.limit("login", 5)
	d := w.deploy(0)
	w.waitReplicas(1)

	d.Spec.Replicas = new(int32(3))
	if err := w.admin.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	w.waitReplicas(3)
	w.report(d, appsv1.DeploymentStatus{Replicas: 3})
	w.waitReplicas(3)
	eventually(t, func(context.Context) error {
		status := w.policy("login").Status
		if status.Replicas == nil || status.Replicas.Counted != 3 || *status.Replicas.Ready != 0 {
			return fmt.Errorf("replicas %+v, want 3 counted and 0 ready", status.Replicas)
		}
		return nil
	})
	w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// A policy that changes its target leaves the one and joins the other.
func TestAPolicyThatChangesItsTarget(t *testing.T) {
	i, redis, w := setting(t)
	i.start(redis.Addr)
	other := *w
	other.Name = "cart"
	w.limit("login", 5)
	w.limit("export", 5)
	w.waitRow(hasPolicies("export", "login"))
	w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.TargetRef.Name = "cart" })
	w.waitRow(hasPolicies("export"))
	other.waitRow(hasPolicies("login"))
}

// A policy that is deleted and created again under its name starts with nothing of its predecessor's status, and keeps
// its counters.
func TestARecreatedPolicy(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	i.start(redis.Addr)
	first := w.limit("login", 5)
	before := w.waitRow(hasPolicies("login"))
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)

	for range 5 { // as fast as can be: the controller may miss that it was gone
		w.remove(first)
		first = w.limit("login", 5)
	}
	after := w.waitRow(func(row policy.Row) error {
		if len(row.Policies) != 1 || row.Policies[0].UID != string(first.UID) {
			return errors.New("the row does not have the new policy")
		}
		return nil
	})
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	if got, want := after.Rules[0].Limits[0].ID, before.Rules[0].Limits[0].ID; got != want {
		t.Errorf("the counters are named %s, were %s", got, want)
	}
}
