package controllers

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// snapshotted is a policy that asks for a snapshot.
func snapshotted(name string, requests int64) v1alpha1.RateLimitPolicy {
	p := limit(name, requests)
	p.Spec.Snapshot = v1alpha1.SnapshotConfigMap
	return p
}

// rowAt is the row of these policies at a count of writes.
func rowAt(n int64, policies ...v1alpha1.RateLimitPolicy) *policy.Row {
	row := held(policies...)
	row.Revision.N = n
	return row
}

func TestPlanSnapshot(t *testing.T) {
	asks, other := snapshotted("login", 5), limit("export", 10)
	old := &corev1.ConfigMap{}
	unused := func(since time.Duration) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			unusedAnnotation: testTime.Add(-since).Format(time.RFC3339),
		}}}
	}
	foreign := rowAt(9, asks)
	foreign.Owner = "installation-2"
	type want struct {
		Write, Remove, Fresh bool
		N                    int64 // of the revision
		Unused               bool
	}
	cases := map[string]struct {
		policies []v1alpha1.RateLimitPolicy
		table    tableView
		snapshot snapshotView
		gone     bool // the Deployment
		want     want
	}{
		"it follows the table": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: inTable(rowAt(3, asks)), snapshot: snapshotView{state: snapshotOurs},
			want: want{Write: true, N: 3},
		},
		"one policy that asks is enough": {
			policies: []v1alpha1.RateLimitPolicy{other, asks}, table: inTable(rowAt(3, other, asks)), snapshot: snapshotView{state: snapshotOurs},
			want: want{Write: true, N: 3},
		},
		"nobody asks": {
			policies: []v1alpha1.RateLimitPolicy{other}, table: inTable(rowAt(3, other)), snapshot: snapshotView{state: snapshotOurs},
		},
		"a target that does not exist cannot own it": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: inTable(rowAt(3, asks)), snapshot: snapshotView{state: snapshotOurs}, gone: true,
		},
		"a table that does not answer: the row is the snapshot's own": {
			policies: []v1alpha1.RateLimitPolicy{asks}, snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(3, other)},
			want: want{Write: true, Fresh: true},
		},
		"a table that does not answer, and nothing has changed": {
			policies: []v1alpha1.RateLimitPolicy{asks}, snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(3, asks)},
			want: want{Write: true, N: 3},
		},
		"no table": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: tableView{state: tableNone}, snapshot: snapshotView{state: snapshotOurs},
			want: want{Write: true, Fresh: true},
		},
		"a snapshot of another installation": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: tableView{state: tableNone},
			snapshot: snapshotView{state: snapshotOurs, object: old, row: foreign},
			want:     want{Write: true, Fresh: true},
		},
		"a snapshot that cannot be read": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: tableView{state: tableNone}, snapshot: snapshotView{state: snapshotOurs, object: old},
			want: want{Write: true, Fresh: true},
		},
		"it never goes back": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: inTable(rowAt(3, asks)),
			snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(4, other)},
		},
		"another installation's table": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: tableView{state: tableElsewhere}, snapshot: snapshotView{state: snapshotOurs},
		},
		"a newer controller's table": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: tableView{state: tableOurs, newer: true}, snapshot: snapshotView{state: snapshotOurs},
		},
		"somebody else's ConfigMap": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: inTable(rowAt(3, asks)), snapshot: snapshotView{state: snapshotTaken},
		},
		"nobody asks any more: the table tells of what remains": {
			policies: []v1alpha1.RateLimitPolicy{other}, table: inTable(rowAt(3, other)),
			snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(2, asks)},
			want:     want{Remove: true, Unused: true},
		},
		"nobody asks any more, without a table: it tells of what remains": {
			policies: []v1alpha1.RateLimitPolicy{other}, table: tableView{state: tableNone},
			snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(2, other, asks)},
			want:     want{Write: true, Fresh: true, Unused: true},
		},
		"the last policy is gone: a tombstone": {
			table: inTable(rowAt(3)), snapshot: snapshotView{state: snapshotOurs, object: old, row: rowAt(2, asks)},
			want: want{Write: true, N: 3, Unused: true},
		},
		"a tombstone stays for a day": {
			table:    inTable(rowAt(3)),
			snapshot: snapshotView{state: snapshotOurs, object: unused(24*time.Hour - time.Second), row: rowAt(3)},
			want:     want{Write: true, N: 3, Unused: true},
		},
		"and then goes": {
			table:    inTable(rowAt(3)),
			snapshot: snapshotView{state: snapshotOurs, object: unused(24 * time.Hour), row: rowAt(3)},
			want:     want{Remove: true, Unused: true},
		},
		"a policy asks again": {
			policies: []v1alpha1.RateLimitPolicy{asks}, table: inTable(rowAt(4, asks)),
			snapshot: snapshotView{state: snapshotOurs, object: unused(time.Hour), row: rowAt(3)},
			want:     want{Write: true, N: 4},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := &input{now: testTime, workload: checkout, policies: c.policies, list: "100", table: c.table, snapshot: c.snapshot, memory: &memory{}}
			if !c.gone {
				in.deployment = policy.DeploymentStatus{UID: "d", Ready: 3}
			}
			d := decide(in, ours)
			p := planSnapshot(in, &d, ours)
			got := want{Write: p.write, Remove: p.remove, Fresh: p.fresh, Unused: !p.unusedSince.IsZero()}
			if p.write {
				got.N = p.row.Revision.N
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// newSnapshotWorld has a Deployment of three ready replicas.
func newSnapshotWorld(t *testing.T) *world {
	w := newWorld(t)
	w.snapshots = true
	w.deployment = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "checkout", UID: "d-1"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(3))},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, ReadyReplicas: 3},
	}
	return w
}

