package controllers

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// pod is one of the target's pods: when it began, and when it is ready and has reported.
type pod struct {
	name            string
	ready, reported time.Time
}

// fleet is a Deployment whose pods a test starts and ends, one second after the other.
type fleet struct {
	*world
	pods    []pod
	started int
	// boots is from a pod's start to its readiness, reports from there to its first report.
	boots, reports time.Duration
	desired        int32
}

func (f *fleet) start(n int) {
	for range n {
		f.started++
		ready := f.now.Add(f.boots)
		f.pods = append(f.pods, pod{fmt.Sprintf("checkout-%05d", f.started), ready, ready.Add(f.reports)})
	}
}

// end ends the oldest pods. Their members leave with them.
func (f *fleet) end(n int) { f.pods = f.pods[n:] }

// second passes: the Deployment and the members are as the pods are, and the workload is looked at.
func (f *fleet) second(t *testing.T) {
	t.Helper()
	f.now = f.now.Add(time.Second)
	var ready int32
	var revision policy.Revision
	if f.table.row != nil {
		revision = f.table.row.Revision
	}
	before := len(f.table.members)
	f.table.members = nil
	for _, p := range f.pods {
		if !f.now.Before(p.ready) {
			ready++
		}
		if !f.now.Before(p.reported) {
			f.table.members = append(f.table.members, policy.Report{Member: p.name + "/1", Pod: p.name, Revision: revision})
		}
	}
	if len(f.table.members) != before {
		f.table.version++
	}
	f.deployment = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{UID: "d", Generation: 1},
		Spec:       appsv1.DeploymentSpec{Replicas: &f.desired},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: int32(len(f.pods)), ReadyReplicas: ready},
	}
	for {
		result, err := f.reconcile(t.Context(), checkout, f.now)
		if err != nil {
			t.Fatal(err)
		}
		if result != behindOthers() {
			return
		}
	}
}

// However restless a workload is, its status tells it at most every 2 s, and no condition flips and no event is told while
// every pod does what it should.
func TestRestlessWorkloadsFlipNothing(t *testing.T) {
	const lasts = 2 * time.Minute
	cases := map[string]struct {
		replicas int
		step     func(f *fleet, second int)
	}{
		"a thousand replicas roll": {1000, func(f *fleet, second int) {
			// maxSurge 25 %: ten new pods a second, and as many old ones end when those are ready.
			if f.started < 2000 {
				f.start(10)
			}
			if old := len(f.pods) - 1000; old > 0 && second > 10 {
				f.end(min(10, old))
			}
		}},
		"a thousand replicas roll at once": {1000, func(f *fleet, second int) {
			switch second {
			case 5:
				f.start(1000)
			case 20:
				f.end(1000)
			}
		}},
		"an autoscaler that flaps": {3, func(f *fleet, second int) {
			switch second % 40 {
			case 5:
				f.desired = 30
				f.start(27)
			case 25:
				f.desired = 3
				f.end(27)
			}
		}},
		"an autoscaler that cannot decide": {10, func(f *fleet, second int) {
			if second%2 == 0 {
				f.desired = 11
				f.start(1)
			} else if second > 1 {
				f.desired = 10
				f.end(1)
			}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := &fleet{world: newWorld(t), boots: 3 * time.Second, reports: 2 * time.Second, desired: int32(c.replicas)}
			f.has(limit("login", 5))
			f.start(c.replicas)
			for range 30 {
				f.second(t)
			}
			settled := f.cached.items[0].Status
			if !conditionIs(settled.Conditions, v1alpha1.ConditionEnforced, metav1.ConditionTrue) {
				t.Fatalf("before it begins: %v", summary(settled))
			}
			statuses, events, rows := f.statuses, f.events, len(f.table.written)
			for second := range int(lasts / time.Second) {
				c.step(f, second)
				f.second(t)
				for _, is := range f.cached.items[0].Status.Conditions {
					was := findCondition(settled.Conditions, v1alpha1.ConditionType(is.Type))
					if was == nil || was.Status != is.Status || !was.LastTransitionTime.Equal(&is.LastTransitionTime) {
						t.Fatalf("after %d s: %v", second, summary(f.cached.items[0].Status))
					}
				}
			}
			if f.events != events || len(f.table.written) != rows {
				t.Errorf("%d events told and %d rows written, want none", f.events-events, len(f.table.written)-rows)
			}
			if wrote, most := f.statuses-statuses, int(lasts/statusEvery)+1; wrote > most {
				t.Errorf("%d statuses written in %v, want at most %d", wrote, lasts, most)
			}
			if got, want := f.cached.items[0].Status.Enforcers.Summary, fmt.Sprintf("%[1]d/%[1]d", len(f.table.members)); name != "an autoscaler that cannot decide" && got != want {
				t.Errorf("in the end %s enforce it, want %s", got, want)
			}
		})
	}
}

// Pods that never embed the library are told once, and then neither time nor rollouts tell it again.
func TestPodsWithoutTheLibraryAreToldOnce(t *testing.T) {
	f := &fleet{world: newWorld(t), boots: time.Second, reports: 24 * time.Hour, desired: 3}
	f.has(limit("login", 5))
	f.start(3)
	for range 60 {
		f.second(t)
	}
	status := f.cached.items[0].Status
	if c := findCondition(status.Conditions, v1alpha1.ConditionEnforced); c.Reason != string(v1alpha1.ReasonReplicasNotReporting) {
		t.Fatalf("after a minute: %v", summary(status))
	}
	events := f.events
	for second := range 600 {
		if second%60 == 0 { // a rollout a minute
			f.start(1)
		}
		if second%60 == 30 {
			f.end(1)
		}
		f.second(t)
		if !conditionIs(f.cached.items[0].Status.Conditions, v1alpha1.ConditionEnforced, metav1.ConditionFalse) {
			t.Fatalf("after %d s: %v", second, summary(f.cached.items[0].Status))
		}
	}
	if f.events != events {
		t.Errorf("%d more events", f.events-events)
	}
}
