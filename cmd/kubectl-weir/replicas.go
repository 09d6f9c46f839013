package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	// scrapeTimeout bounds the reading of one pod.
	scrapeTimeout = 5 * time.Second
	// maxMetrics bounds what one pod may answer.
	maxMetrics = 16 << 20
	// scrapers read at the same time.
	scrapers = 16
)

// source returns what reads all replicas.
func (o *topOptions) source(w policy.Workload) (func(context.Context) ([]replica, error), error) {
	if len(o.urls) > 0 {
		return func(context.Context) ([]replica, error) {
			var all []replica
			for _, address := range o.urls {
				all = append(all, replica{name: address, scrape: func(ctx context.Context) ([]byte, error) { return get(ctx, address) }})
			}
			return all, nil
		}, nil
	}
	api, err := o.cluster.client()
	if err != nil {
		return nil, err
	}
	config, err := o.cluster.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // one request for each pod in an interval
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return func(ctx context.Context) ([]replica, error) { return o.pods(ctx, api, clients, w) }, nil
}

// pods are the ready ones of the workload.
func (o *topOptions) pods(ctx context.Context, api client.Client, clients kubernetes.Interface, w policy.Workload) ([]replica, error) {
	var d appsv1.Deployment
	if err := api.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no Deployment %s in the namespace %[2]s: `kubectl weir status -n %[2]s` lists those with policies; --metrics-url reads other replicas", w.Name, w.Namespace)
		}
		return nil, advise(fmt.Errorf("reading the Deployment: %w", err))
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the Deployment: %w", err)
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, advise(fmt.Errorf("listing pods: %w", err))
	}
	var all []replica
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		port := cmp.Or(o.port, pod.Annotations["prometheus.io/port"], portOf(pod))
		if port == "" {
			all = append(all, replica{name: pod.Name, scrape: func(context.Context) ([]byte, error) {
				return nil, fmt.Errorf("in pod %s %w: give it with --metrics-port", pod.Name, errNoPort)
			}})
			continue
		}
		path := cmp.Or(o.path, pod.Annotations["prometheus.io/path"], "/metrics")
		all = append(all, replica{name: pod.Name, scrape: func(ctx context.Context) ([]byte, error) {
			data, err := clients.CoreV1().Pods(w.Namespace).ProxyGet("http", pod.Name, port, path, nil).DoRaw(ctx)
			if apierrors.IsForbidden(err) {
				return nil, fmt.Errorf("reading pod %s needs the right to get pods/proxy, which the role edit has: %w", pod.Name, err)
			}
			return data, err
		}})
	}
	return all, nil
}

var errNoPort = errors.New("nothing tells the port of its metrics")

// portOf is the number of the port that is named for metrics.
func portOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == "metrics" {
				return strconv.Itoa(int(p.ContainerPort))
			}
		}
	}
	return ""
}

func get(ctx context.Context, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxMetrics))
}

// replica is one that can be read.
type replica struct {
	name   string
	scrape func(context.Context) ([]byte, error)
}

// readAll reads the replicas, and returns one of the errors for those that do not answer.
func readAll(ctx context.Context, replicas []replica) (map[string]reading, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var mu sync.Mutex
	all := make(map[string]reading)
	var failed error
	places := make(chan struct{}, scrapers)
	var wait sync.WaitGroup
	for _, r := range replicas {
		wait.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			data, err := r.scrape(ctx)
			var read reading
			if err == nil {
				read, err = parseMetrics(data)
				read.at = time.Now()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			all[r.name] = read
		})
	}
	wait.Wait()
	return all, failed
}