// snapshot is what the ConfigMap holds.
func (w *world) snapshot(t *testing.T) (policy.Row, policy.Replicas) {
	t.Helper()
	if w.configMap == nil {
		t.Fatal("there is no ConfigMap")
	}
	s, err := policy.DecodeSnapshot([]byte(w.configMap.Data["row.json"]), checkout.String())
	if err != nil {
		t.Fatal(err)
	}
	row, _, err := policy.DecodeRow(s.Row)
	if err != nil {
		t.Fatal(err)
	}
	var replicas policy.Replicas
	if s.Replicas != nil {
		if replicas, err = policy.DecodeReplicas(s.Replicas); err != nil {
			t.Fatal(err)
		}
	}
	return row, replicas
}

// condition is one of the policy's, as "status reason".
func (w *world) condition(condType v1alpha1.ConditionType) string {
	c := findCondition(w.cached.items[0].Status.Conditions, condType)
	if c == nil {
		return "absent"
	}
	return string(c.Status) + " " + c.Reason
}

func TestTheSnapshotIsWrittenOnceAndThenOnlyWhenItDiffers(t *testing.T) {
	w := newSnapshotWorld(t)
	w.has(snapshotted("login", 5))
	for range 3 {
		w.pass(t)
	}
	if w.configWrites != 1 {
		t.Errorf("%d writes, want 1", w.configWrites)
	}
	row, replicas := w.snapshot(t)
	if row.Revision != w.table.row.Revision || replicas.N != 3 {
		t.Errorf("the snapshot has revision %v and N = %d, want %v and 3", row.Revision, replicas.N, w.table.row.Revision)
	}
	want := metav1.ObjectMeta{
		Namespace: "shop", Name: "weir-checkout",
		Labels:          map[string]string{"ratelimit.weir.dev/snapshot": "true"},
		Annotations:     map[string]string{"ratelimit.weir.dev/workload": "shop/apps/Deployment/checkout"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "checkout", UID: "d-1"}},
	}
	if diff := cmp.Diff(want, w.configMap.ObjectMeta); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}

	w.configMap.Labels["team"], w.configMap.Data["row.json"], w.configMap.Data["more"] = "shop", "broken", "x"
	w.pass(t)
	if again, _ := w.snapshot(t); again.Revision != row.Revision || w.configMap.Labels["team"] != "shop" || len(w.configMap.Data) != 1 {
		t.Errorf("what somebody broke is %+v now", w.configMap)
	}
}

