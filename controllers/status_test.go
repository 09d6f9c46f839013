package controllers

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

var testTime = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// settled is the life of a policy whose three pods enforce it; cases change what differs.
func settledFacts(change func(*facts)) facts {
	row := policy.Row{Revision: policy.Revision{Epoch: "48213", N: 7}}
	f := facts{
		generation: 2,
		workload:   policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"},
		exists:     true,
		table:      tableView{state: tableOurs, row: &row},
		written:    true,
		replicas:   &policy.Replicas{N: 3, Ready: 3, Desired: 3},
		standing:   standing{current: []string{"a", "b", "c"}},
		settled:    3,
		ready:      3,
		now:        testTime,
	}
	change(&f)
	return f
}

// summary is a status in one line per condition: type, status, reason and message.
func summary(status v1alpha1.RateLimitPolicyStatus) []string {
	var lines []string
	for _, c := range status.Conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return lines
}

func previously(generation int64, conditions ...metav1.Condition) v1alpha1.RateLimitPolicyStatus {
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
	return v1alpha1.RateLimitPolicyStatus{ObservedGeneration: &generation, Conditions: conditions}
}

const (
	acceptedTrue   = "Accepted=True Accepted: The policy is valid and its target exists"
	programmedTrue = "Programmed=True Programmed: This generation is in the policy table"
)

