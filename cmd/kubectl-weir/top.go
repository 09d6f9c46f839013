package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/internal/policy"
)

// topOptions are the flags of top.
type topOptions struct {
	cluster  *cluster
	interval time.Duration
	count    int
	port     string
	path     string
	urls     []string
}

func newTop(s streams) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top WORKLOAD",
		Short: "Show what each rule admits and denies, live",
		Long: `Show the rates at which the rules of a workload admit and deny, over all of its pods. On a terminal the table is drawn
anew each time, elsewhere each reading is printed.

The numbers are the metrics that the pods export for Prometheus, read through the API server; the role edit allows that.
The port is that of the annotation prometheus.io/port of the pod, or of a container's port with the name metrics. With
--metrics-url the command reads these addresses instead, and needs no cluster.`,
		Example: `  kubectl weir top checkout
  kubectl weir top checkout --metrics-url http://localhost:8080/metrics`,
		Args: workload,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args[0]) },
	}
	o.cluster = newCluster(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time between two readings")
	flags.IntVar(&o.count, "count", 0, "end after so many tables; 0 goes on until it is interrupted")
	flags.StringVar(&o.port, "metrics-port", "", "port of the pods' metrics, by number or name, if nothing in the pod tells it")
	flags.StringVar(&o.path, "metrics-path", "", "path of the metrics; that of the annotation prometheus.io/path, or /metrics, if absent")
	flags.StringArrayVar(&o.urls, "metrics-url", nil, "address of one replica's metrics, in place of the pods'; can be given several times")
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
	return cmd
}

const (
	minInterval = 100 * time.Millisecond
	// scrapeTimeout bounds the reading of one pod.
	scrapeTimeout = 5 * time.Second
	// maxMetrics bounds what one pod may answer.
	maxMetrics = 16 << 20
	// scrapers read at the same time.
	scrapers = 16
)

func (o *topOptions) run(ctx context.Context, s streams, name string) error {
	if o.interval < minInterval || o.count < 0 {
		return usageError{fmt.Errorf("--interval is %v and --count %d: want at least %v and 0", o.interval, o.count, minInterval)}
	}
	for _, address := range o.urls {
		if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usageError{fmt.Errorf("--metrics-url %q: want an address such as http://localhost:8080/metrics", address)}
		}
	}
	w, err := o.cluster.target(name)
	if err != nil {
		return err
	}
	source, err := o.source(w)
	if err != nil {
		return err
	}
	return o.loop(ctx, s, w, source)
}

// source returns what reads all replicas.
func (o *topOptions) source(w policy.Workload) (func(context.Context) ([]replica, error), error) {
	if len(o.urls) > 0 {
		return func(context.Context) ([]replica, error) {
			var all []replica
			for _, address := range o.urls {
				all = append(all, replica{name: address, scrape: func(ctx context.Context) ([]byte, error) { return get(ctx, address) }})
			}
			return all, nil
		}, nil
	}
	api, err := o.cluster.client()
	if err != nil {
		return nil, err
	}
	config, err := o.cluster.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // one request for each pod in an interval
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return func(ctx context.Context) ([]replica, error) { return o.pods(ctx, api, clients, w) }, nil
}

// pods are the ready ones of the workload.
func (o *topOptions) pods(ctx context.Context, api client.Client, clients kubernetes.Interface, w policy.Workload) ([]replica, error) {
	var d appsv1.Deployment
	if err := api.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d); err != nil {
		return nil, advise(fmt.Errorf("reading the Deployment: %w", err))
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the Deployment: %w", err)
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, advise(fmt.Errorf("listing pods: %w", err))
	}
	var all []replica
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		port := cmp.Or(o.port, pod.Annotations["prometheus.io/port"], portOf(pod))
		if port == "" {
			return nil, fmt.Errorf("nothing in pod %s tells the port of its metrics: give it with --metrics-port", pod.Name)
		}
		path := cmp.Or(o.path, pod.Annotations["prometheus.io/path"], "/metrics")
		all = append(all, replica{name: pod.Name, scrape: func(ctx context.Context) ([]byte, error) {
			data, err := clients.CoreV1().Pods(w.Namespace).ProxyGet("http", pod.Name, port, path, nil).DoRaw(ctx)
			if apierrors.IsForbidden(err) {
				return nil, fmt.Errorf("reading pod %s needs the right to get pods/proxy, which the role edit has: %w", pod.Name, err)
			}
			return data, err
		}})
	}
	return all, nil
}

// portOf is the number of the port that is named for metrics.
func portOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == "metrics" {
				return strconv.Itoa(int(p.ContainerPort))
			}
		}
	}
	return ""
}

func get(ctx context.Context, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxMetrics))
}

// replica is one that can be read.
type replica struct {
	name   string
	scrape func(context.Context) ([]byte, error)
}