// An outage of the table keeps neither edits nor counts from the snapshot, and revisions only ever rise: in the snapshot,
// in the table, and from the one to the other.
func TestRevisionsRiseOverAnOutage(t *testing.T) {
	w := newSnapshotWorld(t)
	w.has(snapshotted("login", 5))
	w.pass(t)
	first := w.table.row.Revision
	inSnapshot := func(requests int64, n int) policy.Revision {
		t.Helper()
		row, replicas := w.snapshot(t)
		if got := row.Rules[0].Limits[0].Requests; got != requests || replicas.N != n {
			t.Errorf("the snapshot has %d requests and N = %d, want %d and %d", got, replicas.N, requests, n)
		}
		return row.Revision
	}

	w.table.err = errors.New("connection refused")
	w.has(snapshotted("login", 6))
	w.pass(t)
	second := inSnapshot(6, 3)
	w.deployment.Spec.Replicas, w.deployment.Status.Replicas = new(int32(10)), 10
	w.pass(t)
	if again := inSnapshot(6, 10); again != second {
		t.Errorf("scaling moved the revision from %v to %v", second, again)
	}
	w.has(snapshotted("login", 5)) // as the table has it
	w.deployment.Status.ReadyReplicas = 10
	w.pass(t)
	third := inSnapshot(5, 10)

	w.table.err = nil
	w.pass(t)
	fourth := w.table.row.Revision
	if inSnapshot(5, 10) != fourth {
		t.Errorf("the snapshot does not follow the table, which is at %v", fourth)
	}
	for i, pair := range [][2]policy.Revision{{first, second}, {second, third}, {third, fourth}} {
		if pair[0].Compare(pair[1]) >= 0 {
			t.Errorf("step %d went from revision %v to %v", i+1, pair[0], pair[1])
		}
	}
	if got := w.table.replicas; got.N != 10 {
		t.Errorf("the table counts %+v, want 10", got)
	}
	writes, rows := w.configWrites, len(w.table.written)
	w.pass(t)
	if w.configWrites != writes || len(w.table.written) != rows {
		t.Error("it did not settle")
	}
}

// A controller that starts in an outage goes on above what the one before it wrote.
func TestANewLeaderInAnOutage(t *testing.T) {
	w := newSnapshotWorld(t)
	w.has(snapshotted("login", 5))
	w.pass(t)
	before, _ := w.snapshot(t)

	w.table.err = errors.New("connection refused")
	w.memories, w.leadership = memories{}, &Leadership{installation: ours, epoch: "60"}
	w.pass(t)
	if row, replicas := w.snapshot(t); row.Revision != before.Revision || replicas.N != 3 {
		t.Errorf("nothing changed, but the snapshot went to %v with N = %d", row.Revision, replicas.N)
	}
	w.has(snapshotted("login", 6))
	w.pass(t)
	after, _ := w.snapshot(t)
	if after.Revision.Compare(before.Revision) <= 0 || after.Revision.Epoch != "60" {
		t.Errorf("revision %v after %v", after.Revision, before.Revision)
	}
}

func TestTheCountOfAnOutageKeepsExactRanksOnlyWhileItIsTheSame(t *testing.T) {
	w := newSnapshotWorld(t)
	w.has(snapshotted("login", 5))
	w.table.version = 7
	w.pass(t)
	version := func() int64 {
		_, replicas := w.snapshot(t)
		return replicas.MembersVersion
	}
	if got := version(); got != 7 {
		t.Fatalf("counted with members of version %d, want 7", got)
	}
	w.table.err = errors.New("connection refused")
	w.pass(t)
	if got := version(); got != 7 {
		t.Errorf("the outage alone changed the version of the members to %d", got)
	}
	scale := func(n int32) {
		w.deployment.Spec.Replicas, w.deployment.Status = new(n), appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: n, ReadyReplicas: n}
		w.pass(t)
		w.pass(t) // a fall counts later
	}
	scale(4)
	scale(3)
	if got := version(); got != 0 {
		t.Errorf("after scaling the members are still those of version %d", got)
	}
}

func TestAForeignConfigMapIsLeftAlone(t *testing.T) {
	others := map[string]*corev1.ConfigMap{
		"somebody's": {Data: map[string]string{"a": "b"}},
		"with our label": {ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{snapshotLabel: snapshotLabelValue},
		}},
		"of another workload": {ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{snapshotLabel: snapshotLabelValue},
			Annotations: map[string]string{workloadAnnotation: "shop/apps/Deployment/cart"},
		}},
	}
	for name, foreign := range others {
		t.Run(name, func(t *testing.T) {
			w := newSnapshotWorld(t)
			w.configMap = foreign.DeepCopy()
			w.has(snapshotted("login", 5))
			w.pass(t)
			if w.configWrites > 0 || !cmp.Equal(w.configMap, foreign) {
				t.Errorf("%d writes; it is now %+v", w.configWrites, w.configMap)
			}
			if got := w.condition(v1alpha1.ConditionSnapshotWritten); got != "False ConfigMapTaken" {
				t.Errorf("SnapshotWritten is %s", got)
			}
			w.configMap = nil
			w.pass(t)
			w.snapshot(t)
			if got := w.condition(v1alpha1.ConditionSnapshotWritten); got != "True SnapshotWritten" {
				t.Errorf("after it was gone, SnapshotWritten is %s", got)
			}
		})
	}
}