func TestStatus(t *testing.T) {
	enforced := metav1.Condition{Type: "Enforced", Status: "True", Reason: "Enforced", Message: "3 of 3 pods enforce this generation"}
	programmed := metav1.Condition{Type: "Programmed", Status: "True", Reason: "Programmed"}
	cases := map[string]struct {
		facts func(*facts)
		want  []string
	}{
		"all pods enforce it": {
			facts: func(f *facts) {},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
			},
		},
		"an invalid policy is stalled until it is edited": {
			facts: func(f *facts) {
				f.refusal, f.written = refusal{v1alpha1.ReasonInvalid, "spec.rules[0].limits[0].window: wrong"}, false
			},
			want: []string{
				"Accepted=False Invalid: spec.rules[0].limits[0].window: wrong",
				"Programmed=False NotAccepted: A policy that is not accepted is not written",
				"Enforced=Unknown NotAccepted: A policy that is not accepted is not enforced",
				"Ready=False Invalid: spec.rules[0].limits[0].window: wrong",
				"Stalled=True Invalid: spec.rules[0].limits[0].window: wrong",
			},
		},
		"a target that does not exist yet: written, not accepted, not stalled": {
			facts: func(f *facts) { f.exists, f.ready, f.settled, f.standing = false, 0, 0, standing{} },
			want: []string{
				"Accepted=False TargetNotFound: Deployment checkout does not exist in namespace shop",
				programmedTrue,
				"Enforced=Unknown NoReplicas: The workload has no ready pods",
				"Ready=False TargetNotFound: Deployment checkout does not exist in namespace shop",
			},
		},
		"a table of another installation": {
			facts: func(f *facts) {
				f.table, f.written = tableView{state: tableElsewhere}, false
				f.previous = previously(2, programmed, enforced)
			},
			want: []string{
				acceptedTrue,
				"Programmed=False TableOwnedElsewhere: Another installation owns the policy table and was seen within five minutes",
				"Enforced=Unknown Pending: This generation is not in the policy table",
				"Ready=False TableOwnedElsewhere: Another installation owns the policy table and was seen within five minutes",
			},
		},
		"a row of a newer controller": {
			facts: func(f *facts) { f.table.newer, f.written = true, false },
			want: []string{
				acceptedTrue,
				"Programmed=False NewerTable: A newer version of the controller wrote the row of this workload",
				"Enforced=Unknown Pending: This generation is not in the policy table",
				"Ready=False NewerTable: A newer version of the controller wrote the row of this workload",
			},
		},
		"an outage does not take back what was written": {
			facts: func(f *facts) {
				f.table, f.written = tableView{}, false
				f.previous = previously(2, programmed, enforced)
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=Unknown StoreUnreachable: The policy table does not answer, so nothing is known of the pods",
				"Ready=True Ready: The policy table does not answer, so nothing is known of the pods",
			},
		},
		"an outage keeps a new generation from being written": {
			facts: func(f *facts) {
				f.table, f.written = tableView{}, false
				f.previous = previously(1, programmed, enforced)
			},
			want: []string{
				acceptedTrue,
				"Programmed=Unknown StoreUnreachable: The policy table does not answer",
				"Enforced=Unknown StoreUnreachable: The policy table does not answer, so nothing is known of the pods",
				"Ready=Unknown StoreUnreachable: The policy table does not answer",
				"Reconciling=True Progressing: The policy table does not answer",
			},
		},
		"a fault of this workload alone is not the store's": {
			facts: func(f *facts) {
				f.table, f.written = tableView{fault: errors.New("script: ERR")}, false
				f.previous = previously(1, programmed, enforced)
			},
			want: []string{
				acceptedTrue,
				"Programmed=Unknown TableFault: The policy table fails over the keys of this workload: script: ERR",
				"Enforced=Unknown TableFault: The policy table fails over the keys of this workload, so nothing is known of the pods: script: ERR",
				"Ready=Unknown TableFault: The policy table fails over the keys of this workload: script: ERR",
				"Reconciling=True Progressing: The policy table fails over the keys of this workload: script: ERR",
			},
		},
		"written but not yet reported": {
			facts: func(f *facts) {
				f.standing = standing{behind: []string{"a", "b", "c"}}
				f.previous = previously(1, programmed, enforced)
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=Unknown Pending: Waiting for the pods to report this generation",
				"Ready=True Ready: Waiting for the pods to report this generation",
				"Reconciling=True Progressing: Waiting for the pods to report this generation",
			},
		},
		"a pod that is late for a moment takes nothing back": {
			facts: func(f *facts) {
				f.standing = standing{current: []string{"a", "b"}}
				f.previous = previously(2, programmed, enforced)
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
			},
		},
		"pods that just became ready are not expected yet": {
			facts: func(f *facts) { f.ready = 5 },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
			},
		},
		"pods that do not report": {
			facts: func(f *facts) {
				f.standing, f.settled, f.ready, f.overdue = standing{current: []string{"a", "b", "c", "d"}}, 6, 6, true
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=False ReplicasNotReporting: 2 of 6 pods do not report; those that do: a, b, c, …",
				"Ready=False ReplicasNotReporting: 2 of 6 pods do not report; those that do: a, b, c, …",
			},
		},
		"no pod reports": {
			facts: func(f *facts) { f.standing, f.overdue = standing{}, true },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=False ReplicasNotReporting: 3 of 3 pods do not report: do they run the library, with this Redis and this table?",
				"Ready=False ReplicasNotReporting: 3 of 3 pods do not report: do they run the library, with this Redis and this table?",
			},
		},
		"pods that stay behind are named, sorted, three at most": {
			facts: func(f *facts) {
				f.standing = standing{current: []string{"c"}, behind: []string{"a", "b", "d", "e"}}
				f.settled, f.ready, f.overdue = 5, 5, true
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=False ReplicasBehind: 4 of 5 pods run an older generation: a, b, d, …",
				"Ready=False ReplicasBehind: 4 of 5 pods run an older generation: a, b, d, …",
			},
		},
		"pods whose library skips a rule": {
			facts: func(f *facts) {
				f.standing, f.overdue = standing{current: []string{"b", "c"}, old: []string{"a"}}, true
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=False EnforcerTooOld: The library in 1 of 3 pods is too old for a rule of this policy: a",
				"Ready=False EnforcerTooOld: The library in 1 of 3 pods is too old for a rule of this policy: a",
			},
		},
		"a snapshot has this generation": {
			facts: func(f *facts) { f.snapshot = snapshotFacts{asked: true, has: true, state: snapshotOurs} },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
				"SnapshotWritten=True SnapshotWritten: ConfigMap weir-checkout has this generation",
			},
		},
		"somebody else's ConfigMap": {
			facts: func(f *facts) { f.snapshot = snapshotFacts{asked: true, state: snapshotTaken} },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
				"SnapshotWritten=False ConfigMapTaken: ConfigMap weir-checkout exists and is not Weir's, so it is left alone",
			},
		},
		"a controller that makes no snapshots": {
			facts: func(f *facts) { f.snapshot = snapshotFacts{asked: true, state: snapshotOff} },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
				"SnapshotWritten=False SnapshotsDisabled: The controller runs without --snapshots",
			},
		},
		"the API server refuses the ConfigMap": {
			facts: func(f *facts) {
				f.snapshot = snapshotFacts{asked: true, state: snapshotFailed, failure: errors.New("writing ConfigMap weir-checkout: exceeded quota")}
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
				"SnapshotWritten=False SnapshotFailed: writing ConfigMap weir-checkout: exceeded quota",
			},
		},
		"an outage, in which an edit reached the snapshot": {
			facts: func(f *facts) {
				f.table, f.written = tableView{}, false
				f.snapshot = snapshotFacts{asked: true, has: true, state: snapshotOurs}
				f.previous = previously(1, programmed, enforced)
			},
			want: []string{
				acceptedTrue,
				"Programmed=Unknown StoreUnreachable: The policy table does not answer; this generation is in ConfigMap weir-checkout",
				"Enforced=Unknown StoreUnreachable: The policy table does not answer, so nothing is known of the pods",
				"Ready=Unknown StoreUnreachable: The policy table does not answer; this generation is in ConfigMap weir-checkout",
				"SnapshotWritten=True SnapshotWritten: ConfigMap weir-checkout has this generation",
				"Reconciling=True Progressing: The policy table does not answer; this generation is in ConfigMap weir-checkout",
			},
		},
		"no table: the snapshot is all there is": {
			facts: func(f *facts) {
				f.table, f.written, f.standing = tableView{state: tableNone}, false, standing{}
				f.snapshot = snapshotFacts{asked: true, has: true, state: snapshotOurs}
			},
			want: []string{
				acceptedTrue,
				"Programmed=True Programmed: This generation is in ConfigMap weir-checkout",
				"Enforced=Unknown NoTable: The controller has no policy table, so nothing is known of the pods",
				"Ready=True Ready: The controller has no policy table, so nothing is known of the pods",
				"SnapshotWritten=True SnapshotWritten: ConfigMap weir-checkout has this generation",
			},
		},
		"no table, and the snapshot is on its way": {
			facts: func(f *facts) {
				f.table, f.written, f.standing = tableView{state: tableNone}, false, standing{}
				f.snapshot = snapshotFacts{asked: true, state: snapshotOurs}
			},
			want: []string{
				acceptedTrue,
				"Programmed=Unknown Pending: ConfigMap weir-checkout is about to be written",
				"Enforced=Unknown NoTable: The controller has no policy table, so nothing is known of the pods",
				"Ready=Unknown Pending: ConfigMap weir-checkout is about to be written",
				"SnapshotWritten=Unknown Pending: ConfigMap weir-checkout is about to be written",
				"Reconciling=True Progressing: ConfigMap weir-checkout is about to be written",
			},
		},
		"no table, and nobody asks for a snapshot": {
			facts: func(f *facts) {
				f.table, f.written, f.standing = tableView{state: tableNone}, false, standing{}
				f.snapshot = snapshotFacts{state: snapshotOurs}
			},
			want: []string{
				acceptedTrue,
				"Programmed=Unknown NoTable: The controller has no policy table, and no policy of the workload asks for a snapshot",
				"Enforced=Unknown NoTable: The controller has no policy table, so nothing is known of the pods",
				"Ready=Unknown NoTable: The controller has no policy table, and no policy of the workload asks for a snapshot",
			},
		},
		"pods that have just started": {
			facts: func(f *facts) { f.standing, f.settled = standing{}, 0 },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=Unknown NoReplicas: The ready pods have just started",
				"Ready=True Ready: The ready pods have just started",
			},
		},
		"pods that roll all the time, so that some have just started": {
			facts: func(f *facts) {
				f.standing, f.overdue, f.joined = standing{current: []string{"a", "b"}}, true, 1
				f.previous = previously(2, programmed, enforced)
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
			},
		},
		"a canary beside the target": {
			facts: func(f *facts) { f.standing = standing{current: []string{"a", "b", "c", "canary"}} },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 4 of 4 pods enforce this generation",
				"Ready=True Ready: 4 of 4 pods enforce this generation",
			},
		},
		"a canary whose library skips a rule": {
			facts: func(f *facts) {
				f.standing = standing{current: []string{"a", "b", "c"}, old: []string{"canary"}}
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 4 pods enforce this generation",
				"Ready=True Ready: 3 of 4 pods enforce this generation",
			},
		},
		"a target that is scaled to zero while a copy of it serves": {
			facts: func(f *facts) { f.settled, f.ready = 0, 0 },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=True Ready: 3 of 3 pods enforce this generation",
			},
		},
		"a target that does not exist while a Rollout's pods serve": {
			facts: func(f *facts) { f.exists, f.settled, f.ready = false, 0, 0 },
			want: []string{
				"Accepted=False TargetNotFound: Deployment checkout does not exist in namespace shop",
				programmedTrue,
				"Enforced=True Enforced: 3 of 3 pods enforce this generation",
				"Ready=False TargetNotFound: Deployment checkout does not exist in namespace shop",
			},
		},
		"pods behind are told although others roll": {
			facts: func(f *facts) {
				f.standing, f.overdue, f.joined = standing{current: []string{"a"}, behind: []string{"b"}}, true, 3
				f.previous = previously(2, programmed, enforced)
			},
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=False ReplicasNotReporting: 1 of 3 pods do not report; those that do: a, b",
				"Ready=False ReplicasNotReporting: 1 of 3 pods do not report; those that do: a, b",
			},
		},
		"scaled to zero": {
			facts: func(f *facts) { f.standing, f.settled, f.ready = standing{}, 0, 0 },
			want: []string{
				acceptedTrue, programmedTrue,
				"Enforced=Unknown NoReplicas: The workload has no ready pods",
				"Ready=True Ready: The workload has no ready pods",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := settledFacts(c.facts)
			status := statusOf(f)
			if diff := cmp.Diff(c.want, summary(status)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			for _, condition := range status.Conditions {
				if condition.ObservedGeneration != f.generation {
					t.Errorf("%s observed generation %d, want %d", condition.Type, condition.ObservedGeneration, f.generation)
				}
			}
			golden(t, name, status, f.generation)
			f.previous, f.now = status, f.now.Add(time.Hour)
			if diff := cmp.Diff(status, statusOf(f)); diff != "" {
				t.Errorf("the same facts gave another status later (-first +second):\n%s", diff)
			}
		})
	}
}

