package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// snapshotSetting is an installation with the component snapshot, without a Redis yet.
func snapshotSetting(t *testing.T, redisAddress string) (*installation, *workload) {
	t.Helper()
	t.Parallel()
	c := kube.APIServer(t)
	i := install(t, c, "snapshot")
	namespace := createNamespace(t, c, "shop")
	i.looksAfter = []string{namespace}
	return i, newWorkload(t, c, namespace, redisAddress, i.namespace)
}

// snapshotted creates a policy that asks for a snapshot.
func (w *workload) snapshotted(name string, requests int64) *v1alpha1.RateLimitPolicy {
	w.t.Helper()
	p := &v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec: v1alpha1.RateLimitPolicySpec{
			TargetRef: v1alpha1.TargetRef{Group: "apps", Kind: "Deployment", Name: w.Name},
			Snapshot:  v1alpha1.SnapshotConfigMap,
			Rules:     []v1alpha1.Rule{{Name: "all", Limits: []v1alpha1.Limit{{Requests: &requests, Window: "1m"}}}},
		},
	}
	if err := w.admin.Create(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// configMap is the workload's, nil when there is none.
func (w *workload) configMap(ctx context.Context) (*corev1.ConfigMap, error) {
	var found corev1.ConfigMap
	err := w.admin.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: policy.SnapshotName(w.Name)}, &found)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return &found, err
}

// waitSnapshot waits for a ConfigMap whose content satisfies the condition.
func (w *workload) waitSnapshot(condition func(policy.Row, policy.Replicas) error) *corev1.ConfigMap {
	w.t.Helper()
	var found *corev1.ConfigMap
	eventually(w.t, func(ctx context.Context) error {
		object, err := w.configMap(ctx)
		if err != nil || object == nil {
			return errors.Join(errors.New("there is no ConfigMap"), err)
		}
		found = object
		row, replicas, err := contentOf(object, w.Workload)
		if err != nil {
			return err
		}
		return condition(row, replicas)
	})
	return found
}

func contentOf(object *corev1.ConfigMap, w policy.Workload) (row policy.Row, replicas policy.Replicas, err error) {
	snapshot, err := policy.DecodeSnapshot([]byte(object.Data["row.json"]), w.String())
	if err != nil {
		return row, replicas, err
	}
	if row, _, err = policy.DecodeRow(snapshot.Row); err != nil || snapshot.Replicas == nil {
		return row, replicas, err
	}
	replicas, err = policy.DecodeReplicas(snapshot.Replicas)
	return row, replicas, err
}

// holds is satisfied by a snapshot of one policy in this generation, and this count.
func holds(generation int64, n int) func(policy.Row, policy.Replicas) error {
	return func(row policy.Row, replicas policy.Replicas) error {
		if len(row.Policies) != 1 || row.Policies[0].Generation != generation || replicas.N != n {
			return fmt.Errorf("it has %+v and N = %d, want generation %d and %d", row.Policies, replicas.N, generation, n)
		}
		return nil
	}
}

// The snapshot follows the table, edits and scaling while Redis is away, and the table when it is back; revisions rise.
func TestTheSnapshotGoesOnWithoutRedis(t *testing.T) {
	redis := env.Redis(t, env.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	i, w := snapshotSetting(t, redis.Addr)
	d := w.deploy(3)
	i.start(redis.Addr, "--snapshots", "--resync=2s")
	p := w.snapshotted("login", 5)
	object := w.waitSnapshot(holds(p.Generation, 3))
	w.waitCondition("login", v1alpha1.ConditionSnapshotWritten, metav1.ConditionTrue, v1alpha1.ReasonSnapshotWritten)
	row, _, err := w.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := contentOf(object, w.Workload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(row, before); diff != "" {
		t.Errorf("the row in the ConfigMap (-table +snapshot):\n%s", diff)
	}
	want := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: w.Name, UID: d.UID}}
	if diff := cmp.Diff(want, object.OwnerReferences); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}

	redis.Kill()
	generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(6)) })
	during, _, err := contentOf(w.waitSnapshot(holds(generation, 3)), w.Workload)
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Replicas = new(int32(10))
	if err := w.admin.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.waitSnapshot(holds(generation, 10))
	t.Logf("10 replicas were in the ConfigMap %v after the API write", time.Since(began))
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonStoreUnreachable)

	redis.Start() // with the row of before
	after := w.waitRow(func(row policy.Row) error {
		if got := row.Policies[0].Generation; got != generation {
			return fmt.Errorf("the row has generation %d, want %d", got, generation)
		}
		return nil
	})
	w.waitReplicas(10)
	w.waitSnapshot(func(row policy.Row, _ policy.Replicas) error {
		if row.Revision != after.Revision {
			return fmt.Errorf("revision %v, want the table's %v", row.Revision, after.Revision)
		}
		return nil
	})
	if before.Revision.Compare(during.Revision) >= 0 || during.Revision.Compare(after.Revision) >= 0 {
		t.Errorf("revisions %v, %v, %v do not rise", before.Revision, during.Revision, after.Revision)
	}
}

