package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// workload is a Deployment of a test and what surrounds it: policies, enforcers, and what the table holds.
type workload struct {
	policy.Workload
	t     *testing.T
	admin client.WithWatch
	redis redis.UniversalClient
	table string
}

// newWorkload names the workload checkout of a namespace; nothing exists yet.
func newWorkload(t *testing.T, c *cluster.Cluster, namespace, redisAddress, table string) *workload {
	t.Helper()
	r := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{redisAddress}})
	t.Cleanup(func() { _ = r.Close() })
	return &workload{
		Workload: policy.Workload{Namespace: namespace, Group: "apps", Kind: "Deployment", Name: "checkout"},
		t:        t,
		admin:    administrator(t, c),
		redis:    r,
		table:    table,
	}
}

// deploy creates the Deployment and says of it that so many replicas are ready.
func (w *workload) deploy(ready int32) *appsv1.Deployment {
	w.t.Helper()
	d := w.create(ready)
	w.report(d, appsv1.DeploymentStatus{Replicas: ready, ReadyReplicas: ready})
	return d
}

// create creates the Deployment.
func (w *workload) create(replicas int32) *appsv1.Deployment {
	w.t.Helper()
	d := w.deployment(replicas)
	if err := w.admin.Create(w.t.Context(), d); err != nil {
		w.t.Fatal(err)
	}
	return d
}

// deployment is the workload's Deployment as a user writes it.
func (w *workload) deployment(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": w.Name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
			},
		},
	}
}

// report writes the Deployment's status, as its controller would.
func (w *workload) report(d *appsv1.Deployment, status appsv1.DeploymentStatus) {
	w.t.Helper()
	status.ObservedGeneration = d.Generation
	d.Status = status
	if err := w.admin.Status().Update(w.t.Context(), d); err != nil {
		w.t.Fatal(err)
	}
}

// limit creates a policy of one rule.
func (w *workload) limit(name string, requests int64) *v1alpha1.RateLimitPolicy {
	w.t.Helper()
	p := &v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec: v1alpha1.RateLimitPolicySpec{
			TargetRef: v1alpha1.TargetRef{Group: "apps", Kind: "Deployment", Name: w.Name},
			Rules: []v1alpha1.Rule{{
				Name:   "all",
				Limits: []v1alpha1.Limit{{Requests: &requests, Window: "1m"}},
			}},
		},
	}
	if err := w.admin.Create(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// edit changes the policy login and returns its new generation.
func (w *workload) edit(change func(*v1alpha1.RateLimitPolicy)) int64 {
	w.t.Helper()
	return w.editPolicy("login", change)
}

func (w *workload) editPolicy(name string, change func(*v1alpha1.RateLimitPolicy)) int64 {
	w.t.Helper()
	p := w.policy(name)
	before := p.DeepCopy()
	change(p)
	if err := w.admin.Patch(w.t.Context(), p, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
	return p.Generation
}

func (w *workload) policy(name string) *v1alpha1.RateLimitPolicy {
	w.t.Helper()
	var p v1alpha1.RateLimitPolicy
	if err := w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: name}, &p); err != nil {
		w.t.Fatal(err)
	}
	return &p
}

