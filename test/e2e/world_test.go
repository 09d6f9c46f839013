// Package e2e runs Weir as its users do: a real Kubernetes with the real Deployment controller, the controller under
// exactly the permissions of config/default, a real Redis with the two users of config/redis, and one process of
// examples/checkout for each ready pod.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/hack/dev/run"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

const (
	deployment = "checkout"
	table      = "e2e"
	password   = "only-for-this-test"
)

// world is one namespace of the shared cluster with its own Redis, controller and replicas.
type world struct {
	t         *testing.T
	namespace string
	cluster   *cluster.Cluster
	client    client.Client
	pods      kubernetes.Interface
	redis     *env.RedisServer
	table     *redisstore.Table // reads as the controller does
	fleet     *run.Fleet
	logs      string
}

func init() { ctrl.SetLogger(logr.Discard()) } // of the clients

const root = "../.."

// newWorld starts everything, with three replicas and no policy. Worlds share the cluster and the controller's Lease, so
// their tests run one after the other.
//
// The replicas wait for Redis as long as storeTimeout says: a test of exactness gives them time, because a whole cluster
// on two cores keeps a process from its processor for longer than the 10 ms of the default.
func newWorld(t *testing.T, namespace string, storeTimeout time.Duration) *world {
	t.Helper()
	return startWorld(t, namespace, storeTimeout, worldOptions{})
}

// worldOptions are what few tests want. The zero value is the default installation.
type worldOptions struct {
	// components are of config/components, and args of the controller go with them.
	components, args []string
	// mount gives every replica a mounted snapshot, which lags behind the ConfigMap by this; 0 gives none.
	mount time.Duration
}

func startWorld(t *testing.T, namespace string, storeTimeout time.Duration, options worldOptions) *world {
	t.Helper()
	w := &world{t: t, namespace: namespace, cluster: kube.Cluster(t), logs: t.TempDir()}
	w.redis = env.Redis(t, env.RedisOptions{ACL: users(t, namespace)})
	w.kubectl("apply", "--server-side", "-k", overlay(t, options.components))
	reader := redisstore.NewClient(&redis.UniversalOptions{
		Addrs: []string{w.redis.Addr}, Username: "weir-controller", Password: password,
	})
	t.Cleanup(func() { _ = reader.Close() })
	w.table = redisstore.NewTable(reader, table, "")
	manager, checkout := env.Build(t, "cmd/manager"), env.Build(t, "examples/checkout")

	kubeconfig, err := w.cluster.ServiceAccountKubeconfig(t.Context(), "weir-system", "weir-controller")
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	controller, err := run.StartController(t.Context(), run.ControllerOptions{
		Program: manager, Kubeconfig: kubeconfig, Redis: w.redis.Addr, Table: table,
		LeaseNamespace: "weir-system", Logs: w.logs,
		Args: append([]string{"--redis-username=weir-controller", "--redis-password-file=" + secret}, options.args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		controller.Stop(10 * time.Second)
		if t.Failed() {
			t.Log(controller.LogTail())
		}
	})

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if w.client, err = client.New(w.cluster.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if w.pods, err = kubernetes.NewForConfig(w.cluster.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	var envOf func(string) ([]string, error)
	if options.mount > 0 {
		envOf = startKubelet(t, w, options.mount).envOf
	}
	w.fleet = run.StartFleet(run.FleetOptions{
		Pods: w.pods, EnvOf: envOf, Namespace: namespace, Selector: "app=" + deployment, Program: checkout, Logs: w.logs,
		Env: []string{
			"REDIS=" + w.redis.Addr, "REDIS_USER=weir-" + namespace, "REDIS_PASSWORD=" + password,
			"STORE_TIMEOUT=" + storeTimeout.String(), "WEIR_TABLE=" + table, "WEIR_NAMESPACE=" + namespace, "WEIR_WORKLOAD=" + deployment,
		},
	})
	t.Cleanup(w.fleet.Stop)
	w.kubectl("create", "namespace", namespace)
	t.Cleanup(func() { w.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found") })
	w.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: 3
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: %[1]s, image: none}]}
`, deployment, namespace))
	return w
}

// overlay is a folder for `kubectl apply -k` with the default installation and components.
func overlay(t *testing.T, components []string) string {
	t.Helper()
	config := filepath.Join(root, "config")
	if len(components) == 0 {
		return filepath.Join(config, "default")
	}
	dir := t.TempDir()
	absolute, err := filepath.Abs(config)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, absolute)
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + relative + "/default]\ncomponents:\n"
	for _, component := range components {
		text += "  - " + relative + "/components/" + component + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// users renders the ACL files that come with Weir; the default user is off.
func users(t *testing.T, namespace string) string {
	t.Helper()
	text := "user default off\n"
	for _, file := range []string{"controller.acl", "application.acl"} {
		content, err := os.ReadFile(filepath.Join(root, "config", "redis", file))
		if err != nil {
			t.Fatal(err)
		}
		text += string(content)
	}
	return strings.NewReplacer("TABLE", table, "NAMESPACE", namespace, "PASSWORD", password).Replace(text)
}

func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.tryKubectl(context.WithoutCancel(w.t.Context()), "", args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) apply(manifest string) {
	w.t.Helper()
	if _, err := w.tryKubectl(w.t.Context(), manifest, "apply", "-f", "-"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryKubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.cluster.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, problem.String())
	}
	return out.String(), nil
}

// eventually polls until the condition holds, and fails the test after a minute.
func (w *world) eventually(condition func(context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := process.Poll(ctx, 20*time.Millisecond, condition); err != nil {
		w.t.Fatal(err)
	}
}

// scale asks for replicas and returns their addresses once exactly so many serve.
func (w *world) scale(replicas int) []string {
	w.t.Helper()
	w.kubectl("scale", "deployment/"+deployment, "-n", w.namespace, "--replicas="+strconv.Itoa(replicas))
	return w.addresses(replicas)
}

func (w *world) addresses(replicas int) []string {
	w.t.Helper()
	addresses, err := w.fleet.Addresses(w.t.Context(), replicas)
	if err != nil {
		w.t.Fatal(err)
	}
	return addresses
}

// policy applies one rule for all requests, by API key, and returns when every one of the replicas enforces it.
func (w *world) policy(limit string, replicas int) {
	w.t.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: only, namespace: %s}
spec:
  targetRef: {group: apps, kind: Deployment, name: %s}
  rules:
    - name: all
      match: [{pathPrefix: /exports}]
      key: [{header: X-Api-Key}]
      limits: [%s]
`, w.namespace, deployment, limit))
	w.enforced(replicas)
}