// A controller that has never seen Redis writes the snapshot all the same.
func TestTheSnapshotIsWrittenByAControllerThatStartsInAnOutage(t *testing.T) {
	i, w := snapshotSetting(t, "127.0.0.1:1")
	w.deploy(2)
	p := w.snapshotted("login", 5)
	i.start("127.0.0.1:1", "--snapshots")
	w.waitSnapshot(holds(p.Generation, 2))
	w.waitCondition("login", v1alpha1.ConditionSnapshotWritten, metav1.ConditionTrue, v1alpha1.ReasonSnapshotWritten)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonStoreUnreachable)
}

// Without Redis at all, from the first policy to the last.
func TestAControllerWithoutRedis(t *testing.T) {
	i, w := snapshotSetting(t, "")
	w.deploy(3)
	m := i.start("", "--snapshots", "--resync=1s")
	first := w.snapshotted("login", 5)
	w.waitSnapshot(holds(first.Generation, 3))
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNoTable)
	p := w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if p.Status.Revision == "" || p.Status.Replicas == nil || p.Status.Replicas.Counted != 3 {
		t.Errorf("status %+v", p.Status)
	}

	settleSnapshots(t, m)
	object, err := w.configMap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := m.passes()
	eventually(t, func(context.Context) error { // an idle workload is looked at, and nothing is written
		if m.passes() < began+5 {
			return errors.New("the workload was not looked at often enough")
		}
		return nil
	})
	again, err := w.configMap(t.Context())
	if err != nil || again.ResourceVersion != object.ResourceVersion {
		t.Errorf("the ConfigMap was written although nothing changed: %v", err)
	}

	w.remove(object) // somebody deletes it
	w.waitSnapshot(holds(first.Generation, 3))
	w.remove(first)
	w.waitSnapshot(func(row policy.Row, _ policy.Replicas) error { return tombstone(row) })

	w.limit("other", 5) // asks for none
	p = w.waitCondition("other", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	if find(p, v1alpha1.ConditionSnapshotWritten).Type != "" {
		t.Error("a policy that asks for no snapshot has the condition SnapshotWritten")
	}
}

// settleSnapshots waits until two seconds have passed without a write.
func settleSnapshots(t *testing.T, m *manager) {
	t.Helper()
	writes := func() float64 {
		return m.metric("weir_controller_snapshot_writes_total") + m.metric("weir_controller_status_writes_total")
	}
	last, since := writes(), time.Now()
	eventually(t, func(context.Context) error {
		if now := writes(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("the last of %v writes was %v ago", last, time.Since(since))
		}
		return nil
	})
}

// Nobody else's ConfigMap is touched; the condition and an event say so, and its end is noticed.
func TestAForeignConfigMapOfThatName(t *testing.T) {
	redis := env.Redis(t, env.RedisOptions{})
	i, w := snapshotSetting(t, redis.Addr)
	w.deploy(1)
	foreign := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "weir-checkout"}, Data: map[string]string{"mine": "yes"},
	}
	if err := w.admin.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	i.start(redis.Addr, "--snapshots", "--resync=1s")
	p := w.snapshotted("login", 5)
	w.waitCondition("login", v1alpha1.ConditionSnapshotWritten, metav1.ConditionFalse, v1alpha1.ReasonConfigMapTaken)
	eventually(t, func(ctx context.Context) error {
		return w.told(ctx, "login", "Programmed", "ConfigMapTaken")
	})
	object, err := w.configMap(t.Context())
	if err != nil || object.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the foreign ConfigMap is %+v now (%v)", object, err)
	}

	w.remove(foreign)
	w.waitSnapshot(holds(p.Generation, 1))
	w.waitCondition("login", v1alpha1.ConditionSnapshotWritten, metav1.ConditionTrue, v1alpha1.ReasonSnapshotWritten)
}

