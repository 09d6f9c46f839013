package scale

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

func init() { log.SetLogger(logr.Discard()) }

const (
	root         = "../.."
	namespace    = "weir-scale"
	table        = "scale"
	editedPolicy = "policy-0"
	patience     = 5 * time.Minute
	writers      = 16 // that fill the API server, and that speak for members
)

type world struct {
	t         *testing.T
	size      sizes
	cluster   *cluster.Cluster
	admin     client.Client
	server    *env.RedisServer
	redis     redis.UniversalClient
	workloads []policy.Workload

	manager *process.Process
	address string // of metrics
	probes  string
}

func newWorld(t *testing.T, size sizes) *world {
	t.Helper()
	w := &world{t: t, size: size, cluster: kube.APIServer(t), server: env.Redis(t, env.RedisOptions{})}
	w.redis = redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{w.server.Addr}})
	t.Cleanup(func() { _ = w.redis.Close() })
	w.run(w.cluster.Kubectl, "--kubeconfig", w.cluster.Kubeconfig, "apply", "--server-side", "-k", "config/crd")
	w.run(w.cluster.Kubectl, "--kubeconfig", w.cluster.Kubeconfig, "wait", "--for=condition=Established",
		"crd/ratelimitpolicies.ratelimit.weir.dev", "--timeout=60s")
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	config := w.cluster.RESTConfig()
	config.QPS = -1
	var err error
	if w.admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	w.fill()
	return w
}

func (w *world) run(program string, args ...string) {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), program, args...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// fill creates namespaces, Deployments with three ready replicas, and policies.
func (w *world) fill() {
	w.t.Helper()
	began := time.Now()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for i := range w.size.Namespaces {
		w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("scale-%d", i)}})
	}
	for i := range w.size.Deployments {
		w.workloads = append(w.workloads, policy.Workload{
			Namespace: fmt.Sprintf("scale-%d", i%w.size.Namespaces), Group: "apps", Kind: "Deployment", Name: fmt.Sprintf("service-%d", i),
		})
	}
	each(w.workloads, func(workload policy.Workload) {
		labels := map[string]string{"app": workload.Name}
		w.create(&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: workload.Name},
			Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
				},
			},
		})
		w.report(workload, 3, 3, 0)
		for i := range policiesPerDeployment {
			w.create(&v1alpha1.RateLimitPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: fmt.Sprintf("%s-policy-%d", workload.Name, i)},
				Spec: v1alpha1.RateLimitPolicySpec{
					TargetRef: v1alpha1.TargetRef{Group: "apps", Kind: "Deployment", Name: workload.Name},
					Rules: []v1alpha1.Rule{{
						Name:   "all",
						Match:  []v1alpha1.Match{{PathPrefix: v1alpha1.PathPrefix(fmt.Sprintf("/v%d", i))}},
						Limits: []v1alpha1.Limit{{Requests: new(int64(100)), Window: "1m"}},
					}},
				},
			})
		}
	})
	w.t.Logf("filled the API server in %.1f s", time.Since(began).Seconds())
}

