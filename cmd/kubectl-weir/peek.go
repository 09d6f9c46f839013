package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// counterOptions are the flags of peek and reset.
type counterOptions struct {
	cluster *cluster
	redis   redisOptions
	request requestOptions
	output  output
	rules   []string
	yes     bool
}

func newPeek(s streams) *cobra.Command {
	var o counterOptions
	cmd := &cobra.Command{
		Use:   "peek WORKLOAD",
		Short: "Show what is left of the limits for a request",
		Long: `Show the counters of one identity: what is left of each limit that holds for a request, and when it is whole again.
Nothing is charged. The identity is that of the request which the flags describe.`,
		Example: `  kubectl weir peek checkout --redis localhost:6379 --method POST --route /exports --header X-Api-Key=acme`,
		Args:    workload,
		RunE:    func(cmd *cobra.Command, args []string) error { return o.peek(cmd.Context(), s, args[0]) },
	}
	o.bind(cmd)
	return cmd
}

func newReset(s streams) *cobra.Command {
	var o counterOptions
	cmd := &cobra.Command{
		Use:   "reset WORKLOAD",
		Short: "Give one identity its whole limits back",
		Long: `Forget the counters of one identity, so that its limits are whole again. The identity is that of the request which the
flags describe; without --yes the command only shows what it would forget.

Counters that are not of one client are left out, as those of a rule without a key are: other clients would get their
limits back, too. --rule forgets the counters of the rules that it names, whoever is counted by them.

It is logged as an event of each policy whose counters are forgotten, with the identity's hash. Pods remember a denial
for up to a second longer.`,
		Example: `  kubectl weir reset checkout --redis localhost:6379 --method POST --route /exports --header X-Api-Key=acme --yes`,
		Args:    workload,
		RunE:    func(cmd *cobra.Command, args []string) error { return o.reset(cmd.Context(), s, args[0]) },
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do it; without this flag it is only shown")
	return cmd
}

func (o *counterOptions) bind(cmd *cobra.Command) {
	o.cluster = newCluster(cmd)
	o.redis.bind(cmd)
	o.request.bind(cmd)
	o.output.bind(cmd)
	cmd.Flags().StringSliceVar(&o.rules, "rule", nil, "only these rules, by name or policy/name; all that hold for the request if absent")
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
}

// standing is what is left of one limit.
type standing struct {
	Policy    string `json:"policy"`
	Rule      string `json:"rule"`
	Identity  string `json:"identity"`
	Limit     string `json:"limit"`
	Requests  int64  `json:"requests"`
	Remaining int64  `json:"remaining"`
	// RetryAfterSeconds is when the request would be admitted, absent when it would be now; ResetAfterSeconds is when the
	// limit is whole again.
	RetryAfterSeconds float64 `json:"retryAfterSeconds,omitempty"`
	ResetAfterSeconds float64 `json:"resetAfterSeconds"`
	Allowed           bool    `json:"allowed"`
	// Shared says that the counter is not that of one client: others are counted by it, too.
	Shared bool `json:"shared,omitempty"`

	retry, reset time.Duration
	counter      enforcer.Counter
}

// counters finds the counters of the request, and what is left of them.
type counters struct {
	api      client.Client
	workload policy.Workload
	store    *redisstore.Store
	close    func() error
	all      []standing
}

func (o *counterOptions) find(ctx context.Context, name string) (*counters, error) {
	for _, err := range []error{o.output.validate(), o.redis.validate(), o.redis.needed()} {
		if err != nil {
			return nil, err
		}
	}
	request, proxies, err := o.request.parse()
	if err != nil {
		return nil, err
	}
	w, err := o.cluster.target(name)
	if err != nil {
		return nil, err
	}
	api, err := o.cluster.client()
	if err != nil {
		return nil, err
	}
	found, err := readRow(ctx, api, &o.redis, w)
	if err != nil {
		return nil, err
	}
	e, err := explainer(ctx, found.row, proxies)
	if err != nil {
		return nil, err
	}
	rules, _ := e.Explain(request)
	client, err := o.redis.client()
	if err != nil {
		return nil, err
	}
	c := &counters{
		api: api, workload: w, close: client.Close,
		store: redisstore.NewStore(redisstore.StoreOptions{Client: client, Table: o.redis.table, Namespace: w.Namespace}),
	}
	var others []string
	for i := range rules {
		if x := &rules[i]; !o.wants(x) && len(x.Limits) > 0 {
			others = append(others, x.Policy+"/"+x.Rule)
		} else if o.wants(x) {
			shared := !byClient(ruleOf(found.row, x.Policy, x.Rule), x, request, proxies)
			for _, l := range x.Limits {
				c.all = append(c.all, standing{
					Policy: x.Policy, Rule: x.Rule, Identity: identityText(x.Identity), Limit: limitText(l.Row),
					Requests: l.Row.Requests, Shared: shared, counter: l.Counter,
				})
			}
		}
	}
	if len(c.all) == 0 {
		_ = c.close()
		if len(others) > 0 {
			return nil, fmt.Errorf("no rule of --rule counts %s: those that do are %s", o.request.describe(), strings.Join(others, ", "))
		}
		return nil, fmt.Errorf("nothing counts %s: `kubectl weir explain` with the same flags says why", o.request.describe())
	}
	if err := c.look(ctx); err != nil {
		_ = c.close()
		return nil, o.redis.advise(err)
	}
	return c, nil
}

func (o *counterOptions) wants(x *enforcer.Explained) bool {
	for _, name := range o.rules {
		if name == x.Rule || name == x.Policy+"/"+x.Rule {
			return true
		}
	}
	return len(o.rules) == 0
}

// byClient says whether the rule counts the request by something of its client, so that its counters are of one client.
func byClient(rule policy.RowRule, x *enforcer.Explained, r enforcer.Request, proxies []netip.Prefix) bool {
	_, addressed := enforcer.ClientAddr(r.Remote, r.Header, proxies)
	if x.Fallback {
		return addressed && rule.WhenKeyMissing != policy.WhenKeyMissingAnonymous
	}
	has := func(p policy.KeyPart) bool {
		return p.Header != "" && strings.TrimSpace(r.Header.Get(p.Header)) != "" || strings.EqualFold(p.Header, "Host") && r.Host != "" ||
			p.Attribute != "" && strings.TrimSpace(r.Attributes[p.Attribute]) != "" || p.ClientIP != nil && addressed
	}
	return slices.ContainsFunc(rule.Key, func(p policy.KeyPart) bool {
		if len(p.FirstOf) == 0 {
			return p.Request == "" // it is there: the request was counted by it
		}
		// Every request has what Request names, so nothing behind it is asked for.
		i := slices.IndexFunc(p.FirstOf, func(p policy.KeyPart) bool { return p.Request != "" || has(p) })
		return i >= 0 && p.FirstOf[i].Request == ""
	})
}

// shared are the rules whose counters are not of one client.
func (c *counters) shared() []string {
	var names []string
	for _, s := range c.all {
		if name := s.Policy + "/" + s.Rule; s.Shared && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// these counters of which there are n, up to the verb.
func these(n int) string {
	if n == 1 {
		return "this counter is"
	}
	return fmt.Sprintf("these %d counters are", n)
}

// look asks the store, without charging.
func (c *counters) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	entries := make([]enforcer.Entry, len(c.all))
	for i := range c.all {
		entries[i] = enforcer.Entry{Counters: []enforcer.Counter{c.all[i].counter}, Enforced: 1}
	}
	answers := make([]enforcer.Answer, len(entries))
	if _, err := c.store.Take(ctx, entries, answers); err != nil {
		return err
	}
	for i := range answers {
		if answers[i].Err != nil {
			return answers[i].Err
		}
		c.all[i].take(answers[i].Results[0])
	}
	return nil
}

func (s *standing) take(r algorithm.Result) {
	s.Remaining, s.Allowed = r.Remaining, r.Allowed
	s.reset = time.Duration(r.ResetAfter) * time.Microsecond
	s.ResetAfterSeconds = s.reset.Seconds()
	if !r.Allowed && r.Satisfiable {
		s.retry = time.Duration(r.RetryAfter) * time.Microsecond
		s.RetryAfterSeconds = s.retry.Seconds()
	}
}

func (o *counterOptions) peek(ctx context.Context, s streams, name string) error {
	c, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }()
	if err := o.output.write(s.out, c.all, c.print); err != nil {
		return fmt.Errorf("writing the counters: %w", err)
	}
	return nil
}

func (c *counters) print(w io.Writer, wide bool) {
	head := []string{"RULE", "LIMIT", "LEFT", "ADMITTED", "WHOLE AGAIN"}
	if wide {
		head = append(head, "IDENTITY")
	}
	t := newTable(w, head...)
	for _, s := range c.all {
		admitted := "now"
		switch {
		case s.retry > 0:
			admitted = "in " + roundUp(s.retry)
		case !s.Allowed:
			admitted = "never"
		}
		whole := "now"
		if s.reset > 0 {
			whole = "in " + roundUp(s.reset)
		}
		values := []string{s.Policy + "/" + s.Rule, s.Limit, thousands(s.Remaining), admitted, whole}
		if wide {
			values = append(values, s.Identity)
		}
		t.row(values...)
	}
	t.flush()
}

// roundUp writes a wait in whole tenths of a second, or seconds from a minute on.
func roundUp(d time.Duration) string {
	unit := time.Second / 10
	if d >= time.Minute {
		unit = time.Second
	}
	return (d + unit - 1).Truncate(unit).String()
}

func (o *counterOptions) reset(ctx context.Context, s streams, name string) error {
	c, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }()
	shared := c.shared()
	if len(o.rules) == 0 {
		c.all = slices.DeleteFunc(c.all, func(s standing) bool { return s.Shared })
	}
	if len(c.all) == 0 {
		return fmt.Errorf("%s would be reset for other clients, too: name it with --rule if that is meant", strings.Join(shared, ", "))
	}
	if err := o.output.write(s.out, c.all, c.print); err != nil {
		return fmt.Errorf("writing the counters: %w", err)
	}
	for _, name := range shared {
		if len(o.rules) == 0 {
			fmt.Fprintf(s.err, "%s is left out, because it counts other clients, too: --rule %[1]s resets it.\n", name)
		} else {
			fmt.Fprintf(s.err, "%s counts other clients, too, and becomes whole for all of them.\n", name)
		}
	}
	if !o.yes {
		fmt.Fprintf(s.err, "Nothing was changed. With --yes %s forgotten and the limits are whole again.\n", these(len(c.all)))
		return nil
	}
	if err := c.log(ctx); err != nil {
		return fmt.Errorf("nothing was changed, because it could not be logged: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	forget := make([]enforcer.Counter, len(c.all))
	for i := range c.all {
		forget[i] = c.all[i].counter
	}
	if err := c.store.Reset(ctx, forget); err != nil {
		return o.redis.advise(err)
	}
	fmt.Fprintf(s.err, "%s forgotten; it is logged as an event of the policy.\n", plural(len(forget), "counter"))
	return nil
}

// log writes an event for each policy whose counters are about to be forgotten.
func (c *counters) log(ctx context.Context) error {
	rules := map[string][]string{}
	var order []string
	for _, s := range c.all {
		if rules[s.Policy] == nil {
			order = append(order, s.Policy)
		}
		rules[s.Policy] = append(rules[s.Policy], fmt.Sprintf("%s of identity %s (%s)", s.Rule, s.Identity, s.Limit))
	}
	for _, name := range order {
		var object v1alpha1.RateLimitPolicy
		if err := c.api.Get(ctx, client.ObjectKey{Namespace: c.workload.Namespace, Name: name}, &object); err != nil {
			return advise(fmt.Errorf("reading policy %s: %w", name, err))
		}
		note := "Counters forgotten: " + strings.Join(rules[name], ", ")
		const longest = 1024
		event := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: object.Namespace, Name: fmt.Sprintf("%s.%s", name, strings.ToLower(rand.Text()[:16])),
			},
			EventTime: metav1.NowMicro(), ReportingController: "ratelimit.weir.dev/kubectl-weir", ReportingInstance: "kubectl-weir",
			Action: "Reset", Reason: "CountersReset", Type: corev1.EventTypeNormal, Note: note[:min(len(note), longest)],
			Regarding: corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "RateLimitPolicy", Namespace: object.Namespace,
				Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion,
			},
		}
		if err := c.api.Create(ctx, event); err != nil {
			return advise(fmt.Errorf("writing the event: %w", err))
		}
	}
	return nil
}
