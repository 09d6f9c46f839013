package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// world is everything around a reconciler: what its caches and the API server hold, and the table.
type world struct {
	cached, live policies
	deployment   *appsv1.Deployment
	configMap    *corev1.ConfigMap // in cache and API server
	configErr    error             // of the next change of it
	configWrites int
	table        *memoryTable
	statuses     int
	statusErr    map[string]error // of writing a status, by the policy's name
	events       int
	now          time.Time
	*Reconciler
}

// policies are what a list returns, or why it fails.
type policies struct {
	items []v1alpha1.RateLimitPolicy
	err   error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	m, err := newMetrics(nil, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{table: &memoryTable{owner: ours}, now: testTime}
	w.Reconciler = &Reconciler{
		client:     &cachedClient{world: w},
		live:       liveReader{w},
		recorder:   eventCounter{w},
		table:      w.table,
		leadership: &Leadership{installation: ours, epoch: "50"},
		owner: &ownership{
			table: w.table, installation: ours, metrics: m, log: logr.Discard(), clock: func() time.Time { return w.now },
		},
		metrics: m,
		listed:  &listed{},
		resync:  defaultResync,
	}
	return w
}

// has makes cache and API server agree on the policies.
func (w *world) has(items ...v1alpha1.RateLimitPolicy) {
	w.cached, w.live = policies{items: items}, policies{items: items}
}

// pass reconciles, an hour after the last time: once, and once more for the statuses behind a row that was written.
func (w *world) pass(t *testing.T) (requeueAfter time.Duration) {
	t.Helper()
	w.now = w.now.Add(time.Hour)
	for {
		result, err := w.reconcile(t.Context(), checkout, w.now)
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter != behindOthers().RequeueAfter {
			return result.RequeueAfter
		}
	}
}

func (w *world) rowHas(t *testing.T, names ...string) {
	t.Helper()
	var have []string
	if w.table.row != nil {
		for _, p := range w.table.row.Policies {
			have = append(have, p.Name)
		}
	}
	if diff := cmp.Diff(names, have); diff != "" {
		t.Errorf("policies in the row (-want +got):\n%s", diff)
	}
}

type cachedClient struct {
	client.Client
	world *world
}

func (c *cachedClient) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return c.world.cached.list(list)
}

func (c *cachedClient) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if into, ok := object.(*corev1.ConfigMap); ok {
		if c.world.configMap == nil || c.world.configMap.Labels[snapshotLabel] == "" {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
		}
		c.world.configMap.DeepCopyInto(into)
		return nil
	}
	d, ok := object.(*appsv1.Deployment)
	if !ok || c.world.deployment == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, key.Name)
	}
	c.world.deployment.DeepCopyInto(d)
	return nil
}

func (c *cachedClient) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	return c.world.writeConfigMap(object)
}

func (c *cachedClient) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	return c.world.writeConfigMap(object)
}

func (c *cachedClient) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	c.world.configWrites++
	c.world.configMap = nil
	return c.world.configErr
}

func (w *world) writeConfigMap(object client.Object) error {
	written, ok := object.(*corev1.ConfigMap)
	if !ok {
		return errors.New("only ConfigMaps are written whole")
	}
	w.configWrites++
	if err := w.configErr; err != nil {
		return err
	}
	w.configMap = written.DeepCopy()
	return nil
}

func (c *cachedClient) Status() client.SubResourceWriter { return statusWriter{world: c.world} }

func (p policies) list(list client.ObjectList) error {
	into, ok := list.(*v1alpha1.RateLimitPolicyList)
	if !ok || p.err != nil {
		return p.err
	}
	into.ResourceVersion = "1000"
	for i := range p.items {
		into.Items = append(into.Items, *p.items[i].DeepCopy())
	}
	return nil
}

type liveReader struct{ world *world }

func (r liveReader) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	into, ok := object.(*corev1.ConfigMap)
	if !ok {
		return errors.New("nothing is read live but lists and ConfigMaps")
	}
	if r.world.configMap == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
	}
	r.world.configMap.DeepCopyInto(into)
	return nil
}

func (r liveReader) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return r.world.live.list(list)
}

