package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-dev/weir/hack/dev/process"
)

const (
	nodeName  = "fake"
	namespace = metav1.NamespaceDefault
)

func (c *Cluster) client() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	return client, nil
}

// apiServerReady also waits for the default namespace, which the API server creates after it says that it is ready.
func (c *Cluster) apiServerReady(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return err
	}
	_, err = client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	return err
}

// createNode creates a node that kwok takes for its own. The sizes are beyond what any test asks for.
func (c *Cluster) createNode(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	sizes := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("1k"),
		corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods:   resource.MustParse("10k"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        nodeName,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels:      map[string]string{corev1.LabelHostname: nodeName},
		},
		Status: corev1.NodeStatus{Capacity: sizes, Allocatable: sizes},
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the node: %w", err)
	}
	return nil
}

func (c *Cluster) nodeReady(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("the node is not ready")
}

// tryDeployment runs a Deployment of one replica until it is available and removes it again: only then have all
// controllers, the scheduler and the node shown that they work.
func (c *Cluster) tryDeployment(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	labels := map[string]string{"weir.dev/trial": "true"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "trial", Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"fake.weir.dev/end-after": "0s"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "trial", Image: "trial"}}},
			},
		},
	}
	deployments := client.AppsV1().Deployments(namespace)
	if _, err := deployments.Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a trial deployment: %w", err)
	}
	if err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		got, err := deployments.Get(ctx, deployment.Name, metav1.GetOptions{})
		if err == nil && got.Status.AvailableReplicas == 0 {
			err = fmt.Errorf("the trial deployment is not available: %d pods, %d ready", got.Status.Replicas, got.Status.ReadyReplicas)
		}
		return err
	}); err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground // it is gone when its pod is
	if err := deployments.Delete(ctx, deployment.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return fmt.Errorf("deleting the trial deployment: %w", err)
	}
	return process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		_, err := deployments.Get(ctx, deployment.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("the trial deployment is still being deleted")
	})
}
