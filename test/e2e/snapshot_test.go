package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/hack/dev/run"
	"github.com/weir-dev/weir/test/env"
)

// kubelet stands for the kubelets of all nodes: it projects the workload's snapshot into a folder for each replica, at
// once for one that starts and later by a delay for one that runs.
type kubelet struct {
	w     *world
	delay time.Duration
	dir   string

	mu      sync.Mutex
	mounts  map[string]*env.Mount // by pod
	pending []projection          // in the order of their times
	newest  projection
}

// projection is a content and when it is to be projected.
type projection struct {
	version string
	files   map[string]string
	due     time.Time
}

// startKubelet projects until the test ends.
func startKubelet(t *testing.T, w *world, delay time.Duration) *kubelet {
	t.Helper()
	k := &kubelet{w: w, delay: delay, dir: t.TempDir(), mounts: map[string]*env.Mount{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := k.step(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("projecting the snapshot: %v", err)
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return k
}

func (k *kubelet) step(ctx context.Context) error {
	if err := k.look(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.pending) > 0 && !time.Now().Before(k.pending[0].due) {
		for _, m := range k.mounts {
			if err := m.Project(k.pending[0].files); err != nil {
				return err
			}
		}
		k.pending = k.pending[1:]
	}
	return nil
}

// look notes a new content of the ConfigMap. One that is not there is mounted as an empty folder: it is optional.
func (k *kubelet) look(ctx context.Context) error {
	found, err := k.w.pods.CoreV1().ConfigMaps(k.w.namespace).Get(ctx, "weir-"+deployment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if found.ResourceVersion != k.newest.version {
		k.newest = projection{version: found.ResourceVersion, files: found.Data, due: time.Now().Add(k.delay)}
		k.pending = append(k.pending, k.newest)
	}
	return nil
}

// envOf mounts the folder of a pod that starts.
func (k *kubelet) envOf(pod string) ([]string, error) {
	if err := k.look(context.Background()); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.mounts[pod]
	if !ok {
		m = &env.Mount{Dir: filepath.Join(k.dir, pod)}
		k.mounts[pod] = m
	}
	return []string{"WEIR_SNAPSHOT_FILE=" + filepath.Join(m.Dir, "row.json")}, m.Project(k.newest.files)
}

// TestSharesFollowTheAutoscalerWithoutRedis scales 3 → 10 → 2 while Redis is dead. docs/snapshots.md states what the
// replicas admit meanwhile, with a mount that lags by 3 s: L·(1 + (10−3)/10) until the old ones have read of the new
// ones, which is the lag, a poll of 5 s, and the window in which they read it; L at any other time.
func TestSharesFollowTheAutoscalerWithoutRedis(t *testing.T) {
	const (
		limit, window = 60, 4 * time.Second
		lag, poll     = 3 * time.Second, 5 * time.Second
		transition    = limit + limit*(10-3)/10
	)
	w := startWorld(t, "mounted", 10*time.Millisecond, worldOptions{
		components: []string{"snapshot"}, args: []string{"--snapshots"}, mount: lag,
	})
	w.addresses(3)
	w.policy("{requests: 60, window: 4s, algorithm: FixedWindow}", 3)
	w.kubectl("patch", "rlp", "only", "-n", w.namespace, "--type=merge", `-p={"spec":{"snapshot":"ConfigMap"}}`)
	w.eventually(func(ctx context.Context) error {
		_, err := w.pods.CoreV1().ConfigMaps(w.namespace).Get(ctx, "weir-"+deployment, metav1.GetOptions{})
		return err
	})
	w.enforced(3)
	l := &outageLoad{w: w, window: window, clients: 25}
	w.redis.Kill()

	old := l.until("three replicas", limit, 6, func(admitted map[string]int) error {
		return each(admitted, 3, limit/3)
	})

	w.kubectl("scale", "deployment/"+deployment, "-n", w.namespace, "--replicas=10")
	scaled := time.Now()
	var told time.Time
	l.until("3 to 10", transition, 12, func(admitted map[string]int) error {
		for pod := range old {
			if admitted[pod] < limit/10 {
				t.Errorf("3 to 10: %s admitted %d, want at least its new share of %d", pod, admitted[pod], limit/10)
			}
		}
		if told.IsZero() {
			if err := w.count(l.serving, 10, 10); err != nil {
				return err
			}
			told = time.Now()
			return errors.New("the window in which the last one read of the others")
		}
		return nil
	})
	took := told.Sub(scaled)
	t.Logf("3 to 10: all count 10 replicas %v after kubectl scale began", took.Round(time.Millisecond))
	if most := 10 * (lag + poll); took > most {
		t.Errorf("3 to 10 took %v, more than ten times lag and poll", took)
	}
	ten := l.until("ten replicas", limit, 6, func(admitted map[string]int) error {
		return each(admitted, 10, limit/10)
	})
	for pod := range ten {
		if _, was := old[pod]; !was && l.denied[pod] == 0 {
			t.Errorf("%s started in the outage and denied nothing", pod)
		}
	}

	w.kubectl("scale", "deployment/"+deployment, "-n", w.namespace, "--replicas=2")
	l.until("10 to 2", limit, 20, func(admitted map[string]int) error {
		if len(admitted) == 2 {
			for pod, n := range admitted {
				if n < limit/10 {
					t.Errorf("10 to 2: %s admitted %d, want at least its old share of %d", pod, n, limit/10)
				}
			}
		}
		return each(admitted, 2, limit/2)
	})
}

// each is satisfied when so many replicas admitted exactly their share.
func each(admitted map[string]int, replicas, share int) error {
	if len(admitted) != replicas {
		return fmt.Errorf("%d replicas, want %d", len(admitted), replicas)
	}
	for pod, n := range admitted {
		if n != share {
			return fmt.Errorf("%s admitted %d, want %d", pod, n, share)
		}
	}
	return nil
}

// count is satisfied when so many replicas serve, and all of them split limits by n.
func (w *world) count(serving map[string]string, replicas, n int) error {
	if len(serving) != replicas {
		return fmt.Errorf("%d replicas serve, want %d", len(serving), replicas)
	}
	for pod, address := range serving {
		got, err := gauge(w.t.Context(), address, "weir_replicas")
		if err != nil {
			return err
		}
		if int(got) != n {
			return fmt.Errorf("%s counts %v replicas, want %d", pod, got, n)
		}
	}
	return nil
}

// outageLoad sends more than the limit to every replica, three times in each window, all for one key.
type outageLoad struct {
	w       *world
	window  time.Duration
	clients int

	last    time.Time         // the window that was measured last
	serving map[string]string // in it
	denied  map[string]int    // of each pod, ever
}

// until measures window after window until done is satisfied, and holds each to the limit; it returns what each replica
// admitted in the last one.
func (l *outageLoad) until(phase string, limit, windows int, done func(admitted map[string]int) error) map[string]int {
	l.w.t.Helper()
	var err error
	for range windows {
		admitted := l.measure()
		total := 0
		for _, n := range admitted {
			total += n
		}
		l.w.t.Logf("%s: %d admitted of at most %d, by %v", phase, total, limit, slices.Sorted(maps.Values(admitted)))
		if total > limit {
			l.w.t.Errorf("%s: %d admitted in one window, want at most %d", phase, total, limit)
		}
		if total == 0 {
			l.w.t.Errorf("%s: nothing was admitted in a window", phase)
		}
		if err = done(admitted); err == nil {
			return admitted
		}
	}
	l.w.t.Fatalf("%s: after %d windows: %v", phase, windows, err)
	return nil
}

// measure returns what each replica admitted in the next window.
func (l *outageLoad) measure() map[string]int {
	l.w.t.Helper()
	start := time.Now().Truncate(l.window).Add(l.window)
	if !l.last.IsZero() && start.Sub(l.last) > l.window {
		l.w.t.Logf("%v were not measured", start.Sub(l.last)-l.window)
	}
	l.last = start
	admitted := map[string]int{}
	if l.denied == nil {
		l.denied = map[string]int{}
	}
	for _, after := range []time.Duration{200 * time.Millisecond, l.window * 3 / 8, l.window * 5 / 8} {
		wait(l.w.t, start.Add(after))
		l.serving = l.w.fleet.Serving(l.w.t.Context())
		var mu sync.Mutex
		var replicas sync.WaitGroup
		for pod, address := range l.serving {
			replicas.Go(func() {
				tally := run.Load(l.w.t.Context(), []string{address}, l.clients, exports("one-key"))
				mu.Lock()
				defer mu.Unlock()
				admitted[pod] += tally.Admitted()
				l.denied[pod] += tally.Statuses[429]
			})
		}
		replicas.Wait()
	}
	if took := time.Since(start); took > l.window-200*time.Millisecond {
		l.w.t.Fatalf("the requests took %v, too long to belong to one window", took)
	}
	return admitted
}