// statusWriter writes through to the cache, as a watch would soon.
type statusWriter struct {
	client.SubResourceWriter
	world *world
}

func (s statusWriter) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	written, ok := object.(*v1alpha1.RateLimitPolicy)
	if !ok {
		return errors.New("only policies have a status")
	}
	if err := s.world.statusErr[written.Name]; err != nil {
		return err
	}
	s.world.statuses++
	for i := range s.world.cached.items {
		if s.world.cached.items[i].UID == written.UID {
			s.world.cached.items[i].Status = written.Status
		}
	}
	return nil
}

type eventCounter struct{ world *world }

func (r eventCounter) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) { r.world.events++ }

func (r eventCounter) AnnotatedEventf(_, _ runtime.Object, _ map[string]string, _, _, _, _ string, _ ...any) {
	r.world.events++
}

// memoryTable is a table without fences; refusals are what it answers to the next writes of rows.
type memoryTable struct {
	evicts    string
	owner     string
	err       error
	lost      error // of the answer to the next write of a row
	row       *policy.Row
	body      []byte // what stands in the row's place instead
	replicas  *policy.Replicas
	members   []policy.Report
	version   int64    // of the members
	repaired  []string // what reads say
	fault     error    // of reads, over the keys of the workload
	refusals  []policy.Refusal
	written   []policy.Row
	counted   int
	forgotten int
}

func (m *memoryTable) Claim(context.Context, string) (string, error) { return m.owner, m.err }

func (m *memoryTable) Evicts(context.Context) (string, error) { return m.evicts, nil }

func (m *memoryTable) Read(context.Context, policy.Workload) (policy.Published, []string, error) {
	published := policy.Published{Replicas: m.replicas, Members: m.members, MembersVersion: m.version}
	if m.row != nil {
		body, err := policy.EncodeRow(*m.row)
		if err != nil {
			return policy.Published{}, nil, err
		}
		published.Row = body
	}
	if m.body != nil {
		published.Row = m.body
	}
	return published, m.repaired, errors.Join(m.err, m.fault)
}

func (m *memoryTable) Publish(_ context.Context, _ policy.Workload, row policy.Row) (policy.Refusal, error) {
	if m.err != nil {
		return policy.Accepted, m.err
	}
	m.written = append(m.written, row)
	if err := m.lost; err != nil {
		m.lost = nil
		return policy.Accepted, err
	}
	if len(m.refusals) > 0 {
		refusal := m.refusals[0]
		m.refusals = m.refusals[1:]
		return refusal, nil
	}
	m.row, m.body = &row, nil
	return policy.Accepted, nil
}

func (m *memoryTable) PublishReplicas(_ context.Context, _ policy.Workload, _ string, replicas policy.Replicas) (policy.Refusal, error) {
	m.counted++
	m.replicas = &replicas
	return policy.Accepted, m.err
}

func (m *memoryTable) Workloads(context.Context) ([]policy.Workload, error) { return nil, m.err }

func (m *memoryTable) Forget(context.Context, policy.Workload) error {
	m.forgotten++
	return m.err
}

func (m *memoryTable) Listen(context.Context, func(*policy.Workload)) error { return m.err }

func TestReconcileWritesOnceAndThenNothing(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.pass(t)
	w.rowHas(t, "login")
	for range 3 {
		w.pass(t)
	}
	if rows, counts, statuses := len(w.table.written), w.table.counted, w.statuses; rows != 1 || counts != 1 || statuses != 1 {
		t.Errorf("%d rows, %d counts and %d statuses written, want one each", rows, counts, statuses)
	}
}

func TestAFailedListNeverReadsAsNoPolicies(t *testing.T) {
	broken := errors.New("the API server does not answer")
	w := newWorld(t)
	w.has(limit("export", 5), limit("login", 5))
	w.pass(t)

	w.cached.err = broken
	if _, err := w.reconcile(t.Context(), checkout, w.now); !errors.Is(err, broken) {
		t.Errorf("a failed list of the cache: got %v", err)
	}
	w.rowHas(t, "export", "login")

	w.cached, w.live.err = policies{}, broken
	if _, err := w.reconcile(t.Context(), checkout, w.now); !errors.Is(err, broken) {
		t.Errorf("a failed list before limits are removed: got %v", err)
	}
	w.rowHas(t, "export", "login")
}