var update = flag.Bool("update", false, "write testdata/status anew")

// golden compares a policy with this status with a file of testdata/status. Tests of other tools read these files.
func golden(t *testing.T, name string, status v1alpha1.RateLimitPolicyStatus, generation int64) {
	t.Helper()
	got, err := yaml.Marshal(&v1alpha1.RateLimitPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "ratelimit.weir.dev/v1alpha1", Kind: "RateLimitPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "checkout", Generation: generation},
		Status:     status,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "status", strings.NewReplacer(" ", "-", ",", "", ":", "", "'", "").Replace(name)+".yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s; go test -update writes it (-file +now):\n%s", file, diff)
	}
}

// Warnings are for people: they change no verdict.
func TestWarnings(t *testing.T) {
	f := settledFacts(func(f *facts) {
		f.table.evicts = "allkeys-lru"
		f.unmatched, f.forwardedIgnored = []string{"a", "b", "c", "d"}, true
	})
	ready := findCondition(statusOf(f).Conditions, v1alpha1.ConditionReady)
	want := "3 of 3 pods enforce this generation; the store may drop rows to make room: its maxmemory-policy is allkeys-lru" +
		"; no request matches a, b, c, …, of 1000 or more in a pod: compare the rule's match with the routes of the application" +
		"; pods ignore X-Forwarded-For of peers with private addresses: is a proxy missing in TrustedProxies?"
	if ready.Status != metav1.ConditionTrue || ready.Message != want {
		t.Errorf("Ready is %s: %s\nwant True: %s", ready.Status, ready.Message, want)
	}
}

