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
	"time"
)

// ErrBroken says that a step did not keep its promise.
var ErrBroken = errors.New("a step of the demo broke its promise")

// Run runs every step and prints to out. It ends all that it started, unless KEEP=1.
func Run(ctx context.Context, out io.Writer, dir string) (err error) {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("emptying the demo's folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the demo's folder: %w", err)
	}
	r := &report{out: out, started: time.Now()}
	w := &world{dir: dir, report: r}
	defer func() {
		if keep() && err == nil {
			fmt.Fprintf(out, "\nIt keeps running until you press Ctrl-C. export KUBECONFIG=%s\n", w.cluster.Kubeconfig)
			<-ctx.Done()
		}
		err = errors.Join(err, w.end())
	}()

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
		return ErrBroken
	}
	return nil
}