func TestACacheThatIsBehindRemovesNoLimits(t *testing.T) {
	export, login := limit("export", 5), limit("login", 5)
	w := newWorld(t)
	w.has(export, login)
	w.pass(t)
	w.cached.items = []v1alpha1.RateLimitPolicy{export}
	w.pass(t)
	w.rowHas(t, "export", "login")
	if rows := len(w.table.written); rows != 1 {
		t.Errorf("%d rows written, want 1", rows)
	}
}

func TestTheLastPolicyLeavesATombstoneThatIsForgottenWhenItExpires(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.pass(t)
	w.has()
	w.pass(t)
	if w.table.row == nil || len(w.table.row.Rules) > 0 || w.table.row.PolicyList != "1000" {
		t.Fatalf("the row is %+v, want a tombstone of the live list", w.table.row)
	}
	if after := w.pass(t); len(w.table.written) != 2 || after < 50*time.Minute {
		t.Errorf("%d rows written, next look after %v; want 2 and about an hour", len(w.table.written), after)
	}
	w.table.row = nil
	if after := w.pass(t); w.table.forgotten != 1 || after != 0 {
		t.Errorf("forgotten %d times, next look after %v; want once and never", w.table.forgotten, after)
	}
}

func TestARowThatWasLostBeforeItsTombstoneIsStillEnded(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.pass(t)
	w.table.row, w.table.replicas = nil, nil // flushed
	w.has()
	w.pass(t)
	if w.table.row == nil || len(w.table.row.Rules) > 0 {
		t.Errorf("the row is %+v, want a tombstone: enforcers still have limits", w.table.row)
	}
}

func TestAPolicyThatIsBeingDeletedIsGone(t *testing.T) {
	w := newWorld(t)
	login := limit("login", 5)
	w.has(login, limit("export", 5))
	w.pass(t)
	login.DeletionTimestamp = &login.CreationTimestamp
	login.Finalizers = []string{"somebody.else/waits"}
	w.has(login, limit("export", 5))
	w.pass(t)
	w.rowHas(t, "export")
}

func TestARefusedStaleRowIsCompiledFromTheLiveList(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.live.items = []v1alpha1.RateLimitPolicy{limit("login", 6)}
	w.table.refusals = []policy.Refusal{policy.RefusedStale, policy.RefusedStale}
	w.pass(t)
	var lists []string
	for _, row := range w.table.written {
		lists = append(lists, row.PolicyList)
	}
	if diff := cmp.Diff([]string{"100", "1000", ""}, lists); diff != "" {
		t.Errorf("lists that rows were compiled from: the cache's, the live one, the live one at its word (-want +got):\n%s", diff)
	}
	if got := w.table.row.Rules[0].Limits[0].Requests; got != 6 {
		t.Errorf("the row limits to %d, want the live list's 6", got)
	}
}

func TestAFailingTableIsTriedAgainSoonAndRestsInBetween(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.table.err = errors.New("connection refused")
	if after := w.pass(t); after > 6*time.Second {
		t.Errorf("next look after %v, want about %v", after, retryTable)
	}
	w.table.err = nil
	if _, err := w.reconcile(t.Context(), checkout, w.now.Add(time.Second)); err != nil || len(w.table.written) > 0 {
		t.Errorf("%d rows written (%v) while the table rests", len(w.table.written), err)
	}
	w.owner.back() // its connection came back
	if _, err := w.reconcile(t.Context(), checkout, w.now.Add(time.Second)); err != nil || len(w.table.written) != 1 {
		t.Errorf("%d rows written (%v), want one at once", len(w.table.written), err)
	}
}

// keysFault is an error over the keys of one workload.
type keysFault struct{ error }

func (keysFault) OfWorkload() bool { return true }