// each calls f for every item, some at a time.
func each[T any](items []T, f func(T)) {
	var group sync.WaitGroup
	queue := make(chan T)
	for range writers {
		group.Go(func() {
			for item := range queue {
				f(item)
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	group.Wait()
}

func (w *world) create(object client.Object) {
	if err := w.admin.Create(w.t.Context(), object); err != nil {
		w.t.Error(err)
	}
}

// report writes a Deployment's status as its controller would.
func (w *world) report(workload policy.Workload, replicas, ready, terminating int32) {
	patch := fmt.Sprintf(`{"status":{"observedGeneration":1,"replicas":%d,"readyReplicas":%d,"terminatingReplicas":%d}}`, replicas, ready, terminating)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: workload.Name}}
	if err := w.admin.Status().Patch(w.t.Context(), d, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		w.t.Error(err)
	}
}

// start starts the controller without waiting for anything.
func (w *world) start() {
	w.t.Helper()
	port, err := process.FreePort(0, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	w.address, w.probes = fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", port+1)
	w.manager, err = process.Start(process.Command{
		Name: "manager", Path: env.Build(w.t, "cmd/manager"), Dir: w.t.TempDir(), Log: filepath.Join(w.t.TempDir(), "manager.log"),
		Args: []string{
			"--kubeconfig=" + w.cluster.Kubeconfig, "--redis-address=" + w.server.Addr, "--table=" + table,
			"--leader-election-namespace=" + namespace, "--metrics-bind-address=" + w.address, "--metrics-secure=false",
			"--metrics-auth=false", "--health-probe-bind-address=" + w.probes,
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	running := w.manager
	w.t.Cleanup(func() {
		running.Stop(10 * time.Second)
		if w.t.Failed() {
			w.t.Log(running.LogTail())
		}
	})
}

func (w *world) stop() {
	w.manager.Stop(10 * time.Second)
	w.manager = nil
}

func (w *world) flush() {
	w.t.Helper()
	if err := w.redis.FlushAll(w.t.Context()).Err(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(condition func(context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := process.Poll(ctx, 50*time.Millisecond, condition); err != nil {
		w.t.Fatal(err)
	}
}

// rows are the rows in the table.
func (w *world) rows(ctx context.Context) (map[policy.Workload]policy.Row, error) {
	var keys []string
	for _, workload := range w.workloads {
		keys = append(keys, "weir:"+table+":row:{"+workload.String()+"}")
	}
	values, err := w.redis.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	rows := map[policy.Workload]policy.Row{}
	for i, value := range values {
		body, ok := value.(string)
		if !ok {
			continue
		}
		row, _, err := policy.DecodeRow([]byte(body))
		if err != nil {
			return nil, err
		}
		rows[w.workloads[i]] = row
	}
	return rows, nil
}

func (w *world) counted(ctx context.Context, workloads []policy.Workload, n int) error {
	for _, workload := range workloads {
		body, err := w.redis.Get(ctx, "weir:"+table+":replicas:{"+workload.String()+"}").Bytes()
		if err != nil {
			return err
		}
		replicas, err := policy.DecodeReplicas(body)
		if err != nil || replicas.N != n {
			return fmt.Errorf("%s counts %d replicas (%w)", workload, replicas.N, err)
		}
	}
	return nil
}

func (w *world) policy(ctx context.Context, workload policy.Workload) (*v1alpha1.RateLimitPolicy, error) {
	var p v1alpha1.RateLimitPolicy
	err := w.admin.Get(ctx, client.ObjectKey{Namespace: workload.Namespace, Name: workload.Name + "-" + editedPolicy}, &p)
	return &p, err
}

// edit raises a limit and returns the new generation.
func (w *world) edit(workload policy.Workload) int64 {
	w.t.Helper()
	p, err := w.policy(w.t.Context(), workload)
	if err != nil {
		w.t.Fatal(err)
	}
	before := p.DeepCopy()
	*p.Spec.Rules[0].Limits[0].Requests++
	if err := w.admin.Patch(w.t.Context(), p, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
	return p.Generation
}

// scale has a Deployment run so many ready replicas.
func (w *world) scale(workload policy.Workload, replicas int32) {
	w.t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: workload.Name}}
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	if err := w.admin.Patch(w.t.Context(), d, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		w.t.Fatal(err)
	}
	w.report(workload, replicas, replicas, 0)
}

// restart has Deployments go through a rolling restart with one surplus pod: each step is one write of the status.
func (w *world) restart(workloads []policy.Workload) {
	steps := [][3]int32{{4, 3, 0}, {4, 4, 0}, {3, 3, 1}, {4, 3, 1}, {4, 4, 0}, {3, 3, 1}, {4, 4, 0}, {3, 3, 1}, {3, 3, 0}}
	each(workloads, func(workload policy.Workload) {
		for _, s := range steps {
			w.report(workload, s[0], s[1], s[2])
		}
	})
}

// enforce has members of a workload read and report until the test ends: at once when they are told of a change, and every
// 5 s, as the library does.
func (w *world) enforce(workload policy.Workload, members int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	member := redisstore.NewMember(w.redis, table, workload)
	hints := make(chan struct{}, 1)
	running.Go(func() {
		_ = member.Listen(ctx, func() {
			select {
			case hints <- struct{}{}:
			default:
			}
		})
	})
	pods := make([]string, members)
	for i := range pods {
		pods[i] = fmt.Sprintf("pod-%04d", i)
	}
	running.Go(func() {
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for ctx.Err() == nil {
			each(pods, func(pod string) {
				state, err := member.Read(ctx)
				if err != nil || state.Row == nil {
					return
				}
				report := policy.Report{Member: pod + "/1", Pod: pod, Library: "v0.0.0-test", Started: 1}
				if row, _, err := policy.DecodeRow(state.Row); err == nil {
					report.Revision = row.Revision
				}
				_, _ = member.Heartbeat(ctx, report, 5*time.Second) // the next one tells it again
			})
			select {
			case <-ctx.Done():
			case <-hints:
			case <-ticker.C:
			}
		}
	})
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// settle waits until ten seconds have passed without a write.
func (w *world) settle() {
	w.t.Helper()
	since, last := time.Now(), w.counters()
	w.eventually(func(context.Context) error {
		now := w.counters()
		if now.rows != last.rows || now.status != last.status {
			since, last = time.Now(), now
		}
		if time.Since(since) < 10*time.Second {
			return fmt.Errorf("%.0f rows and %.0f statuses written", now.rows, now.status)
		}
		return nil
	})
}

func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// leaseWrites are those of the leader election: one in 2 s, and one to spare.
func (w *world) leaseWrites(seconds int) float64 { return float64(seconds/2 + 2) }

// counters are what the controller and Redis count since they started.
type counters struct {
	calls, writes, rows, status, commands, cpu, heap, peak float64
}

func (c counters) since(before counters, took time.Duration) phase {
	if c.calls < before.calls { // another process
		before = counters{commands: before.commands}
	}
	const mib = 1 << 20
	return phase{
		Seconds: took.Seconds(), APICalls: c.calls - before.calls, APIWrites: c.writes - before.writes,
		RowWrites: c.rows - before.rows, RedisCommands: c.commands - before.commands, CPUSeconds: c.cpu - before.cpu,
		HeapMiB: c.heap / mib, PeakRSSMiB: c.peak / mib,
	}
}

func (w *world) counters() counters {
	w.t.Helper()
	var c counters
	info, err := w.redis.Info(w.t.Context(), "stats").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "total_commands_processed:"); ok {
			c.commands, _ = strconv.ParseFloat(value, 64)
		}
	}
	if w.manager == nil {
		return c
	}
	for series, value := range w.metrics() {
		name, _, _ := strings.Cut(series, "{")
		switch name {
		case "rest_client_requests_total":
			c.calls += value
			if !strings.Contains(series, `method="GET"`) {
				c.writes += value
			}
		case "weir_controller_table_writes_total":
			c.rows += value
		case "weir_controller_status_writes_total":
			c.status = value
		case "process_cpu_seconds_total":
			c.cpu = value
		case "go_memstats_heap_inuse_bytes":
			c.heap = value
		}
	}
	c.peak = w.peakRSS()
	return c
}

// metrics are the controller's series; none while it does not serve yet.
func (w *world) metrics() map[string]float64 {
	series := map[string]float64{}
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.address+"/metrics", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return series
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && !strings.HasPrefix(lines.Text(), "#") {
			series[lines.Text()[:i]], _ = strconv.ParseFloat(lines.Text()[i+1:], 64)
		}
	}
	return series
}

// peakRSS is the most memory that the controller had resident, in bytes.
func (w *world) peakRSS() float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.manager.Identity().PID))
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, _ := strconv.ParseFloat(fields[1], 64)
			return kib * 1024
		}
	}
	return 0
}
