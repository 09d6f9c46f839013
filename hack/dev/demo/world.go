package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/hack/dev/run"
)

const (
	namespace  = "shop"
	deployment = "checkout"
	table      = "demo"
	// weirNamespace is where config/default puts the controller.
	weirNamespace = "weir-system"
	// storeTimeout is what replicas wait for Redis. The default of 10 ms is for a pod with a processor; here a whole
	// cluster shares a few of them.
	storeTimeout = 250 * time.Millisecond
)

// world is everything that the demo runs: a local Kubernetes, a Redis, the controller and the replicas.
type world struct {
	dir        string // logs and binaries
	report     *report
	cluster    *cluster.Cluster
	redis      redisServer
	controller *process.Process
	fleet      *run.Fleet
	trusted    time.Time // when replicas trust the restarted Redis again
}

// kubectl runs the cluster's own kubectl and gives what it printed.
func (w *world) kubectl(ctx context.Context, args ...string) (string, error) {
	return w.kubectlInput(ctx, "", args...)
}

func (w *world) kubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.cluster.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

// build compiles a program of this repository, so that the demo always shows the code as it is.
func (w *world) build(ctx context.Context, pkg string) (string, error) {
	path := filepath.Join(w.dir, filepath.Base(pkg))
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// begin starts everything up to an empty cluster with the controller and three replicas without a policy.
func (w *world) begin(ctx context.Context) error {
	checkout, err := w.build(ctx, "./examples/checkout")
	if err != nil {
		return err
	}
	manager, err := w.build(ctx, "./cmd/manager")
	if err != nil {
		return err
	}
	started := time.Now()
	if w.cluster, err = cluster.Start(ctx, cluster.Options{Dir: filepath.Join(w.dir, "cluster"), Detached: keep()}); err != nil {
		return err
	}
	w.report.say("Kubernetes: API server, Deployment controller and scheduler ready after %.1f s", time.Since(started).Seconds())
	if w.redis, err = newRedis(filepath.Join(w.dir, "redis")); err != nil {
		return err
	}
	if err := w.redis.start(ctx); err != nil {
		return err
	}
	w.report.say("Redis: %s on %s", w.redis.describe(), w.redis.address())
	if _, err := w.kubectl(ctx, "apply", "--server-side", "-k", "config/default"); err != nil {
		return err
	}
	if err := w.startController(ctx, manager); err != nil {
		return err
	}
	w.report.say("Controller: kubectl apply -k config/default; in the place of its pods a process under their ServiceAccount")
	w.report.say("Replicas: a process for each pod; decisions wait %v for Redis, not the default 10 ms, because all share this machine", storeTimeout)
	return w.startFleet(checkout)
}

func (w *world) startController(ctx context.Context, manager string) error {
	kubeconfig, err := w.cluster.ServiceAccountKubeconfig(ctx, weirNamespace, "weir-controller")
	if err != nil {
		return err
	}
	w.controller, err = run.StartController(ctx, run.ControllerOptions{
		Program: manager, Kubeconfig: kubeconfig, Redis: w.redis.address(), Table: table,
		LeaseNamespace: weirNamespace, Logs: w.dir,
	})
	return err
}

func (w *world) startFleet(checkout string) error {
	config, err := clientcmd.BuildConfigFromFlags("", w.cluster.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 100
	pods, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	w.fleet = run.StartFleet(run.FleetOptions{
		Pods: pods, Namespace: namespace, Selector: "app=" + deployment, Program: checkout, Logs: w.dir,
		Env: []string{
			"STORE_TIMEOUT=" + storeTimeout.String(),
			"REDIS=" + w.redis.address(), "WEIR_TABLE=" + table,
			"WEIR_NAMESPACE=" + namespace, "WEIR_WORKLOAD=" + deployment,
		},
	})
	return nil
}

// end ends what begin started, whatever part of it there is.
func (w *world) end() error {
	if w.fleet != nil {
		w.fleet.Stop()
	}
	if w.controller != nil {
		w.controller.Stop(5 * time.Second)
	}
	var errs []error
	if w.redis != nil {
		errs = append(errs, w.redis.kill())
	}
	if w.cluster != nil {
		errs = append(errs, w.cluster.Stop())
	}
	return errors.Join(errs...)
}

// keep says whether the user wants to look around afterwards: KEEP=1 make demo.
func keep() bool { return os.Getenv("KEEP") != "" }
