package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
)

func kubernetesClient(t *testing.T, c *cluster.Cluster) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func createNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "env-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

func createDeployment(t *testing.T, client kubernetes.Interface, namespace string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": "checkout"}
	if _, err := client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "checkout"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "checkout", Image: "checkout"}}},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// within waits until the condition holds and logs how long that took.
func within(t *testing.T, limit time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	if err := process.Poll(ctx, 20*time.Millisecond, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s after %.2fs", what, time.Since(began).Seconds())
}

func TestDeploymentsLiveAndPodsTerminate(t *testing.T) {
	client := kubernetesClient(t, Cluster(t))
	namespace := createNamespace(t, client)
	createDeployment(t, client, namespace, 3)
	status := func(ready, terminating int32) func(context.Context) error {
		return func(ctx context.Context) error {
			d, err := client.AppsV1().Deployments(namespace).Get(ctx, "checkout", metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got int32
			if d.Status.TerminatingReplicas != nil {
				got = *d.Status.TerminatingReplicas
			}
			if d.Status.ReadyReplicas != ready || got != terminating {
				return fmt.Errorf("%d ready and %d terminating, want %d and %d", d.Status.ReadyReplicas, got, ready, terminating)
			}
			return nil
		}
	}
	change := func(patch string) {
		t.Helper()
		if _, err := client.AppsV1().Deployments(namespace).Patch(t.Context(), "checkout", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	// Usually each takes half a second, and terminating one second more.
	within(t, 20*time.Second, "3 of 3 ready", status(3, 0))
	change(`{"spec":{"replicas":5}}`)
	within(t, 20*time.Second, "5 of 5 ready", status(5, 0))
	change(`{"spec":{"replicas":2}}`)
	within(t, 20*time.Second, "2 ready, 3 terminating", status(2, 3))
	within(t, 20*time.Second, "2 ready, none terminating", status(2, 0))
	change(`{"spec":{"template":{"metadata":{"annotations":{"fake.weir.dev/ready":"false"}}}}}`)
	within(t, 20*time.Second, "a rollout that does not become ready", func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(namespace).Get(ctx, "checkout", metav1.GetOptions{})
		if err == nil && (d.Status.UpdatedReplicas == 0 || d.Status.ReadyReplicas != 2 || d.Status.UnavailableReplicas == 0) {
			err = fmt.Errorf("%+v", d.Status)
		}
		return err
	})
	change(`{"spec":{"replicas":0}}`)
	within(t, 20*time.Second, "no pods", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
}

func TestServiceAccountHasOnlyItsOwnPermissions(t *testing.T) {
	c := Cluster(t)
	client := kubernetesClient(t, c)
	namespace := createNamespace(t, client)
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerless"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path, err := c.ServiceAccountKubeconfig(t.Context(), namespace, "powerless")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	powerless, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := powerless.Discovery().ServerVersion(); err != nil {
		t.Errorf("a ServiceAccount asks for the version: %v", err)
	}
	if _, err := powerless.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a ServiceAccount without roles lists secrets: got %v, want Forbidden", err)
	}
}

func TestAPIServerAloneKeepsTheStatusATestWrites(t *testing.T) {
	client := kubernetesClient(t, APIServer(t))
	namespace := createNamespace(t, client)
	createDeployment(t, client, namespace, 3)
	d, err := client.AppsV1().Deployments(namespace).Patch(t.Context(), "checkout", "application/merge-patch+json", []byte(`{"status":{"replicas":3,"readyReplicas":2}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if d.Status.ReadyReplicas != 2 || d.Status.ObservedGeneration != 0 {
		t.Errorf("status: got %+v, want what was written and nothing else", d.Status)
	}
	// A pod needs no ServiceAccount here.
	if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

func TestDetachedClusterIsFoundAndEnded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	options := cluster.Options{Dir: dir, APIServerOnly: true, Detached: true, Log: t.Output()}
	started, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // in case the test fails
		if _, err := cluster.Down(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	found, err := cluster.Find(dir)
	if err != nil || found == nil || found.Kubeconfig != started.Kubeconfig {
		t.Fatalf("Find: got %+v, %v; want the cluster that was started", found, err)
	}
	if _, err := kubernetesClient(t, found).Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
	if _, err := cluster.Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), "runs in "+dir+" already") {
		t.Errorf("a second start: got %v, want a refusal", err)
	}
	ended, err := cluster.Down(t.Context(), dir)
	if err != nil || !slices.Equal(ended, []string{"etcd", "kube-apiserver"}) {
		t.Errorf("Down: ended %v, %v", ended, err)
	}
	if _, err := kubernetesClient(t, found).Discovery().ServerVersion(); err == nil {
		t.Error("the API server still answers")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}
