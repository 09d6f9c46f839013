package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// diffOptions are the flags of diff.
type diffOptions struct {
	cluster  *cluster
	redis    redisOptions
	output   output
	policies []string
}

func newDiff(s streams) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Compare policy files with what is enforced now",
		Long: `Compare the policies of files with what is enforced now, and tell what a change does to the counters.

With --redis they are compared with the rows that pods read, without it with what the API server has. Policies that are
not in the files are left out: applying the files would not change them.

The exit code is 1 if something differs.`,
		Example: `  kubectl weir diff -f checkout.yaml
  kubectl weir diff -f policies/... --redis localhost:6379
  kubectl kustomize overlays/production | kubectl weir diff -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), s) },
	}
	o.cluster = newCluster(cmd)
	o.redis.bind(cmd)
	o.output.bind(cmd)
	cmd.Flags().StringSliceVarP(&o.policies, "filename", "f", nil, "file or folder with the policies, or - for the standard input; can be given several times")
	return cmd
}

// Changes of a policy.
const (
	changeAdded   = "Added"
	changeChanged = "Changed"
	changeSame    = "Same"
	changeRefused = "Refused"
)

// difference is what applying a policy would change.
type difference struct {
	Policy string `json:"policy"` // namespace/name
	Change string `json:"change"`
	// Source says what the policy was compared with: Redis, or API server.
	Source string `json:"source"`
	// Lines begin with a minus, a plus, or a blank where nothing changes.
	Lines []string `json:"lines,omitempty"`
	// Effects are what the change does to counters.
	Effects []string `json:"effects,omitempty"`
	// Note says what is odd about what the policy was compared with.
	Note string `json:"note,omitempty"`
	// Refused says why the controller would not take the policy.
	Refused string `json:"refused,omitempty"`
}

func (o *diffOptions) run(ctx context.Context, s streams) error {
	if len(o.policies) == 0 {
		return usageError{fmt.Errorf("--filename is missing: name the file with the policies")}
	}
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := o.redis.validate(); err != nil {
		return err
	}
	namespace, err := o.cluster.namespace()
	if err != nil {
		return err
	}
	wanted, err := readPoliciesIn(o.policies, s.in, namespace)
	if err != nil {
		return err
	}
	api, err := o.cluster.client()
	if err != nil {
		return err
	}
	differences := []difference{}
	for _, p := range wanted {
		d, err := o.compare(ctx, api, p)
		if err != nil {
			return err
		}
		differences = append(differences, d)
	}
	err = o.output.write(s.out, differences, func(w io.Writer, wide bool) {
		for i := range differences {
			differences[i].print(w, wide)
		}
	})
	if err != nil {
		return fmt.Errorf("writing the differences: %w", err)
	}
	if slices.ContainsFunc(differences, func(d difference) bool { return d.Change != changeSame }) {
		return exitError(exitFailed)
	}
	return nil
}

// compare compares one policy with what is enforced of it.
func (o *diffOptions) compare(ctx context.Context, api client.Client, p policy.Policy) (difference, error) {
	w := p.Workload()
	d := difference{Policy: p.Metadata.Namespace + "/" + p.Metadata.Name, Source: "API server"}
	var objects v1alpha1.RateLimitPolicyList
	if err := api.List(ctx, &objects, client.InNamespace(w.Namespace)); err != nil {
		return d, advise(fmt.Errorf("listing policies: %w", err))
	}
	var others []policy.Policy
	var current []policy.Policy
	for i := range objects.Items {
		object, err := plain(&objects.Items[i])
		if err != nil {
			return d, err
		}
		switch {
		case object.Metadata.Name == p.Metadata.Name:
			current = append(current, object)
			p.Metadata.CreationTimestamp = object.Metadata.CreationTimestamp
		case object.Workload() == w:
			others = append(others, object)
		}
	}
	before, _ := policy.Compile(w, "", current)
	inAPI, _ := policy.Compile(w, "", slices.Concat(current, others))
	table, err := o.redis.inspect(ctx, w)
	if err != nil {
		return d, err
	}
	if table != nil {
		d.Source, before = "Redis", policy.Row{}
		if table.Row != nil {
			if before, _, err = policy.DecodeRow(table.Row); err != nil {
				return d, fmt.Errorf("reading the row in Redis: %w", err)
			}
		} else if len(inAPI.Policies) > 0 {
			d.Note = o.redis.noRow(w) + ", and the API server has policies of it: is it the right --table?"
		}
	}
	after, verdicts := policy.Compile(w, "", append(others, p))
	for _, v := range verdicts {
		if v.Name == p.Metadata.Name && !v.Accepted() {
			d.Change, d.Refused = changeRefused, fmt.Sprintf("%s: %s", v.Reason, v.Message)
			return d, nil
		}
	}
	d.lines(linesOf(before, p.Metadata.Name), linesOf(after, p.Metadata.Name))
	d.Effects = effects(before, after, p.Metadata.Name)
	return d, nil
}

// linesOf writes what a row has of a policy, a fact a line.
func linesOf(row policy.Row, name string) []string {
	var lines []string
	for _, p := range row.Policies {
		if p.Name != name {
			continue
		}
		lines = append(lines, "evaluation: "+string(p.Evaluation))
		for _, e := range p.Exempt {
			lines = append(lines, "exempt: "+matchText(policy.Match{Methods: e.Methods, Route: e.Route, PathPrefix: e.PathPrefix}))
		}
	}
	for i := range row.Rules {
		if r := &row.Rules[i]; r.Policy == name {
			lines = append(lines, ruleLines(r)...)
		}
	}
	return lines
}

func ruleLines(r *policy.RowRule) []string {
	lines := []string{"rule " + r.Name + ":", "  mode: " + string(r.Mode)}
	for _, m := range r.Match {
		lines = append(lines, "  match: "+matchText(m))
	}
	lines = append(lines, "  key: "+keyText(r.Key), "  whenKeyMissing: "+string(r.WhenKeyMissing))
	for _, l := range r.Limits {
		lines = append(lines, "  limit: "+limitText(l))
	}
	for _, o := range r.Overrides {
		when := fmt.Sprintf("  override when %s is %s: ", o.When.Attribute, strings.Join(o.When.Values, ", "))
		if o.Unlimited {
			lines = append(lines, when+"unlimited")
		}
		for _, l := range o.Limits {
			lines = append(lines, when+limitText(l))
		}
	}
	if r.Cost != nil {
		lines = append(lines, fmt.Sprintf("  cost: attribute %s, at most %d", r.Cost.Attribute, r.Cost.Max))
	}
	if r.Lease > 0 {
		lines = append(lines, fmt.Sprintf("  lease: %d tokens", r.Lease))
	}
	if r.Prefilter > 0 {
		lines = append(lines, fmt.Sprintf("  prefilter: %d times the share", r.Prefilter))
	}
	failure := "  onStoreFailure: " + string(r.OnStoreFailure)
	if r.Rounding != "" {
		failure += ", " + string(r.Rounding)
	}
	return append(lines, failure)
}

func matchText(m policy.Match) string {
	var texts []string
	if len(m.Methods) > 0 {
		texts = append(texts, strings.Join(m.Methods, ","))
	}
	if m.Route != "" {
		texts = append(texts, "route "+m.Route)
	}
	if m.PathPrefix != "" {
		texts = append(texts, "pathPrefix "+m.PathPrefix)
	}
	for _, h := range m.Headers {
		texts = append(texts, fmt.Sprintf("header %s=%s", h.Name, h.Value))
	}
	return strings.Join(texts, " ")
}

// lines compares two texts by their longest common subsequence of lines.
func (d *difference) lines(before, after []string) {
	common := make([][]int, len(before)+1) // length of that of before[i:] and after[j:]
	for i := range common {
		common[i] = make([]int, len(after)+1)
	}
	for i := len(before) - 1; i >= 0; i-- {
		for j := len(after) - 1; j >= 0; j-- {
			if before[i] == after[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	d.Change = changeSame
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			d.Lines = append(d.Lines, " "+before[i])
			i, j = i+1, j+1
			continue
		case j == len(after) || i < len(before) && common[i+1][j] >= common[i][j+1]:
			d.Lines = append(d.Lines, "-"+before[i])
			i++
		default:
			d.Lines = append(d.Lines, "+"+after[j])
			j++
		}
		d.Change = changeChanged
	}
	if len(before) == 0 {
		d.Change = changeAdded
	}
}

// effects tells what becomes of the counters of limits that are not the same any more.
func effects(before, after policy.Row, name string) []string {
	type limit struct {
		rule string
		row  policy.RowLimit
	}
	index := func(row policy.Row) (order []string, limits map[string]limit) {
		limits = make(map[string]limit)
		for _, r := range row.Rules {
			if r.Policy != name {
				continue
			}
			for _, l := range r.Limits {
				order = append(order, l.ID)
				limits[l.ID] = limit{r.Name, l}
			}
		}
		return order, limits
	}
	oldOrder, oldLimits := index(before)
	newOrder, newLimits := index(after)
	var all []string
	for _, id := range newOrder {
		now := newLimits[id]
		old, kept := oldLimits[id]
		switch {
		case !kept && len(oldOrder) > 0:
			all = append(all, fmt.Sprintf("%s: %s starts with nothing used", now.rule, limitText(now.row)))
		case kept && old.row != now.row:
			all = append(all, fmt.Sprintf("%s: %s becomes %s and keeps what is used", now.rule, limitText(old.row), limitText(now.row)))
		}
	}
	for _, id := range oldOrder {
		if _, kept := newLimits[id]; !kept {
			old := oldLimits[id]
			all = append(all, fmt.Sprintf("%s: %s goes, and its counters with it", old.rule, limitText(old.row)))
		}
	}
	return all
}

func (d *difference) print(w io.Writer, wide bool) {
	fmt.Fprintf(w, "%s: %s, compared with %s\n", d.Policy, strings.ToLower(d.Change), d.Source)
	if d.Note != "" {
		fmt.Fprintf(w, "  %s\n", d.Note)
	}
	if d.Refused != "" {
		fmt.Fprintf(w, "  the controller would refuse it: %s\n", d.Refused)
		return
	}
	if d.Change == changeSame && !wide {
		return
	}
	for i, line := range d.Lines {
		if wide || line[0] != ' ' || strings.HasPrefix(line, " rule ") && d.touches(i) {
			fmt.Fprintln(w, line)
		}
	}
	for _, effect := range d.Effects {
		fmt.Fprintf(w, "  %s\n", effect)
	}
}

// touches says whether something of the rule whose first line is at i changes.
func (d *difference) touches(i int) bool {
	for _, line := range d.Lines[i+1:] {
		if strings.HasPrefix(line[1:], "rule ") {
			return false
		}
		if line[0] != ' ' {
			return true
		}
	}
	return false
}