// loop reads until ctx ends. The first reading has no rates yet, so the first table comes after the second.
func (o *topOptions) loop(ctx context.Context, s streams, w policy.Workload, source func(context.Context) ([]replica, error)) error {
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	before := map[string]reading{}
	for shown := 0; ; {
		replicas, err := source(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		if len(replicas) == 0 {
			return fmt.Errorf("%s/%s has no running pod: `kubectl weir status %s -n %s` shows its replicas", w.Namespace, w.Name, w.Name, w.Namespace)
		}
		now, failed := readAll(ctx, replicas)
		if len(now) == 0 {
			return ended(ctx, fmt.Errorf("no replica tells its metrics: %w: check --metrics-port and --metrics-path", failed))
		}
		if len(before) > 0 {
			rates := ratesOf(before, now)
			if isTerminal(s.out) {
				fmt.Fprint(s.out, "\x1b[H\x1b[J")
			}
			rates.print(s.out, w, len(replicas), time.Now())
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

// ended is no error when the user ended the command.
func ended(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// readAll reads the replicas, and returns one of the errors for those that do not answer.
func readAll(ctx context.Context, replicas []replica) (map[string]reading, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var mu sync.Mutex
	all := make(map[string]reading)
	var failed error
	places := make(chan struct{}, scrapers)
	var wait sync.WaitGroup
	for _, r := range replicas {
		wait.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			data, err := r.scrape(ctx)
			var read reading
			if err == nil {
				read, err = parseMetrics(data)
				read.at = time.Now()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			all[r.name] = read
		})
	}
	wait.Wait()
	return all, failed
}

// rates are what happens in a second, over all replicas.
type rates struct {
	rules []ruleRates
	// read is how many replicas were, open how many of them do without Redis.
	read, open int
}

type ruleRates struct {
	name             string // empty: no rule decided
	admitted, denied float64
	shadowed         float64 // would have been denied
	sources          map[string]float64
}

// ratesOf compares two readings. A replica that was not there before, or whose counts began anew, begins at 0.
func ratesOf(before, now map[string]reading) rates {
	var out rates
	byName := map[string]*ruleRates{}
	for name, read := range now {
		out.read++
		if read.open {
			out.open++
		}
		last, known := before[name]
		if !known {
			continue
		}
		seconds := read.at.Sub(last.at).Seconds()
		if seconds <= 0 {
			continue
		}
		for key, count := range read.decisions {
			grown := count - last.decisions[key]
			if grown < 0 {
				grown = count
			}
			r := byName[key.rule]
			if r == nil {
				r = &ruleRates{name: key.rule, sources: map[string]float64{}}
				byName[key.rule] = r
			}
			r.add(key, grown/seconds)
		}
	}
	for _, r := range byName {
		out.rules = append(out.rules, *r)
	}
	slices.SortFunc(out.rules, func(a, b ruleRates) int {
		return cmp.Or(cmp.Compare(b.denied+b.shadowed, a.denied+a.shadowed), cmp.Compare(b.admitted, a.admitted), cmp.Compare(a.name, b.name))
	})
	return out
}

func (r *ruleRates) add(key decisionKey, rate float64) {
	switch {
	case key.source == "Shadow" && key.denied:
		r.shadowed += rate
		return
	case key.source == "Shadow":
		return // counted by the rule that decided
	case key.denied:
		r.denied += rate
	default:
		r.admitted += rate
	}
	r.sources[key.source] += rate
}

func (r rates) print(w io.Writer, of policy.Workload, replicas int, now time.Time) {
	fmt.Fprintf(w, "%s/%s at %s: %d of %s read", of.Namespace, of.Name, now.Format(time.TimeOnly), r.read, plural(replicas, "replica"))
	if r.open > 0 {
		fmt.Fprintf(w, ", %d without Redis", r.open)
	}
	fmt.Fprint(w, "\n\n")
	t := newTable(w, "RULE", "ADMITTED/S", "DENIED/S", "", "SHADOW DENIED/S", "ANSWERED BY")
	for _, rule := range r.rules {
		name := rule.name
		if name == "" {
			name = "(no rule)"
		}
		all := rule.admitted + rule.denied
		share := "-"
		if all > 0 {
			share = fmt.Sprintf("%.1f%%", 100*rule.denied/all)
		}
		t.row(name, perSecond(rule.admitted), perSecond(rule.denied), share, perSecond(rule.shadowed), rule.answeredBy(all))
	}
	t.flush()
	fmt.Fprintln(w)
}

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }

// answeredBy lists who answered, the most frequent first.
func (r *ruleRates) answeredBy(all float64) string {
	var names []string
	for name, rate := range r.sources {
		if rate > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.sources[b], r.sources[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %.0f%%", name, 100*r.sources[name]/all)
	}
	return dash(strings.Join(names, ", "))
}

var errNoMetrics = errors.New("there are none of Weir, so the application may not export what it gave as ratelimit.Options.Registerer")
