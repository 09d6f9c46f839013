package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// statusOptions are the flags of status.
type statusOptions struct {
	cluster *cluster
	redis   redisOptions
	output  output
	all     bool
}

func newStatus(s streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [WORKLOAD]",
		Short: "Show which policies are enforced, by whom, and why not",
		Long: `Show the policies of a namespace, or everything about those of one workload: replicas, what each of them admits
while Redis is away, and who enforces which revision.

With --redis the command looks at what the pods themselves report. Without it, it shows what the API server knows.

The exit code is 1 unless all policies that are shown are ready as they are now, and if Redis has no row of the workload's
policies. To wait for that, use kubectl wait --for=condition=Ready.`,
		Example: `  kubectl weir status
  kubectl weir status checkout -n shop --redis localhost:6379`,
		Args: workloadOrAll,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args) },
	}
	o.cluster = newCluster(cmd)
	o.redis.bind(cmd)
	o.output.bind(cmd)
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "show the policies of all namespaces")
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
	return cmd
}

// workloadStatus is what is known of a workload. The lists are in JSON as they are here.
type workloadStatus struct {
	Workload string         `json:"workload"`
	Policies []policyStatus `json:"policies"`

	// The rest is told of one workload, not in lists.
	Replicas *v1alpha1.ReplicasStatus `json:"replicas,omitempty"`
	Shares   []shareStatus            `json:"shares,omitempty"`
	Pods     []podStatus              `json:"pods,omitempty"`
	// Source says where pods and revision come from: Redis, or the API server.
	Source string `json:"source,omitempty"`
	// Revision is the one in Redis, Owner the installation that owns the table there.
	Revision string `json:"revision,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// Problem says why Redis tells nothing of the policies.
	Problem string `json:"problem,omitempty"`
}

type policyStatus struct {
	Name     string `json:"name"`
	Rules    int    `json:"rules"`
	Shadow   int    `json:"shadowRules,omitempty"`
	Enforced string `json:"enforced,omitempty"`
	Ready    string `json:"ready"`
	Revision string `json:"revision,omitempty"`
	Counted  int32  `json:"replicas,omitempty"`
	// Reasons are the conditions that are not as they should be, and warnings.
	Reasons []string `json:"reasons,omitempty"`
	Age     string   `json:"age,omitempty"`
}

// shareStatus is what each replica admits of a limit while Redis is away.
type shareStatus struct {
	Rule           string                `json:"rule"`
	Limit          string                `json:"limit"`
	OnStoreFailure policy.OnStoreFailure `json:"onStoreFailure"`
	// Each has the shares of the replicas, for one identity; which replica has which differs by identity.
	Each string `json:"each"`
}

// podStatus is one pod, and what the limiter in it reports.
type podStatus struct {
	Pod   string `json:"pod"`
	State string `json:"state"`
	// Revision and Library are as reported; empty where nothing is.
	Revision string `json:"revision,omitempty"`
	Library  string `json:"library,omitempty"`
	Skipped  int    `json:"skippedRules,omitempty"`
}

func (o *statusOptions) run(ctx context.Context, s streams, args []string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := o.redis.validate(); err != nil {
		return err
	}
	if o.all && len(args) > 0 {
		return usageError{fmt.Errorf("a workload and --all-namespaces exclude each other: use -n for the workload's namespace")}
	}
	if len(args) == 0 {
		if o.redis.given() {
			return usageError{fmt.Errorf("--redis shows the pods of one workload: name it, for example `kubectl weir status checkout`, or leave --redis out")}
		}
		return o.list(ctx, s)
	}
	w, err := o.cluster.target(args[0])
	if err != nil {
		return err
	}
	api, err := o.cluster.client()
	if err != nil {
		return err
	}
	found, err := o.one(ctx, api, w)
	if err != nil {
		return err
	}
	if err := o.output.write(s.out, found, found.print); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	if found.Problem != "" {
		return exitError(exitFailed)
	}
	return readiness(found.Policies)
}

func (o *statusOptions) list(ctx context.Context, s streams) error {
	namespace, err := o.cluster.namespace()
	if err != nil {
		return err
	}
	if o.all {
		namespace = ""
	}
	api, err := o.cluster.client()
	if err != nil {
		return err
	}
	policies, err := listPolicies(ctx, api, namespace)
	if err != nil {
		return err
	}
	if len(policies) == 0 {
		where := "in namespace " + namespace
		if o.all {
			where = "in the cluster"
		}
		fmt.Fprintf(s.err, "There are no policies %s: `kubectl apply` one, or look elsewhere with -n or -A\n", where)
	}
	workloads := []workloadStatus{}
	var all []policyStatus
	for i := range policies {
		name := workloadOf(&policies[i]).String()
		if n := len(workloads); n == 0 || workloads[n-1].Workload != name {
			workloads = append(workloads, workloadStatus{Workload: name})
		}
		told := statusOf(&policies[i])
		last := &workloads[len(workloads)-1]
		last.Policies = append(last.Policies, told)
		all = append(all, told)
	}
	err = o.output.write(s.out, workloads, func(out io.Writer, wide bool) {
		if len(workloads) > 0 {
			printPolicies(out, workloads, o.all, wide)
		}
	})
	if err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return readiness(all)
}

// readiness fails unless all policies say that they are ready as they are now.
func readiness(policies []policyStatus) error {
	if slices.ContainsFunc(policies, func(p policyStatus) bool { return p.Ready != string(metav1.ConditionTrue) }) {
		return exitError(exitFailed)
	}
	return nil
}

// one collects what is known of a workload.
func (o *statusOptions) one(ctx context.Context, api client.Client, w policy.Workload) (workloadStatus, error) {
	out := workloadStatus{Workload: w.String(), Source: "API server"}
	objects, err := policiesOf(ctx, api, w)
	if err != nil {
		return out, err
	}
	for i := range objects {
		out.Policies = append(out.Policies, statusOf(&objects[i]))
		if r := objects[i].Status.Replicas; r != nil {
			out.Replicas = r
		}
	}
	row, err := compileObjects(w, objects)
	if err != nil {
		return out, err
	}
	table, err := o.redis.inspect(ctx, w)
	if err != nil {
		return out, err
	}
	n := 0
	if out.Replicas != nil {
		n = int(out.Replicas.Counted)
	}
	if table != nil {
		out.Source, out.Owner = "Redis", table.Owner
		if r := table.Replicas; r != nil {
			n = r.N
			out.Replicas = &v1alpha1.ReplicasStatus{
				Counted: int32(r.N), Ready: new(int32(r.Ready)), Desired: new(int32(r.Desired)), Terminating: new(int32(r.Terminating)),
			}
		}
		if table.Row == nil && len(row.Policies) > 0 {
			out.Problem = o.redis.noRow(w) + ": is it the right --table, and does the controller write to it?"
			return out, nil
		}
		if table.Row != nil {
			if row, _, err = policy.DecodeRow(table.Row); err != nil {
				return out, fmt.Errorf("reading the row in Redis: %w", err)
			}
			out.Revision = revisionText(row.Revision)
		}
	}
	if n > 0 {
		out.Shares = sharesOf(row, n)
	}
	out.Pods, err = podsOf(ctx, api, w, row, table)
	return out, err
}

func revisionText(r policy.Revision) string {
	if r.IsZero() {
		return ""
	}
	return r.Epoch + "." + strconv.FormatInt(r.N, 10)
}

func statusOf(p *v1alpha1.RateLimitPolicy) policyStatus {
	out := policyStatus{
		Name: p.Name, Rules: len(p.Spec.Rules), Ready: string(metav1.ConditionUnknown), Revision: p.Status.Revision,
		Age: duration.HumanDuration(time.Since(p.CreationTimestamp.Time)),
	}
	for _, r := range p.Spec.Rules {
		if mode := r.Mode; mode == v1alpha1.ModeShadow || mode == "" && p.Spec.Mode == v1alpha1.ModeShadow {
			out.Shadow++
		}
	}
	if e := p.Status.Enforcers; e != nil {
		out.Enforced = e.Summary
	}
	if r := p.Status.Replicas; r != nil {
		out.Counted = r.Counted
	}
	if ready := meta.FindStatusCondition(p.Status.Conditions, string(v1alpha1.ConditionReady)); ready != nil {
		out.Ready = string(ready.Status)
		if w := warningOf(p, ready); w != "" {
			out.Reasons = append(out.Reasons, w)
		}
	}
	for _, name := range []v1alpha1.ConditionType{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionEnforced} {
		c := meta.FindStatusCondition(p.Status.Conditions, string(name))
		if c != nil && c.Status != metav1.ConditionTrue {
			out.Reasons = append(out.Reasons, fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	switch observed := p.Status.ObservedGeneration; {
	case observed == nil || *observed < 0:
		out.Ready = string(metav1.ConditionUnknown)
		out.Reasons = append(out.Reasons, "no controller has seen it: is Weir running, and does it look after this namespace?")
	case *observed < p.Generation: // what it says is about another policy
		out.Ready = string(metav1.ConditionUnknown)
		out.Reasons = append(out.Reasons, fmt.Sprintf("the controller has seen generation %d and not yet %d", *observed, p.Generation))
	}
	return out
}

// warningOf is what the controller adds to the message of a policy that is ready: what somebody should look at.
func warningOf(p *v1alpha1.RateLimitPolicy, ready *metav1.Condition) string {
	enforced := meta.FindStatusCondition(p.Status.Conditions, string(v1alpha1.ConditionEnforced))
	if enforced == nil || ready.Status != metav1.ConditionTrue {
		return ""
	}
	warning, ok := strings.CutPrefix(ready.Message, enforced.Message+"; ")
	if !ok {
		return ""
	}
	return "warning: " + warning
}

// podsOf joins the pods of the Deployment with what they report. Without Redis, and without the right to see pods, there
// is nothing to tell.
func podsOf(
	ctx context.Context, api client.Client, w policy.Workload, row policy.Row, table *redisstore.Inspection,
) ([]podStatus, error) {
	if table == nil {
		return nil, nil
	}
	var out []podStatus
	reporting := map[string]bool{}
	for _, m := range table.Members {
		reporting[m.Pod] = true
		state := "current"
		if m.Revision.Compare(row.Revision) < 0 {
			state = "behind"
		}
		if m.Revision.IsZero() {
			state = "without policies"
		}
		out = append(out, podStatus{Pod: m.Pod, State: state, Revision: revisionText(m.Revision), Library: m.Library, Skipped: m.Skipped})
	}
	var d appsv1.Deployment
	err := api.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return out, nil
	}
	if err != nil {
		return nil, advise(fmt.Errorf("reading the Deployment: %w", err))
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the Deployment: %w", err)
	}
	var pods corev1.PodList
	err = api.List(ctx, &pods, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if apierrors.IsForbidden(err) {
		return out, nil
	}
	if err != nil {
		return nil, advise(fmt.Errorf("listing pods: %w", err))
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !reporting[p.Name] && p.DeletionTimestamp == nil {
			out = append(out, podStatus{Pod: p.Name, State: "not reporting"})
		}
	}
	return out, nil
}

func (s workloadStatus) print(w io.Writer, wide bool) {
	printPolicies(w, []workloadStatus{s}, false, wide)
	fmt.Fprintln(w)
	if r := s.Replicas; r != nil {
		fmt.Fprintf(w, "Replicas: %d counted (%s ready, %s desired, %s terminating)\n",
			r.Counted, number(r.Ready), number(r.Desired), number(r.Terminating))
	} else {
		fmt.Fprintln(w, "Replicas: not counted yet")
	}
	if s.Problem != "" {
		fmt.Fprintf(w, "\nPods are not shown: %s\n", s.Problem)
		return
	}
	if s.Source == "Redis" {
		fmt.Fprintf(w, "Revision: %s, in the table of installation %s\n", dash(s.Revision), dash(s.Owner))
	}
	if len(s.Shares) > 0 {
		fmt.Fprintln(w)
		t := newTable(w, "RULE", "LIMIT", "ON STORE FAILURE", "EACH REPLICA ADMITS THEN")
		for _, share := range s.Shares {
			t.row(share.Rule, share.Limit, string(share.OnStoreFailure), share.Each)
		}
		t.flush()
	}
	if s.Source != "Redis" {
		fmt.Fprintln(w, "\nThis is what the API server knows. Give --redis to see what each pod reports.")
		return
	}
	fmt.Fprintln(w)
	if len(s.Pods) == 0 {
		fmt.Fprintln(w, "No pod reports: does the application call Run, with this Redis and this table?")
		return
	}
	t := newTable(w, "POD", "STATE", "REVISION", "LIBRARY", "SKIPPED RULES")
	for _, p := range s.Pods {
		t.row(p.Pod, p.State, dash(p.Revision), dash(p.Library), strconv.Itoa(p.Skipped))
	}
	t.flush()
}

func printPolicies(w io.Writer, workloads []workloadStatus, namespaces, wide bool) {
	head := []string{"WORKLOAD", "POLICY", "RULES", "ENFORCED", "READY"}
	if namespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "REPLICAS", "REVISION", "AGE")
	}
	t := newTable(w, head...)
	var reasons []string
	for _, workload := range workloads {
		parts := strings.Split(workload.Workload, "/")
		for _, p := range workload.Policies {
			rules := strconv.Itoa(p.Rules)
			if p.Shadow > 0 {
				rules += fmt.Sprintf(" (%d shadow)", p.Shadow)
			}
			values := []string{parts[len(parts)-1], p.Name, rules, dash(p.Enforced), p.Ready}
			if namespaces {
				values = append([]string{parts[0]}, values...)
			}
			if wide {
				values = append(values, strconv.Itoa(int(p.Counted)), dash(p.Revision), p.Age)
			}
			t.row(values...)
			for _, reason := range p.Reasons {
				reasons = append(reasons, parts[0]+"/"+p.Name+": "+reason)
			}
		}
	}
	t.flush()
	if len(reasons) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(reasons, "\n"))
	}
}

func number(n *int32) string {
	if n == nil {
		return "0"
	}
	return strconv.Itoa(int(*n))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
