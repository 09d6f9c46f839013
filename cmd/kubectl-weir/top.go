package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/policy"
)

// topOptions are the flags of top.
type topOptions struct {
	cluster    *cluster
	redis      redisOptions
	output     output
	interval   time.Duration
	count      int
	identities int
	port       string
	path       string
	urls       []string
}

func newTop(s streams) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top WORKLOAD",
		Short: "Show what each rule admits and denies, and whom it denies most, live",
		Long: `Show the rates at which the rules of a workload admit and deny, over all of its pods, and with --redis the identities
that they deny most. On a terminal the table is drawn anew each time, elsewhere each reading is printed.

The rates are the metrics that the pods export for Prometheus, read through the API server; the role edit allows that.
The port is that of the annotation prometheus.io/port of the pod, or of a container's port with the name metrics. With
--metrics-url the command reads these addresses instead, and needs no cluster. Without the right to read the metrics, or
where nothing tells their port, --redis alone shows who is denied.

The identities are what the pods report to Redis every few seconds of the last one to two minutes. They are hashes, the
same as in explain -o wide, unless the application gives their names.`,
		Example: `  kubectl weir top checkout --redis localhost:6379
  kubectl weir top checkout --metrics-url http://localhost:8080/metrics`,
		Args: workload,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args[0]) },
	}
	o.cluster = newCluster(cmd)
	o.redis.bind(cmd)
	o.output.bind(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time between two readings")
	flags.IntVar(&o.count, "count", 0, "end after so many tables; 0 goes on until it is interrupted")
	flags.IntVar(&o.identities, "identities", 10, "how many identities are told, with --redis")
	flags.StringVar(&o.port, "metrics-port", "", "port of the pods' metrics, by number or name, if nothing in the pod tells it")
	flags.StringVar(&o.path, "metrics-path", "", "path of the metrics; that of the annotation prometheus.io/path, or /metrics, if absent")
	flags.StringSliceVar(&o.urls, "metrics-url", nil, "address of one replica's metrics, in place of the pods'; several separated by commas, or given one by one")
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
	return cmd
}

const minInterval = 100 * time.Millisecond

func (o *topOptions) validate() error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := o.redis.validate(); err != nil {
		return err
	}
	if o.interval < minInterval || o.count < 0 || o.identities < 1 {
		return usageError{fmt.Errorf("--interval is %v, --count %d and --identities %d: want at least %v, 0 and 1", o.interval, o.count, o.identities, minInterval)}
	}
	for _, address := range o.urls {
		if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usageError{fmt.Errorf("--metrics-url %q: want an address such as http://localhost:8080/metrics", address)}
		}
	}
	return nil
}

func (o *topOptions) run(ctx context.Context, s streams, name string) error {
	if err := o.validate(); err != nil {
		return err
	}
	w, err := o.cluster.target(name)
	if err != nil {
		return err
	}
	source, err := o.source(w)
	if err != nil {
		return err
	}
	denials, err := o.denials(w)
	if err != nil {
		return err
	}
	if denials != nil {
		defer denials.close()
	}
	return o.loop(ctx, s, w, source, denials)
}

// loop reads until ctx ends. The first reading has no rates yet, so the first table comes after the second.
func (o *topOptions) loop(
	ctx context.Context, s streams, w policy.Workload, source func(context.Context) ([]replica, error), denials *denials,
) error {
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	var before map[string]reading
	for shown := 0; ; {
		now, view, err := o.look(ctx, w, source, before)
		if err != nil {
			return ended(ctx, err)
		}
		if before != nil {
			if view.Denied, err = denials.read(ctx, o.identities); err != nil {
				return ended(ctx, err)
			}
			if err := o.show(s, view, shown); err != nil {
				return err
			}
			if shown++; shown == o.count {
				return nil
			}
		}
		before = now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look reads the replicas once and compares. Whoever cannot read their metrics still sees what is in Redis.
func (o *topOptions) look(
	ctx context.Context, w policy.Workload, source func(context.Context) ([]replica, error), before map[string]reading,
) (map[string]reading, topView, error) {
	replicas, err := source(ctx)
	if err != nil {
		return nil, topView{}, err
	}
	if len(replicas) == 0 {
		return nil, topView{}, fmt.Errorf("%s/%s has no running pod: `kubectl weir status %s -n %s` shows its replicas", w.Namespace, w.Name, w.Name, w.Namespace)
	}
	now, failed := readAll(ctx, replicas)
	view := viewOf(w, len(replicas), ratesOf(before, now))
	if len(now) == 0 {
		switch {
		case o.redis.given():
		case errors.Is(failed, errNoPort):
			return nil, topView{}, failed
		default:
			return nil, topView{}, fmt.Errorf("no replica tells its metrics: %w: check --metrics-port and --metrics-path", failed)
		}
		view.RatesMissing = failed.Error()
	}
	return now, view, nil
}

// show writes a reading, in one piece so that a terminal does not flicker.
func (o *topOptions) show(s streams, view topView, shown int) error {
	var frame bytes.Buffer
	people := o.output == "table" || o.output == "wide"
	switch {
	case people && isTerminal(s.out):
		frame.WriteString("\x1b[H\x1b[J")
	case o.output == "yaml" && shown > 0:
		frame.WriteString("---\n")
	}
	if err := o.output.write(&frame, view, view.print); err != nil {
		return fmt.Errorf("writing a reading: %w", err)
	}
	if people && view.denies() && view.Denied == nil && (shown == 0 || isTerminal(s.out)) {
		fmt.Fprintln(&frame, "Whom they deny most is in Redis: --redis shows it.")
	}
	if _, err := s.out.Write(frame.Bytes()); err != nil {
		return fmt.Errorf("writing a reading: %w", err)
	}
	return nil
}

// ended is no error when the user ended the command.
func ended(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}
