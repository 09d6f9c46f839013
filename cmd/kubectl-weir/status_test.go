package main

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// What the controller adds to the message of a policy that is ready is shown, and fails nothing.
func TestStatusShowsWarnings(t *testing.T) {
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Name: "checkout", Generation: 1}}
	p.Status.ObservedGeneration = new(int64(1))
	const enforced = "3 of 3 pods enforce this generation"
	for message, want := range map[string][]string{
		enforced: nil,
		enforced + "; no request matches exports": {"warning: no request matches exports"},
	} {
		p.Status.Conditions = []metav1.Condition{
			{Type: "Enforced", Status: "True", Message: enforced}, {Type: "Ready", Status: "True", Message: message},
		}
		got := statusOf(p)
		if !slices.Equal(got.Reasons, want) {
			t.Errorf("%q: %q, want %q", message, got.Reasons, want)
		}
		if err := readiness([]policyStatus{got}); err != nil {
			t.Errorf("%q: %v", message, err)
		}
	}
}