func (w *workload) remove(object client.Object) {
	w.t.Helper()
	if err := w.admin.Delete(w.t.Context(), object); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

// read is what the table holds now, read without touching it.
func (w *workload) read(ctx context.Context) (row policy.Row, replicas policy.Replicas, err error) {
	state, err := redisstore.NewMember(w.redis, w.table, w.Workload).Read(ctx)
	if err != nil {
		return row, replicas, err
	}
	if state.Row == nil {
		return row, replicas, errNoRow
	}
	if row, _, err = policy.DecodeRow(state.Row); err != nil {
		return row, replicas, err
	}
	if state.Replicas != nil {
		replicas, err = policy.DecodeReplicas(state.Replicas)
	}
	return row, replicas, err
}

var errNoRow = errors.New("there is no row")

// waitRow waits for a row that satisfies the condition.
func (w *workload) waitRow(condition func(policy.Row) error) policy.Row {
	w.t.Helper()
	var found policy.Row
	eventually(w.t, func(ctx context.Context) error {
		row, _, err := w.read(ctx)
		if err != nil {
			return err
		}
		found = row
		return condition(row)
	})
	return found
}

// waitReplicas waits for a count.
func (w *workload) waitReplicas(n int) policy.Replicas {
	w.t.Helper()
	var found policy.Replicas
	eventually(w.t, func(ctx context.Context) error {
		_, replicas, err := w.read(ctx)
		if err == nil && replicas.N != n {
			err = fmt.Errorf("N = %d, want %d", replicas.N, n)
		}
		found = replicas
		return err
	})
	return found
}

// waitCondition waits until a condition of a policy's present generation has the status and the reason.
func (w *workload) waitCondition(
	name string, condition v1alpha1.ConditionType, status metav1.ConditionStatus, reason v1alpha1.ConditionReason,
) *v1alpha1.RateLimitPolicy {
	w.t.Helper()
	var found *v1alpha1.RateLimitPolicy
	eventually(w.t, func(context.Context) error {
		found = w.policy(name)
		for _, c := range found.Status.Conditions {
			if c.Type != string(condition) {
				continue
			}
			if c.ObservedGeneration == found.Generation && c.Status == status && c.Reason == string(reason) {
				return nil
			}
			return fmt.Errorf("%s is %s (%s: %s) for generation %d", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
		}
		return fmt.Errorf("no condition %s", condition)
	})
	return found
}

// hasPolicies is satisfied by a row with exactly these policies, in this order.
func hasPolicies(names ...string) func(policy.Row) error {
	return func(row policy.Row) error {
		var have []string
		for _, p := range row.Policies {
			have = append(have, p.Name)
		}
		if fmt.Sprint(have) != fmt.Sprint(names) {
			return fmt.Errorf("the row has policies %v, want %v", have, names)
		}
		return nil
	}
}

// enforcer stands for the library in one pod: it reads the row when told, and reports what it runs.
type enforcer struct {
	pod    string
	member *redisstore.Member
	mu     sync.Mutex
	report policy.Report
	rules  int
	acked  policy.Revision
}

const poll = 5 * time.Second

// enforce starts an enforcer, which ends with the test.
func (w *workload) enforce(pod string) *enforcer {
	w.t.Helper()
	e := &enforcer{
		pod:    pod,
		member: redisstore.NewMember(w.redis, w.table, w.Workload),
		report: policy.Report{Member: pod + "/1", Pod: pod, Library: "v0.0.0-test", Started: 1},
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	hints := make(chan struct{}, 1)
	running.Go(func() {
		_ = e.member.Listen(ctx, func() {
			select {
			case hints <- struct{}{}:
			default:
			}
		})
	})
	running.Go(func() {
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for {
			e.step(ctx)
			select {
			case <-ctx.Done():
				return
			case <-hints:
			case <-ticker.C:
			}
		}
	})
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return e
}

// step is one poll. What fails is tried again at the next.
func (e *enforcer) step(ctx context.Context) {
	state, err := e.member.Read(ctx)
	if err != nil {
		return
	}
	e.mu.Lock()
	if row, _, err := policy.DecodeRow(state.Row); err == nil && row.Revision.Compare(e.report.Revision) > 0 {
		e.report.Revision, e.rules = row.Revision, len(row.Rules)
	}
	report := e.report
	e.mu.Unlock()
	if _, err := e.member.Heartbeat(ctx, report, poll); err == nil {
		e.mu.Lock()
		e.acked = report.Revision
		e.mu.Unlock()
	}
	if state.Row == nil {
		_ = e.member.AskForRow(ctx)
	}
}

// enforces is the number of rules in force.
func (e *enforcer) enforces() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rules
}

// reported is the revision of the last report that the store took.
func (e *enforcer) reported() policy.Revision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.acked
}
