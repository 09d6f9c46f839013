package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// life is one moment of a workload with three ready pods and one policy.
type moment struct {
	after      time.Duration // since the one before
	generation int64
	n          int64 // of the row in the table
	inRow      int64 // the policy's generation in that row
	reports    []int64
	table      tableState

	current int
	overdue bool
}

func TestObserve(t *testing.T) {
	cases := map[string][]moment{
		"an edit is overdue 15 s after it was first seen": {
			{0, 1, 1, 1, []int64{1, 1, 1}, tableOurs, 3, false},
			{time.Minute, 2, 2, 2, []int64{1, 1, 1}, tableOurs, 0, false},
			{14 * time.Second, 2, 2, 2, []int64{2, 2, 1}, tableOurs, 2, false},
			{time.Second, 2, 2, 2, []int64{2, 2, 1}, tableOurs, 2, true},
			{time.Second, 2, 2, 2, []int64{2, 2, 2}, tableOurs, 3, false},
		},
		"another policy's edit leaves this one enforced in pods that are behind": {
			{0, 1, 1, 1, []int64{1, 1, 1}, tableOurs, 3, false},
			{time.Minute, 1, 2, 1, []int64{1, 1, 2}, tableOurs, 3, false},
		},
		"after a restart of the controller only the row's own revision is known to have it": {
			{0, 1, 2, 1, []int64{1, 1, 2}, tableOurs, 1, false},
		},
		"a row that has not got the generation is no news of it": {
			{0, 1, 1, 1, []int64{1, 1, 1}, tableOurs, 3, false},
			{time.Minute, 2, 1, 1, []int64{1, 1, 1}, tableOurs, 0, false},
		},
		"pods that come back after an outage get their 15 s": {
			{0, 1, 1, 1, []int64{1, 1, 1}, tableOurs, 3, false},
			{time.Hour, 1, 1, 1, nil, tableUnreachable, 0, false},
			{time.Minute, 1, 1, 1, nil, tableOurs, 0, false},
			{5 * time.Second, 1, 1, 1, []int64{1, 1, 1}, tableOurs, 3, false},
		},
		"pods that never report": {
			{0, 1, 1, 1, nil, tableOurs, 0, false},
			{15 * time.Second, 1, 1, 1, nil, tableOurs, 0, true},
		},
	}
	for name, moments := range cases {
		t.Run(name, func(t *testing.T) {
			now := testTime
			var remembered policyMemory
			for i, m := range moments {
				now = now.Add(m.after)
				p := limit("login", 5)
				row := held(p)
				row.Policies[0].Generation = m.inRow
				row.Revision = policy.Revision{Epoch: "50", N: m.n}
				p.Generation = m.generation
				in := &input{
					now: now, workload: checkout, table: tableView{state: m.table, row: row},
					deployment: policy.DeploymentStatus{UID: "d", Ready: 3},
					memory:     &memory{ready: readyHistory{{ready: 3}}},
				}
				for j, n := range m.reports {
					pod := string(rune('a' + j))
					in.table.published.Members = append(in.table.published.Members,
						policy.Report{Member: pod + "/1", Pod: pod, Revision: policy.Revision{Epoch: "50", N: n}})
				}
				var f facts
				f, remembered = observe(in, decision{}, &p, remembered, heard(in))
				if got := len(f.standing.current); got != m.current {
					t.Errorf("moment %d: %d pods are current, want %d", i, got, m.current)
				}
				if f.overdue != m.overdue {
					t.Errorf("moment %d: overdue %v, want %v", i, f.overdue, m.overdue)
				}
			}
		})
	}
}

func TestHoldBack(t *testing.T) {
	waiting := func(f *facts) { f.standing = standing{behind: []string{"a", "b", "c"}} }
	cases := map[string]struct {
		facts      func(*facts)
		remembered policyMemory
		want       time.Duration
	}{
		"the first status is written at once": {
			facts: func(f *facts) { f.standing, f.ready, f.settled = standing{}, 0, 0 },
			want:  0,
		},
		"two writes are 2 s apart": {
			facts:      func(f *facts) {},
			remembered: policyMemory{statusWritten: testTime.Add(-500 * time.Millisecond)},
			want:       1500 * time.Millisecond,
		},
		"pods that report get a second to run a new generation": {
			facts:      waiting,
			remembered: policyMemory{seen: testTime.Add(-100 * time.Millisecond)},
			want:       900 * time.Millisecond,
		},
		"after that second the status tells of the waiting": {
			facts:      waiting,
			remembered: policyMemory{seen: testTime.Add(-time.Second)},
			want:       0,
		},
		"nobody waits for pods that do not report": {
			facts:      func(f *facts) { f.standing = standing{} },
			remembered: policyMemory{seen: testTime},
			want:       0,
		},
		"a short outage is not told": {
			facts: func(f *facts) {
				f.table = tableView{outage: 5 * time.Second}
				f.previous = previously(2, metav1.Condition{Type: string(v1alpha1.ConditionEnforced), Status: "True"})
			},
			want: 10 * time.Second,
		},
		"a long one is": {
			facts: func(f *facts) {
				f.table = tableView{outage: 15 * time.Second}
				f.previous = previously(2, metav1.Condition{Type: string(v1alpha1.ConditionEnforced), Status: "True"})
			},
			want: 0,
		},
		"an edit during an outage is told at once": {
			facts: func(f *facts) {
				f.table, f.written = tableView{outage: time.Second}, false
				f.previous = previously(1, metav1.Condition{Type: string(v1alpha1.ConditionEnforced), Status: "True"})
			},
			want: 0,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := settledFacts(c.facts)
			if got := holdBack(f, statusOf(f), c.remembered); got != c.want {
				t.Errorf("held back for %v, want %v", got, c.want)
			}
		})
	}
}