func valueOf(t *testing.T, series prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(series)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(families, err)
	}
	m := families[0].GetMetric()[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func TestAFaultOfOneWorkloadIsNoOutage(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.pass(t)
	w.has(limit("login", 6))
	w.table.fault = fmt.Errorf("script: %w", keysFault{errors.New("ERR over its keys")})
	var waits []time.Duration
	for range 4 {
		waits = append(waits, w.pass(t).Round(time.Second))
	}
	if waits[0] > 6*time.Second || waits[1] < 9*time.Second || waits[3] < 20*time.Second {
		t.Errorf("looks again after %v, want about 5 s, 10 s, 20 s and the resync", waits)
	}
	if state, _ := w.owner.check(t.Context(), "50"); state != tableOurs || valueOf(t, w.metrics.tableUp) != 1 {
		t.Errorf("the table is in state %v for the others, want it ours and up", state)
	}
	if failures, faults := valueOf(t, w.metrics.tableFailures), valueOf(t, w.metrics.tableFaults); failures != 0 || faults != 4 {
		t.Errorf("%v failures and %v faults are counted, want 0 and 4", failures, faults)
	}
	c := findCondition(w.cached.items[0].Status.Conditions, v1alpha1.ConditionEnforced)
	if c == nil || c.Reason != string(v1alpha1.ReasonTableFault) || !strings.Contains(c.Message, "ERR over its keys") {
		t.Errorf("the status says %+v", c)
	}

	w.table.fault = nil
	w.pass(t)
	if got := w.table.row.Rules[0].Limits[0].Requests; got != 6 || w.Reconciler.memories.of(checkout).faults != 0 {
		t.Errorf("the row limits to %d, want the edited 6, and no fault is left", got)
	}
	w.table.fault = keysFault{errors.New("again")}
	if after := w.pass(t); after > 6*time.Second {
		t.Errorf("the next fault is tried again after %v, want about %v", after, retryTable)
	}
}

func TestRepairsAreCountedAndToldOnceAMinute(t *testing.T) {
	w := newWorld(t)
	told := 0
	ctx := log.IntoContext(t.Context(), funcr.New(func(_, args string) {
		if strings.Contains(args, "Deleted keys of the workload") {
			told++
		}
	}, funcr.Options{}))
	w.has(limit("login", 5))
	w.table.repaired = []string{"members", "row"}
	for range 3 {
		w.now = w.now.Add(30 * time.Second)
		if _, err := w.reconcile(ctx, checkout, w.now); err != nil {
			t.Fatal(err)
		}
	}
	if counted := valueOf(t, w.metrics.repairs.WithLabelValues("members")); counted != 3 || told != 2 {
		t.Errorf("%v repairs counted and %d told, want 3 and 2", counted, told)
	}
}

func TestNothingIsWrittenToATableOfAnotherInstallation(t *testing.T) {
	w := newWorld(t)
	w.table.owner = "installation-2"
	w.has(limit("login", 5))
	if after := w.pass(t); after > 11*time.Second {
		t.Errorf("next look after %v, want about %v", after, askEvery)
	}
	if len(w.table.written)+w.table.counted > 0 {
		t.Errorf("%d rows and %d counts written", len(w.table.written), w.table.counted)
	}
	w.table.owner = ours // the other one was silent for five minutes
	w.pass(t)
	w.rowHas(t, "login")
}

func TestTheCountIsWrittenAtMostOnceASecond(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))}}
	w.pass(t)
	for _, c := range []struct {
		after  time.Duration
		wants  int32
		counts int
	}{
		{300 * time.Millisecond, 5, 1}, // too soon after the first
		{900 * time.Millisecond, 6, 1},
		{time.Second, 6, 2},
	} {
		w.deployment.Spec.Replicas = &c.wants
		result, err := w.reconcile(t.Context(), checkout, w.now.Add(c.after))
		if err != nil || w.table.counted != c.counts {
			t.Errorf("after %v: %d counts written (%v), want %d", c.after, w.table.counted, err, c.counts)
		}
		if c.counts == 1 && result.RequeueAfter != time.Second-c.after {
			t.Errorf("after %v: next look after %v, want when the second is over", c.after, result.RequeueAfter)
		}
	}
	if got := w.table.replicas.N; got != 6 {
		t.Errorf("N = %d, want 6", got)
	}
}

// The answer to a write was lost. It may have been written, so its revision must not be used for another body.
func TestARevisionIsUsedOnce(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.table.lost = errors.New("the connection was lost")
	w.pass(t)
	w.has(limit("login", 6))
	w.pass(t)
	if len(w.table.written) != 2 || w.table.written[1].Revision.Compare(w.table.written[0].Revision) <= 0 {
		t.Errorf("rows written: %+v, want two with rising revisions", w.table.written)
	}
}