// enforced waits until the status says that so many replicas enforce the current generation.
func (w *world) enforced(replicas int) {
	w.t.Helper()
	want := fmt.Sprintf("%d/%d", replicas, replicas)
	w.eventually(func(ctx context.Context) error {
		var p v1alpha1.RateLimitPolicy
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "only"}, &p); err != nil {
			return err
		}
		enforced := meta.FindStatusCondition(p.Status.Conditions, string(v1alpha1.ConditionEnforced))
		switch {
		case enforced == nil || enforced.ObservedGeneration != p.Generation || enforced.Status != metav1.ConditionTrue:
			return fmt.Errorf("condition Enforced of generation %d is %+v", p.Generation, enforced)
		case p.Status.Enforcers == nil || p.Status.Enforcers.Summary != want:
			return fmt.Errorf("status.enforcers is %+v, want %s", p.Status.Enforcers, want)
		}
		return nil
	})
}

// acknowledged waits until the row holds the generation of the policy, and every one of the replicas has told Redis that
// it runs this row.
func (w *world) acknowledged(generation int64, replicas int) {
	w.t.Helper()
	workload := policy.Workload{Namespace: w.namespace, Group: "apps", Kind: "Deployment", Name: deployment}
	w.eventually(func(ctx context.Context) error {
		published, _, err := w.table.Read(ctx, workload)
		if err != nil {
			return err
		}
		row, _, err := policy.DecodeRow(published.Row)
		if err != nil {
			return err
		}
		if len(row.Policies) != 1 || row.Policies[0].Generation != generation {
			return fmt.Errorf("the row holds %+v, want generation %d", row.Policies, generation)
		}
		current := 0
		for _, m := range published.Members {
			if m.Revision.Compare(row.Revision) >= 0 {
				current++
			}
		}
		if current != replicas {
			return fmt.Errorf("%d of %d replicas run revision %v", current, replicas, row.Revision)
		}
		return nil
	})
}

// gauge reads a metric without labels of one replica.
func gauge(ctx context.Context, address, name string) (float64, error) {
	_, body, err := run.Get(ctx, address, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", address, name)
}

func exports(apiKey string) run.Request {
	return run.Request{Method: "POST", Path: "/exports", APIKey: apiKey}
}
