package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/test/env"
)

func TestAPolicyReachesThePodsAndTheirReportReachesTheStatus(t *testing.T) {
	c := env.APIServer(t)
	redis := env.Redis(t, env.RedisOptions{})
	i := install(t, c)
	w := newWorkload(t, c, createNamespace(t, c, "shop"), "checkout", redis.Addr, i.namespace)
	w.deploy(3)
	for _, pod := range []string{"checkout-a", "checkout-b", "checkout-c"} {
		w.enforce(pod)
	}
	i.start(redis.Addr)

	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	w.waitReplicas(3)
	p := w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	if got := p.Status.Enforcers.Summary; got != "3/3" {
		t.Errorf("summary %q, want 3/3", got)
	}
}