func TestAStoreThatMayDropRowsIsNamedInTheStatus(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "d"}}
	w.table.evicts = "allkeys-lru"
	w.pass(t)
	for _, condition := range []v1alpha1.ConditionType{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
		c := findCondition(w.cached.items[0].Status.Conditions, condition)
		if c == nil || !strings.Contains(c.Message, "maxmemory-policy is allkeys-lru") {
			t.Errorf("%s is %+v", condition, c)
		}
	}
}

// A workload with many policies lets others, and its own next edit, have their turn between its statuses.
func TestAPassLeavesStatusesToTheNext(t *testing.T) {
	w := newWorld(t)
	var policies []v1alpha1.RateLimitPolicy
	for n := range 2*statusesPerPass + 3 {
		policies = append(policies, limit(fmt.Sprintf("policy-%02d", n), 5))
	}
	w.has(policies...)
	for pass, want := range []int{0, statusesPerPass, 2 * statusesPerPass, len(policies)} {
		result, err := w.reconcile(t.Context(), checkout, w.now)
		if err != nil || w.statuses != want {
			t.Errorf("pass %d: %d statuses written (%v), want %d", pass, w.statuses, err, want)
		}
		if more := result == behindOthers(); more != (want < len(policies)) {
			t.Errorf("pass %d: next look after %v", pass, result)
		}
	}
}

// The first statuses go before second ones, which come due when the first ones take long.
func TestFirstStatusesGoFirst(t *testing.T) {
	w := newWorld(t)
	var policies []v1alpha1.RateLimitPolicy
	for n := range statusesPerPass + 2 {
		policies = append(policies, limit(fmt.Sprintf("policy-%02d", n), 5))
	}
	w.has(policies...)
	w.deployment = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{UID: "d"}, Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, ReadyReplicas: 1},
	}
	for range 3 { // the row, then most of the statuses, and later, when those that were written tell of pods that do not report
		if _, err := w.reconcile(t.Context(), checkout, w.now); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(2 * settleTime)
	}
	for _, p := range w.cached.items {
		if len(p.Status.Conditions) == 0 {
			t.Errorf("%s has no status", p.Name)
		}
	}
}

func TestAStatusThatIsRefusedKeepsNoOtherFromBeingWritten(t *testing.T) {
	refused := errors.New("an admission policy denied the request")
	w := newWorld(t)
	w.has(limit("export", 5), limit("login", 5))
	w.statusErr = map[string]error{"export": refused}
	if _, err := w.reconcile(t.Context(), checkout, w.now); err != nil {
		t.Fatal(err)
	}
	if _, err := w.reconcile(t.Context(), checkout, w.now); !errors.Is(err, refused) {
		t.Errorf("got %v, want the refusal", err)
	}
	if w.statuses != 1 || len(w.cached.items[1].Status.Conditions) == 0 {
		t.Errorf("%d statuses written, want that of login", w.statuses)
	}
}

// What makes the count fall must not wait behind everybody's statuses, even if a status of this workload comes due earlier.
func TestLookingAgainIsUrgentWhilePodsWaitForIt(t *testing.T) {
	w := newWorld(t)
	w.has(limit("login", 5))
	w.deployment = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, ReadyReplicas: 3},
	}
	look := func(after time.Duration) (time.Duration, int) {
		w.now = w.now.Add(after)
		for {
			result, err := w.reconcile(t.Context(), checkout, w.now)
			if err != nil {
				t.Fatal(err)
			}
			if result != behindOthers() {
				return result.RequeueAfter, *result.Priority
			}
		}
	}
	if after, priority := look(0); after != settleTime || priority != lookPriority {
		t.Errorf("for the status: next look after %v with priority %d, want %v and %d", after, priority, settleTime, lookPriority)
	}
	w.deployment.Status.ReadyReplicas = 2
	if after, priority := look(5 * time.Second); after != 10*time.Second || priority != 0 {
		t.Errorf("for the status, and 20 s later for the count: next look after %v with priority %d, want 10 s and 0", after, priority)
	}
}
