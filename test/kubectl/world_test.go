// Package kubectl tests the commands of kubectl weir that look at a cluster: against a real Kubernetes, the controller,
// a real Redis and the library in three replicas, with the rights that the built-in roles view and edit give.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/controllers"
	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

const (
	root  = "../.."
	table = "kubectl"
	// patience bounds waits for what takes a fraction of it.
	patience = time.Minute
)

func init() { ctrl.SetLogger(logr.Discard()) }

// world is a namespace with the workload checkout and a policy, which is enforced by three replicas.
type world struct {
	t         *testing.T
	namespace string
	cluster   *cluster.Cluster
	client    client.Client
	redis     *env.RedisServer
	replicas  []*ratelimit.Limiter
	viewer    string // kubeconfigs
	editor    string
	nobody    string // has no role
}

const policyText = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: NAMESPACE}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  evaluation: FirstMatch
  exempt: [{pathPrefix: /healthz}]
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 5, window: 1h}, {requests: 50, window: 24h, algorithm: FixedWindow}]
    - name: login
      mode: Enforce
      match: [{methods: [POST], route: /login}]
      key: [{clientIP: {}}]
      whenKeyMissing: Deny
      limits: [{requests: 10, window: 1m, algorithm: SlidingWindowLog}]
      onStoreFailure: FailClosed
    - name: default
      key: [{firstOf: [{header: X-Api-Key}, {clientIP: {}}]}]
      limits: [{requests: 300, window: 1m}]
      overrides:
        - {when: {attribute: plan, values: [scale]}, limits: [{requests: 3000, window: 1m}]}
        - {when: {attribute: plan, values: [internal]}, unlimited: true}
      onStoreFailure: FailOpen
`

const workloadText = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: checkout, namespace: NAMESPACE}
spec:
  replicas: 3
  selector: {matchLabels: {app: checkout}}
  template:
    metadata: {labels: {app: checkout}}
    spec: {containers: [{name: checkout, image: none}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: viewer, namespace: NAMESPACE}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: editor, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: viewer, namespace: NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: editor, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: editor, namespace: NAMESPACE}]
`

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, namespace: "shop", cluster: kube.Cluster(t), redis: env.Redis(t, env.RedisOptions{})}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, eventsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.client, err = client.New(w.cluster.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	w.kubectl("", "apply", "--server-side", "-k", filepath.Join(root, "config", "crd"))
	for _, role := range []string{"policy_viewer_role.yaml", "policy_editor_role.yaml"} {
		w.kubectl("", "apply", "-f", filepath.Join(root, "config", "rbac", role))
	}
	w.kubectl("", "create", "namespace", w.namespace)
	w.kubectl(strings.ReplaceAll(workloadText, "NAMESPACE", w.namespace), "apply", "-f", "-")
	w.kubectl("", "wait", "--for=condition=Established", "crd/ratelimitpolicies.ratelimit.weir.dev", "--timeout=60s")
	for name, into := range map[string]*string{"viewer": &w.viewer, "editor": &w.editor, "default": &w.nobody} {
		if *into, err = w.cluster.ServiceAccountKubeconfig(t.Context(), w.namespace, name); err != nil {
			t.Fatal(err)
		}
	}
	w.startController(scheme)
	w.startReplicas()
	w.kubectl(strings.ReplaceAll(policyText, "NAMESPACE", w.namespace), "apply", "-f", "-")
	w.eventually("the policy is in force in three replicas", func(context.Context) error {
		for _, l := range w.replicas {
			if d := l.Peek(w.t.Context(), request("nobody")); d.Policy == "" {
				return fmt.Errorf("%+v", d)
			}
		}
		return nil
	})
	return w
}

// enforced waits until the policy's status says how many enforce it, which takes pods that have been ready for 15 s.
func (w *world) enforced(summary string) {
	w.t.Helper()
	w.eventually("the policy is enforced by "+summary, func(ctx context.Context) error {
		var p v1alpha1.RateLimitPolicy
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "checkout"}, &p); err != nil {
			return err
		}
		if e := p.Status.Enforcers; e == nil || e.Summary != summary {
			return fmt.Errorf("enforcers %+v", e)
		}
		return nil
	})
}

func (w *world) startController(scheme *runtime.Scheme) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	leadership, err := controllers.NewLeadership(ctx, w.cluster.RESTConfig(), controllers.LeadershipOptions{
		Namespace: w.namespace, Name: "weir", Identity: "test", Elect: true,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	manager, err := ctrl.NewManager(w.cluster.RESTConfig(), ctrl.Options{
		Scheme: scheme, Cache: controllers.CacheOptions(nil, false), Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionResourceLockInterface: leadership.Lock(), LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	redisClient := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{w.redis.Addr}})
	err = controllers.SetupWithManager(ctx, manager, controllers.Options{
		Table: redisstore.NewTable(redisClient, table, leadership.Installation()), Leadership: leadership,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the controller: %v", err)
		}
		_ = redisClient.Close()
	})
}

// startReplicas runs the library for each pod, in this process.
func (w *world) startReplicas() {
	w.t.Helper()
	var pods corev1.PodList
	w.eventually("three pods are ready", func(ctx context.Context) error {
		if err := w.client.List(ctx, &pods, client.InNamespace(w.namespace), client.MatchingLabels{"app": "checkout"}); err != nil {
			return err
		}
		if len(pods.Items) != 3 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
	for _, pod := range pods.Items {
		w.replicas = append(w.replicas, w.startReplica(w.t, pod.Name))
	}
}

// startReplica runs the library as in a pod of that name. It ends with the test.
func (w *world) startReplica(t *testing.T, pod string) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Options{
		Redis: &redis.UniversalOptions{Addrs: []string{w.redis.Addr}}, Table: table, Namespace: w.namespace,
		Workload: "checkout", Pod: pod, StoreTimeout: patience, PollInterval: time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l
}

// request is one by a client with an API key.
func request(apiKey string) ratelimit.Request {
	return ratelimit.Request{Method: http.MethodPost, Route: "/exports", Header: http.Header{"X-Api-Key": {apiKey}}, Remote: "203.0.113.7:4711"}
}

func (w *world) eventually(what string, condition func(context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := process.Poll(ctx, 50*time.Millisecond, condition); err != nil {
		w.t.Fatalf("waiting until %s: %v", what, err)
	}
}

func (w *world) kubectl(stdin string, args ...string) {
	w.t.Helper()
	command := exec.Command(w.cluster.Kubectl, append([]string{"--kubeconfig", w.cluster.Kubeconfig}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	if out, err := command.CombinedOutput(); err != nil {
		w.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// weir runs the command as a user. REDIS among the arguments stands for the flags that lead to the table.
func (w *world) weir(kubeconfig string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	var expanded []string
	for _, arg := range args {
		switch arg {
		case "REDIS":
			expanded = append(expanded, "--redis", w.redis.Addr, "--table", table)
		default:
			expanded = append(expanded, arg)
		}
		if len(expanded) == 1 && arg == "__complete" {
			continue
		}
		if kubeconfig != "" { // behind the command's name, so that what is to be completed stays at the end
			expanded = append(expanded, "-n", w.namespace, "--kubeconfig", kubeconfig)
			kubeconfig = ""
		}
	}
	command := exec.CommandContext(w.t.Context(), env.Build(w.t, "cmd/kubectl-weir"), expanded...)
	var out, problem bytes.Buffer
	command.Stdout, command.Stderr = &out, &problem
	err := command.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String(), problem.String()
}