func TestAConfigMapThatIsRefusedDoesNotKeepTheRestFromWorking(t *testing.T) {
	w := newSnapshotWorld(t)
	w.configErr = errors.New("exceeded quota")
	w.has(snapshotted("login", 5))
	after := w.pass(t)
	w.rowHas(t, "login")
	if got := w.condition(v1alpha1.ConditionSnapshotWritten); got != "False SnapshotFailed" {
		t.Errorf("SnapshotWritten is %s", got)
	}
	if after > 6*time.Second {
		t.Errorf("it is tried again after %v, want 5 s", after)
	}
	w.configErr = nil
	w.pass(t)
	w.snapshot(t)
}

// A count that changes often is written every 5 s; a rise, and a row, at once.
func TestSnapshotHold(t *testing.T) {
	row := rowAt(3, snapshotted("login", 5))
	counted := func(n, ready int) *policy.Replicas { return &policy.Replicas{N: n, Ready: ready} }
	cases := map[string]struct {
		plan snapshotPlan
		ago  time.Duration
		want time.Duration
	}{
		"another detail of the count": {snapshotPlan{row: *row, replicas: counted(3, 2)}, time.Second, 4 * time.Second},
		"later":                       {snapshotPlan{row: *row, replicas: counted(3, 2)}, 5 * time.Second, 0},
		"a fall":                      {snapshotPlan{row: *row, replicas: counted(2, 2)}, time.Second, 4 * time.Second},
		"a rise":                      {snapshotPlan{row: *row, replicas: counted(4, 3)}, time.Second, 0},
		"a row":                       {snapshotPlan{row: *rowAt(4), replicas: counted(3, 2)}, time.Second, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := &input{
				now: testTime, snapshot: snapshotView{row: row, replicas: counted(3, 3)},
				memory: &memory{snapshotWritten: testTime.Add(-c.ago)},
			}
			if got := snapshotHold(in, &c.plan); got != c.want {
				t.Errorf("held for %v, want %v", got, c.want)
			}
		})
	}
}

// Without a table everything goes by the ConfigMap, to the end.
func TestAControllerWithoutATable(t *testing.T) {
	w := newSnapshotWorld(t)
	w.Reconciler.table = nil
	w.has(snapshotted("login", 5), limit("export", 7))
	w.pass(t)
	row, replicas := w.snapshot(t)
	if len(row.Policies) != 2 || replicas.N != 3 {
		t.Errorf("the snapshot has policies %+v and N = %d", row.Policies, replicas.N)
	}
	for condition, want := range map[v1alpha1.ConditionType]string{
		v1alpha1.ConditionProgrammed: "True Programmed",
		v1alpha1.ConditionEnforced:   "Unknown NoTable",
		v1alpha1.ConditionReady:      "True Ready",
	} {
		if got := w.condition(condition); got != want {
			t.Errorf("%s is %s, want %s", condition, got, want)
		}
	}
	if len(w.table.written) > 0 {
		t.Error("the table was written to")
	}

	w.has()
	w.pass(t)
	last, _ := w.snapshot(t)
	if len(last.Rules) > 0 || last.Revision.Compare(row.Revision) <= 0 {
		t.Errorf("the tombstone is %+v", last)
	}
	if _, err := time.Parse(time.RFC3339, w.configMap.Annotations[unusedAnnotation]); err != nil {
		t.Error(err)
	}
	for range 25 { // hours
		w.pass(t)
	}
	if w.configMap != nil {
		t.Error("it is still there after a day")
	}
	w.pass(t)
	if known := len(w.memories.ofWorkload); known > 0 {
		t.Errorf("%d workloads are remembered", known)
	}
}

// Nobody loses limits because a cache was behind, in a snapshot either.
func TestTheSnapshotLosesPoliciesOnlyOnTheLiveListsWord(t *testing.T) {
	w := newSnapshotWorld(t)
	w.Reconciler.table = nil
	w.has(snapshotted("login", 5))
	w.pass(t)
	w.cached = policies{}
	w.pass(t)
	if row, _ := w.snapshot(t); len(row.Rules) != 1 {
		t.Errorf("a cache without policies left %d rules", len(row.Rules))
	}
}
