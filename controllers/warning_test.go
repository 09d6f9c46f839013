package controllers

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// What pods report of rules that nothing matches is in the Ready message, of the policy that has the rule alone, and stays
// there while pods take over a new row.
func TestRulesThatNoRequestMatchesAreNamed(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5), limit("search", 9))
	w.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "d"}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2}}
	w.pass(t)
	report := func(pod, matched string) policy.Report {
		return policy.Report{Member: pod + "/1", Pod: pod, Revision: w.table.row.Revision, Matched: matched}
	}
	ready := func(i int) string {
		w.pass(t)
		c := findCondition(w.cached.items[i].Status.Conditions, v1alpha1.ConditionReady)
		if c.Status != metav1.ConditionTrue {
			t.Fatalf("%+v", c)
		}
		return c.Message
	}
	const warning = "no request matches all, of 1000 or more in a pod"
	w.table.members = []policy.Report{report("a", "mn"), report("b", "m?")}
	if message := ready(1); !strings.Contains(message, warning) {
		t.Errorf("search: %s", message)
	}
	if message := ready(0); strings.Contains(message, "no request matches") {
		t.Errorf("login: %s", message)
	}
	w.table.members[1].Revision.N = 0 // behind
	if message := ready(1); !strings.Contains(message, warning) {
		t.Errorf("search, while a pod is behind: %s", message)
	}
	w.table.members = []policy.Report{report("a", "mn"), report("b", "mm")}
	if message := ready(1); strings.Contains(message, "no request matches") {
		t.Errorf("search, which a request of b matches: %s", message)
	}
	w.table.members[0].ForwardedIgnored = true
	if message := ready(0); !strings.Contains(message, "X-Forwarded-For") {
		t.Errorf("login: %s", message)
	}
}
