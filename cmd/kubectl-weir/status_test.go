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

// Only a policy that is ready as it is now ends with 0: a pipeline that asks right after an edit must not take the answer
// for that of the edit.
func TestStatusFailsUnlessReadyNow(t *testing.T) {
	for name, tc := range map[string]struct {
		observed *int64
		ready    metav1.ConditionStatus
		want     string
	}{
		"ready":                       {new(int64(2)), metav1.ConditionTrue, "True"},
		"not ready":                   {new(int64(2)), metav1.ConditionFalse, "False"},
		"on its way":                  {new(int64(2)), metav1.ConditionUnknown, "Unknown"},
		"ready before the last edit":  {new(int64(1)), metav1.ConditionTrue, "Unknown"},
		"seen by no controller":       {new(int64(-1)), metav1.ConditionUnknown, "Unknown"},
		"without a status by any one": {nil, metav1.ConditionTrue, "Unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Name: "checkout", Generation: 2}}
			p.Status.ObservedGeneration = tc.observed
			p.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: tc.ready}}
			got := statusOf(p)
			if got.Ready != tc.want {
				t.Errorf("READY %s, want %s", got.Ready, tc.want)
			}
			if err := readiness([]policyStatus{got}); (err == nil) != (tc.want == "True") {
				t.Errorf("%v", err)
			}
		})
	}
}
