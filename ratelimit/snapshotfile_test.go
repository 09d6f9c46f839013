package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

// snapshot is the content of a row.json that admits so many requests an hour.
func snapshot(t *testing.T, revision, requests int64, replicas int) string {
	t.Helper()
	row, verdicts := policy.Compile(workload, "test", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: workload.Namespace, Name: "p", UID: "p", Generation: 1},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: workload.Name},
			Rules:     []policy.Rule{{Name: "r", Limits: []policy.Limit{{Requests: &requests, Window: "1h", Algorithm: policy.FixedWindow}}}},
		},
	}})
	if !verdicts[0].Accepted() {
		t.Fatal(verdicts[0].Message)
	}
	row.Revision = policy.Revision{Epoch: "1", N: revision}
	encodedRow, err := policy.EncodeRow(row)
	if err != nil {
		t.Fatal(err)
	}
	encodedReplicas, err := policy.EncodeReplicas(policy.Replicas{Version: 1, N: replicas, At: revision})
	if err != nil {
		t.Fatal(err)
	}
	data, err := policy.EncodeSnapshot(policy.Snapshot{Row: encodedRow, Replicas: encodedReplicas})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// started is a limiter that runs until the test ends or stop is called.
func started(t *testing.T, o ratelimit.Options) (l *ratelimit.Limiter, stop func()) {
	t.Helper()
	o.Namespace, o.Workload, o.Pod = workload.Namespace, workload.Name, "checkout-1"
	o.PollInterval = 20 * time.Millisecond
	l, err := ratelimit.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	stop = func() {
		cancel()
		if err, ok := <-ended; ok && err != nil {
			t.Error(err)
		}
		close(ended)
	}
	return l, stop
}

func soon(t *testing.T, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := process.Poll(ctx, 5*time.Millisecond, func(context.Context) error { return condition() }); err != nil {
		t.Fatal(err)
	}
}

// limited is satisfied when the limit in force is so many requests.
func limited(l *ratelimit.Limiter, requests int64) error {
	if d := l.Peek(context.Background(), ratelimit.Request{Method: http.MethodGet, Path: "/"}); d.Limit != requests {
		return fmt.Errorf("the limit in force is %d of %q, want %d", d.Limit, d.Source, requests)
	}
	return nil
}

// A mounted file is all that a limiter without Redis needs, and its changes are in force with the next poll.
func TestPoliciesFromAMountedFile(t *testing.T) {
	mount := &env.Mount{Dir: t.TempDir()}
	registry := prometheus.NewRegistry()
	l, stop := started(t, ratelimit.Options{
		Counters: ratelimit.Memory(), SnapshotFile: filepath.Join(mount.Dir, "row.json"), Registerer: registry,
	})
	defer stop()
	project := func(content string) {
		t.Helper()
		if err := mount.Project(map[string]string{"row.json": content}); err != nil {
			t.Fatal(err)
		}
	}
	if err := limited(l, 0); err != nil {
		t.Error(err)
	}
	project(snapshot(t, 1, 100, 1)) // later than the process, as after a policy was applied
	soon(t, func() error { return limited(l, 100) })
	if err := l.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}

	for n := range int64(20) { // as many as the links are replaced
		project(snapshot(t, 2+n, 200+n, 1))
		soon(t, func() error { return limited(l, 200+n) })
	}
	if got := metric(t, registry, "weir_snapshot_problems_total", map[string]string{"file": "snapshot_file", "reason": "corrupt"}); got != 0 {
		t.Errorf("%v corrupt reads of good files", got)
	}
	if got := metric(t, registry, "weir_row_source", map[string]string{"source": "snapshot_file"}); got != 1 {
		t.Errorf("the source of the row in force is %v, want 1", got)
	}

	project(snapshot(t, 30, 300, 1)[:100])
	soon(t, func() error {
		if metric(t, registry, "weir_snapshot_problems_total", map[string]string{"file": "snapshot_file", "reason": "corrupt"}) == 0 {
			return errors.New("a corrupt file is not counted")
		}
		return limited(l, 219)
	})
	if err := mount.Project(nil); err != nil { // as when the ConfigMap is deleted
		t.Fatal(err)
	}
	project(snapshot(t, 29, 290, 1))
	soon(t, func() error { return limited(l, 290) })
}

// A container that restarts while Redis is away finds in the cache what the one before it had.
func TestTheCacheOutlivesAContainer(t *testing.T) {
	mount := &env.Mount{Dir: t.TempDir()}
	if err := mount.Project(map[string]string{"row.json": snapshot(t, 1, 100, 4)}); err != nil {
		t.Fatal(err)
	}
	o := ratelimit.Options{
		Counters: ratelimit.Memory(), SnapshotFile: filepath.Join(mount.Dir, "row.json"),
		SnapshotCache: filepath.Join(t.TempDir(), "row.json"),
	}
	l, stop := started(t, o)
	soon(t, func() error { return limited(l, 100) })
	soon(t, func() error {
		_, err := os.Stat(o.SnapshotCache)
		return err
	})
	stop()

	registry := prometheus.NewRegistry()
	o.Counters, o.Registerer = nil, registry
	o.Redis = &redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}} // nobody listens
	o.SnapshotFile = filepath.Join(t.TempDir(), "not-mounted.json")
	l, stop = started(t, o)
	defer stop()
	if err := l.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	if err := limited(l, 100); err != nil {
		t.Error(err)
	}
	if got := metric(t, registry, "weir_replicas", nil); got != 4 {
		t.Errorf("%v replicas, want the 4 that were counted last", got)
	}
	entries, err := os.ReadDir(filepath.Dir(o.SnapshotCache))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the cache there is something else: %v (%v)", entries, err)
	}
}

func TestACacheThatCannotBeWritten(t *testing.T) {
	mount := &env.Mount{Dir: t.TempDir()}
	if err := mount.Project(map[string]string{"row.json": snapshot(t, 1, 100, 1)}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	missing := filepath.Join(t.TempDir(), "no-such-folder")
	l, stop := started(t, ratelimit.Options{
		Counters: ratelimit.Memory(), Registerer: registry,
		SnapshotFile: filepath.Join(mount.Dir, "row.json"), SnapshotCache: filepath.Join(missing, "row.json"),
	})
	defer stop()
	soon(t, func() error { return limited(l, 100) })
	soon(t, func() error {
		if metric(t, registry, "weir_snapshot_problems_total", map[string]string{"file": "snapshot_cache", "reason": "unwritable"}) == 0 {
			return errors.New("the failure is not counted")
		}
		return nil
	})
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
}

// metric reads one series.
func metric(t *testing.T, registry *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := 0
			for _, label := range m.GetLabel() {
				if labels[label.GetName()] == label.GetValue() {
					matches++
				}
			}
			if matches == len(labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s%v", name, labels)
	return 0
}