// With a table, the ConfigMap goes when the last policy that asked asks no more.
func TestASnapshotThatNobodyAsksForAnyMoreGoes(t *testing.T) {
	redis := env.Redis(t, env.RedisOptions{})
	i, w := snapshotSetting(t, redis.Addr)
	w.deploy(1)
	i.start(redis.Addr, "--snapshots")
	p := w.snapshotted("login", 5)
	w.waitSnapshot(holds(p.Generation, 1))
	w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Snapshot = v1alpha1.SnapshotNone })
	eventually(t, func(ctx context.Context) error {
		object, err := w.configMap(ctx)
		if object != nil {
			return errors.New("the ConfigMap is still there")
		}
		return err
	})
	eventually(t, func(context.Context) error {
		if c := find(w.policy("login"), v1alpha1.ConditionSnapshotWritten); c.Type != "" {
			return fmt.Errorf("the condition is still %+v", c)
		}
		return nil
	})
}

// The longest name that a Deployment can have.
func TestASnapshotOfALongName(t *testing.T) {
	i, w := snapshotSetting(t, "")
	w.Name = strings.Repeat("checkout.", 28) + "a"
	labels := map[string]string{"app": "long"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
			},
		},
	}
	if err := w.admin.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	i.start("", "--snapshots")
	p := w.snapshotted("login", 5)
	w.waitSnapshot(holds(p.Generation, 2))
}

// The default installation says that it makes none.
func TestASnapshotThatNobodyMakes(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	i.start(redis.Addr)
	w.snapshotted("login", 5)
	w.waitCondition("login", v1alpha1.ConditionSnapshotWritten, metav1.ConditionFalse, v1alpha1.ReasonSnapshotsDisabled)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// With --snapshots and without the component the controller is not ready, and says what it lacks.
func TestSnapshotsWithoutTheRight(t *testing.T) {
	i, redis, _ := setting(t)
	m := i.launch(redis.Addr, "--snapshots")
	eventually(t, func(context.Context) error {
		if !strings.Contains(m.logged(), `cannot list resource \"configmaps\"`) {
			return errors.New("the log does not say what is missing")
		}
		return nil
	})
	if err := m.ready(t.Context()); err == nil {
		t.Error("it is ready although it cannot list ConfigMaps")
	}
}

// A ConfigMap takes the largest snapshot, made of nothing but what JSON has to escape.
func TestTheLargestSnapshotIsAdmitted(t *testing.T) {
	c := kube.APIServer(t)
	namespace := createNamespace(t, c, "shop")
	row := `"` + strings.Repeat(`\"`, policy.MaxRowBytes/2-1) + `"`
	data, err := policy.EncodeSnapshot(policy.Snapshot{Row: []byte(row), Replicas: []byte(`"` + strings.Repeat("x", 4094) + `"`)})
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weir-largest"}, Data: map[string]string{"row.json": string(data)},
	}
	if err := administrator(t, c).Create(t.Context(), object); err != nil {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

// The component for applications fits the sample, and its pods are admitted.
func TestTheMountFitsTheSample(t *testing.T) {
	c := kube.APIServer(t)
	d := deploymentIn(t, render(t, c, "resources: [CONFIG/samples]", "components: [CONFIG/components/snapshot-mount]"))
	var mounted []string
	for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		mounted = append(mounted, m.Name+" "+m.MountPath)
	}
	if diff := cmp.Diff([]string{"weir-snapshot /etc/weir", "weir-cache /var/cache/weir"}, mounted); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil && (v.ConfigMap.Name != policy.SnapshotName(d.Name) || v.ConfigMap.Optional == nil || !*v.ConfigMap.Optional) {
			t.Errorf("the volume is %+v", v.ConfigMap)
		}
	}
	d.Namespace, d.ResourceVersion = createNamespace(t, c, "shop"), ""
	if err := administrator(t, c).Create(t.Context(), &d, client.DryRunAll); err != nil {
		t.Error(err)
	}
}