func TestStatusTellsCountsAndRevision(t *testing.T) {
	status := statusOf(settledFacts(func(f *facts) {
		f.replicas = &policy.Replicas{N: 5, Ready: 3, Desired: 4, Terminating: 1}
		f.standing = standing{current: []string{"a"}, behind: []string{"b"}}
	}))
	want := v1alpha1.RateLimitPolicyStatus{
		ObservedGeneration: new(int64(2)),
		Conditions:         status.Conditions,
		Replicas: &v1alpha1.ReplicasStatus{
			Counted: 5, Ready: new(int32(3)), Desired: new(int32(4)), Terminating: new(int32(1)),
		},
		Enforcers: &v1alpha1.EnforcersStatus{Reporting: new(int32(2)), Current: new(int32(1)), Summary: "1/3"},
		Revision:  "48213.7",
	}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLastTransitionTimeMovesOnlyWhenTheStatusFlips(t *testing.T) {
	f := settledFacts(func(f *facts) {})
	first := statusOf(f)
	f.previous, f.now, f.generation = first, testTime.Add(time.Minute), 3
	f.standing, f.ready, f.settled = standing{}, 0, 0 // Enforced goes from True to Unknown, Ready stays True
	second := statusOf(f)
	for _, c := range []struct {
		condition v1alpha1.ConditionType
		want      time.Time
	}{
		{v1alpha1.ConditionAccepted, testTime},
		{v1alpha1.ConditionProgrammed, testTime},
		{v1alpha1.ConditionReady, testTime},
		{v1alpha1.ConditionEnforced, testTime.Add(time.Minute)},
	} {
		if got := findCondition(second.Conditions, c.condition).LastTransitionTime.Time; !got.Equal(c.want) {
			t.Errorf("%s flipped last at %v, want %v", c.condition, got, c.want)
		}
	}
}

func TestStandingOf(t *testing.T) {
	at := func(n int64) policy.Revision { return policy.Revision{Epoch: "100", N: n} }
	member := func(pod string, revision policy.Revision, features ...string) policy.Report {
		return policy.Report{Member: pod + "/1", Pod: pod, Revision: revision, Features: features}
	}
	cases := map[string]struct {
		since   policy.Revision
		needs   []string
		members []policy.Report
		want    standing
	}{
		"nobody reports": {since: at(3)},
		"a later revision has the generation too": {
			since:   at(3),
			members: []policy.Report{member("b", at(4)), member("a", at(3)), member("c", at(2)), member("d", policy.Revision{})},
			want:    standing{current: []string{"a", "b"}, behind: []string{"c", "d"}},
		},
		"an enforcer of another leader's later row has it too": {
			since:   at(3),
			members: []policy.Report{member("a", policy.Revision{Epoch: "1000", N: 1})},
			want:    standing{current: []string{"a"}},
		},
		"a generation that is in no row is run by nobody": {
			members: []policy.Report{member("a", at(9))},
			want:    standing{behind: []string{"a"}},
		},
		"a need that the library does not know": {
			since: at(3), needs: []string{"weights"},
			members: []policy.Report{member("a", at(3), "weights"), member("b", at(3), "other"), member("c", at(2))},
			want:    standing{current: []string{"a"}, old: []string{"b"}, behind: []string{"c"}},
		},
		"two limiters in a pod are as far as the slower": {
			since:   at(3),
			members: []policy.Report{member("a", at(3)), {Member: "a/2", Pod: "a", Revision: at(2)}},
			want:    standing{behind: []string{"a"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := standingOf(c.since, c.needs, c.members)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(standing{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
