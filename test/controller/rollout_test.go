package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// With the real Deployment controller: scaling up counts within 2 s, before the new pods serve; a rolling update counts
// the pods that surge; scaling down counts within 32 s of the last pod's end, and not before 30 s have passed.
func TestRealScalingAndARealRollout(t *testing.T) {
	t.Parallel()
	c := kube.Cluster(t)
	redis := env.Redis(t, env.RedisOptions{})
	i := install(t, c)
	w := newWorkload(t, c, createNamespace(t, c, "shop"), redis.Addr, i.namespace)
	i.looksAfter = []string{w.Namespace}
	i.start(redis.Addr)
	w.limit("login", 5)
	w.create(3)
	w.waitPods(3)
	w.waitReplicas(3)

	began := time.Now()
	w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(5)) })
	w.waitReplicas(5)
	took := time.Since(began)
	t.Logf("3 → 5 replicas were counted %v after the API write", took)
	if took > 20*time.Second {
		t.Errorf("3 → 5 replicas were counted after %v, want within 2 s (asserted at ten times that)", took)
	}
	w.waitPods(5)

	// maxSurge is 25 %, which is 2 of 5.
	w.change(func(d *appsv1.Deployment) { d.Spec.Template.Annotations = map[string]string{"rollout": "1"} })
	eventually(t, func(ctx context.Context) error {
		_, replicas, err := w.read(ctx)
		if err == nil && replicas.N < 6 {
			err = fmt.Errorf("N = %d: the pods that surge are not counted", replicas.N)
		}
		return err
	})
	w.waitRollout()

	w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(2)) })
	w.waitPods(2)
	ended := time.Now()
	w.waitFall(ended, 2)
}

// waitFall waits until n are counted, and demands that this takes 30 to 32 s since the last pod ended. Upwards it asserts
// ten times the two seconds.
func (w *workload) waitFall(ended time.Time, n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*patience)
	defer cancel()
	err := process.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		_, replicas, err := w.read(ctx)
		if err == nil && replicas.N != n {
			err = fmt.Errorf("N = %d, want %d: %+v", replicas.N, n, replicas)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	took := time.Since(ended)
	w.t.Logf("%d replicas were counted %v after the last pod's end", n, took)
	if took < 28*time.Second || took > 50*time.Second {
		w.t.Errorf("%d replicas were counted %v after the last pod's end, want 30 to 32 s", n, took)
	}
}

func (w *workload) change(change func(*appsv1.Deployment)) {
	w.t.Helper()
	var d appsv1.Deployment
	if err := w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d); err != nil {
		w.t.Fatal(err)
	}
	before := d.DeepCopy()
	change(&d)
	if err := w.admin.Patch(w.t.Context(), &d, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
}

// waitPods waits until exactly so many pods exist, all of them ready.
func (w *workload) waitPods(n int) {
	w.t.Helper()
	eventually(w.t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.admin.List(ctx, &pods, client.InNamespace(w.Namespace)); err != nil {
			return err
		}
		ready := 0
		for _, pod := range pods.Items {
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if len(pods.Items) != n || ready != n {
			return fmt.Errorf("%d pods, %d ready, want %d", len(pods.Items), ready, n)
		}
		return nil
	})
}

// waitRollout waits until the newest template runs everywhere and nothing else does.
func (w *workload) waitRollout() {
	w.t.Helper()
	eventually(w.t, func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := w.admin.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d); err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != s.UpdatedReplicas ||
			s.ReadyReplicas != s.Replicas || s.TerminatingReplicas != nil && *s.TerminatingReplicas > 0 {
			return fmt.Errorf("the rollout goes on: %+v", s)
		}
		return nil
	})
}
