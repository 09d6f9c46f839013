package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-dev/weir/hack/dev/process"
)

// Fleet runs one real process for each ready pod of a Deployment, in the place of the containers that the local
// cluster does not run: started when the pod is ready, asked to end when the pod is deleted.
type Fleet struct {
	options FleetOptions

	mu       sync.Mutex
	replicas map[string]*replica // by the pod's name
	err      error

	ending int        // replicas whose pods are gone and that have not ended
	ended  *sync.Cond // one of them has; it goes with mu

	stop context.CancelFunc
	done chan struct{}
}

// FleetOptions say which pods and which program. All fields but EnvOf are required.
type FleetOptions struct {
	Pods      kubernetes.Interface
	Namespace string
	// Selector finds the pods, for example "app=checkout".
	Selector string
	Program  string
	// Logs is the folder for the output of each replica.
	Logs string
	// Env is added to the environment of each replica, beside POD_NAME and LISTEN.
	Env []string
	// EnvOf is asked for more of it before the replica of a pod starts.
	EnvOf func(pod string) ([]string, error)
}

// StartFleet follows the pods until Stop.
func StartFleet(options FleetOptions) *Fleet {
	ctx, stop := context.WithCancel(context.Background())
	f := &Fleet{options: options, replicas: map[string]*replica{}, stop: stop, done: make(chan struct{})}
	f.ended = sync.NewCond(&f.mu)
	go func() {
		defer close(f.done)
		f.run(ctx)
	}()
	return f
}

// Stop ends every replica.
func (f *Fleet) Stop() {
	f.stop()
	<-f.done
	f.WaitEnded()
}

// WaitEnded returns when every replica whose pod is gone has ended.
func (f *Fleet) WaitEnded() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ending > 0 {
		f.ended.Wait()
	}
}

type replica struct {
	pod     string
	address string
	process *process.Process
	started time.Time
	serving bool
}

// run follows the pods until the context ends, then ends every replica.
func (f *Fleet) run(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err := f.step(ctx); err != nil && ctx.Err() == nil {
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			f.stopAll()
			return
		case <-ticker.C:
		}
	}
}

func (f *Fleet) step(ctx context.Context) error {
	list, err := f.options.Pods.CoreV1().Pods(f.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: f.options.Selector})
	if err != nil {
		return fmt.Errorf("listing the pods of the demo: %w", err)
	}
	wanted := map[string]bool{}
	for i := range list.Items {
		if pod := &list.Items[i]; isReady(pod) {
			wanted[pod.Name] = true
			if err := f.ensure(pod.Name); err != nil {
				return err
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, r := range f.replicas {
		if !wanted[name] {
			delete(f.replicas, name)
			f.ending++
			go f.end(r)
		}
	}
	return nil
}

func (f *Fleet) end(r *replica) {
	r.process.Stop(grace)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ending--
	f.ended.Broadcast()
}

// grace is how long a replica may drain. A server waits 5 s for a connection on which nothing was sent yet.
const grace = 10 * time.Second

func isReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (f *Fleet) ensure(pod string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.replicas[pod]; known {
		return nil
	}
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	env := append([]string{"POD_NAME=" + pod, "LISTEN=" + address}, f.options.Env...)
	if f.options.EnvOf != nil {
		more, err := f.options.EnvOf(pod)
		if err != nil {
			return fmt.Errorf("preparing the replica of %s: %w", pod, err)
		}
		env = append(env, more...)
	}
	started, err := process.Start(process.Command{
		Name: "checkout " + pod,
		Path: f.options.Program,
		Env:  env,
		Log:  filepath.Join(f.options.Logs, pod+".log"),
	})
	if err != nil {
		return err
	}
	f.replicas[pod] = &replica{pod: pod, address: address, process: started, started: time.Now()}
	return nil
}

// Youngest is when the youngest replica was started.
func (f *Fleet) Youngest() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	var youngest time.Time
	for _, r := range f.replicas {
		if r.started.After(youngest) {
			youngest = r.started
		}
	}
	return youngest
}

func (f *Fleet) stopAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var wg sync.WaitGroup
	for _, r := range f.replicas {
		wg.Go(func() { r.process.Stop(3 * time.Second) })
	}
	wg.Wait()
	f.replicas = map[string]*replica{}
}

// Serving gives the addresses of the replicas that serve at this moment, by pod name.
func (f *Fleet) Serving(ctx context.Context) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	addresses := map[string]string{}
	for _, r := range f.replicas {
		if status, _, err := Do(ctx, r.address, Request{Method: http.MethodGet, Path: "/healthz"}); err == nil && status == http.StatusOK {
			addresses[r.pod] = r.address
		}
	}
	return addresses
}

// Addresses waits until exactly n replicas serve and gives their addresses, by pod name.
func (f *Fleet) Addresses(ctx context.Context, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	var addresses []string
	err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		f.mu.Lock()
		all := make([]*replica, 0, len(f.replicas))
		for _, r := range f.replicas {
			all = append(all, r)
		}
		err := f.err
		f.mu.Unlock()
		if len(all) != n {
			return errors.Join(err, fmt.Errorf("%d replicas run, waiting for %d", len(all), n))
		}
		sort.Slice(all, func(i, j int) bool { return all[i].pod < all[j].pod })
		addresses = addresses[:0]
		for _, r := range all {
			if !r.serving {
				status, _, err := Do(ctx, r.address, Request{Method: http.MethodGet, Path: "/healthz"})
				if err != nil {
					return fmt.Errorf("asking %s whether it serves: %w", r.pod, err)
				}
				if status != http.StatusOK {
					return fmt.Errorf("%s answers %d on /healthz", r.pod, status)
				}
				r.serving = true
			}
			addresses = append(addresses, r.address)
		}
		return nil
	})
	return addresses, err
}
