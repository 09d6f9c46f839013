// Package demo shows the main job on this machine, step by step and in numbers: a policy applied with kubectl is
// enforced in running pods, also when Redis is gone.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// ErrBroken says that a step did not keep its promise.
var ErrBroken = errors.New("a step of the demo broke its promise")

// Run runs every step and prints to out. It ends all that it started, unless KEEP=1.
func Run(ctx context.Context, out io.Writer, dir string) (err error) {
	unlock, err := alone(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("emptying the demo's folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the demo's folder: %w", err)
	}
	r := &report{out: out, started: time.Now()}
	w := &world{dir: dir, report: r}
	defer func() { err = errors.Join(err, w.end()) }()

	fmt.Fprintln(out, "Weir demo: POST /exports of the shop's checkout is limited to 5 per minute for each API key,")
	fmt.Fprintln(out, "over all replicas together. Logs:", filepath.Clean(dir))
	r.heading("Starting a local Kubernetes, a Redis and the controller")
	if err := w.begin(ctx); err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	r.heading("kubectl apply -k config/samples")
	if _, err := w.kubectl(ctx, "apply", "-k", "config/samples"); err != nil {
		return err
	}
	for i, s := range steps {
		r.heading("%d. %s", i+1, s.tell)
		if err := s.do(ctx, w); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.add(s.name, false, "%v", err)
		}
	}
	if !r.summary() {
		err = ErrBroken
	}
	if keep() {
		err = errors.Join(err, w.stay(ctx))
	}
	return err
}

// alone refuses to take away the folder of another demo, which with KEEP=1 may run for ever.
func alone(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("making the demo's folder: %w", err)
	}
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	unlock, err = process.Lock(ctx, dir+".lock", func() { refuse(errRuns) })
	if errors.Is(context.Cause(ctx), errRuns) {
		return nil, errRuns
	}
	return unlock, err
}

var errRuns = errors.New("another demo of this folder runs: end it with Ctrl-C first")

// stay leaves everything running with the policies in force, and says what to try, until ctx ends.
func (w *world) stay(ctx context.Context) error {
	w.report.heading("KEEP=1: kubectl apply -k config/samples once more")
	if _, err := w.kubectl(ctx, "apply", "-k", "config/samples"); err != nil {
		return err
	}
	addresses, err := w.fleet.Addresses(ctx, 3)
	if err != nil {
		return err
	}
	if err := w.settled(ctx, 3); err != nil {
		return err
	}
	w.report.say("Three replicas enforce them")
	kubectl := "bin/kubectl" // where make build-cluster puts it
	if _, err := os.Stat(kubectl); err != nil {
		kubectl = w.cluster.Kubectl
	}
	fmt.Fprint(w.report.out, invitation(kubectl, w.cluster.Kubeconfig, w.redis.address(), addresses))
	<-ctx.Done()
	return nil
}

// invitation says what can be tried while the demo stays, in the folder of the repository.
func invitation(kubectl, kubeconfig, redis string, replicas []string) string {
	urls := make([]string, len(replicas))
	for i, address := range replicas {
		urls[i] = "http://" + address + "/metrics"
	}
	table := "--redis " + redis + " --table " + table
	workload := deployment + " -n " + namespace
	return fmt.Sprintf(`
Everything keeps running until you press Ctrl-C, which ends all of it; make calls that an error. Try in another terminal, in this folder:

  export KUBECONFIG=%s
  %s get rlp -n %s
  curl -i -X POST -H 'X-Api-Key: me' http://%s/exports   # the sixth within a minute gets 429
  go run ./cmd/kubectl-weir status %s %s
  go run ./cmd/kubectl-weir peek %s %s --method POST --route /exports --header X-Api-Key=me
  go run ./cmd/kubectl-weir top %s %s --metrics-url %s

The replicas serve on %s.
`, kubeconfig, kubectl, namespace, replicas[0], workload, table, workload, table, workload, table, strings.Join(urls, ","),
		strings.Join(replicas, ", "))
}
