package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	cluster *cluster
	redis   redisOptions
	request requestOptions
	output  output
}

func newExplain(s streams) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain WORKLOAD",
		Short: "Explain which rules and limits hold for a request",
		Long: `Explain what the policies of a workload make of a request: which rules match, what it is counted by, which limits
hold, and who answers while Redis does not.

With --redis it is the row that pods read, without it what the API server has. Nothing is charged.`,
		Example: `  kubectl weir explain checkout --method POST --route /exports --header X-Api-Key=acme
  kubectl weir explain checkout --path /items/42 --remote 203.0.113.7 --redis localhost:6379`,
		Args: workload,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args[0]) },
	}
	o.cluster = newCluster(cmd)
	o.redis.bind(cmd)
	o.request.bind(cmd)
	o.output.bind(cmd)
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
	return cmd
}

// explanation is what policies make of a request.
type explanation struct {
	Workload string `json:"workload"`
	Request  string `json:"request"`
	// Source says where the policies were read: Redis, or API server.
	Source   string          `json:"source"`
	Revision string          `json:"revision,omitempty"`
	Replicas int             `json:"replicas,omitempty"`
	Members  int             `json:"reportingPods,omitempty"`
	Exempt   bool            `json:"exempt,omitempty"`
	Rules    []explainedRule `json:"rules"`
	// Others are the rules that do not apply.
	Others []string `json:"otherRules,omitempty"`
	// Status is that of a response if no limit is spent, Answer who decides.
	Status int    `json:"status"`
	Answer string `json:"answer"`
}

type explainedRule struct {
	Rule string `json:"rule"`
	// Effect is Limits, Shadow, Unlimited, Skipped (key missing), or Denies (key missing).
	Effect string `json:"effect"`
	// Key says what the rule counts by, Identity its hash as it stands in Redis' keys, shortened.
	Key            string                `json:"key"`
	Identity       string                `json:"identity,omitempty"`
	Override       string                `json:"override,omitempty"`
	Cost           int64                 `json:"cost"`
	OnStoreFailure policy.OnStoreFailure `json:"onStoreFailure"`
	Limits         []explainedLimit      `json:"limits,omitempty"`
}

type explainedLimit struct {
	Limit string `json:"limit"`
	ID    string `json:"id"`
	// Each is what each replica admits on its own while the store is away.
	Each string `json:"eachReplica,omitempty"`
}

func (o *explainOptions) run(ctx context.Context, s streams, name string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := o.redis.validate(); err != nil {
		return err
	}
	request, proxies, err := o.request.parse()
	if err != nil {
		return err
	}
	w, err := o.cluster.target(name)
	if err != nil {
		return err
	}
	api, err := o.cluster.client()
	if err != nil {
		return err
	}
	found, err := readRow(ctx, api, &o.redis, w)
	if err != nil {
		return err
	}
	e, err := explainer(ctx, found.row, proxies)
	if err != nil {
		return err
	}
	rules, exempt := e.Explain(request)
	told := explain(w, found, rules, exempt)
	told.Request = o.request.describe()
	if err := o.output.write(s.out, told, told.print); err != nil {
		return fmt.Errorf("writing the explanation: %w", err)
	}
	return nil
}

func explain(w policy.Workload, found inForce, rules []enforcer.Explained, exempt bool) explanation {
	out := explanation{
		Workload: w.String(), Source: found.source, Revision: revisionText(found.row.Revision), Replicas: found.replicas,
		Members: found.members, Exempt: exempt, Rules: []explainedRule{}, Status: http.StatusOK,
	}
	applies := map[string]bool{}
	limited, leased := false, true
	for i := range rules {
		x := &rules[i]
		name := x.Policy + "/" + x.Rule
		applies[name] = true
		row := ruleOf(found.row, x.Policy, x.Rule)
		told := explainedRule{Rule: name, Effect: "Limits", Key: keyText(row.Key), Cost: x.Cost, OnStoreFailure: x.OnStoreFailure}
		switch {
		case x.Skipped:
			told.Effect, told.Key = "Skipped", told.Key+": missing, so the rule is passed over"
		case x.Refused:
			told.Effect, told.Key = "Denies", told.Key+": missing, which is answered with 400"
			if !x.Shadow && out.Status == http.StatusOK {
				out.Status = http.StatusBadRequest
			}
		case x.Unlimited:
			told.Effect = "Unlimited"
		case x.Shadow:
			told.Effect = "Shadow"
		default:
			limited, leased = true, leased && row.Lease > 0
		}
		if x.Fallback {
			told.Key += ": missing, counted by " + fallbackText(row.WhenKeyMissing)
		}
		if !x.Skipped && !x.Refused {
			told.Identity = identityText(x.Identity)
		}
		if x.Override >= 0 {
			when := row.Overrides[x.Override].When
			told.Override = fmt.Sprintf("attribute %s is one of %s", when.Attribute, strings.Join(when.Values, ", "))
		}
		for _, l := range x.Limits {
			limit := explainedLimit{Limit: limitText(l.Row), ID: l.Row.ID}
			if found.replicas > 0 || x.OnStoreFailure != policy.OnStoreFailureLocalShare {
				limit.Each = eachReplica(x.OnStoreFailure, l.Row, x.Rounding, x.MaxCost, found.replicas, x.Turn)
			}
			if l.Counter.Cost > l.Counter.Limit.Capacity() && !x.Shadow && out.Status == http.StatusOK {
				out.Status = http.StatusTooManyRequests
			}
			told.Limits = append(told.Limits, limit)
		}
		out.Rules = append(out.Rules, told)
	}
	for _, r := range found.row.Rules {
		if name := r.Policy + "/" + r.Name; !applies[name] {
			out.Others = append(out.Others, name)
		}
	}
	switch {
	case out.Status == http.StatusBadRequest:
		out.Answer = "the library, without asking anybody: a part of the key is missing"
	case out.Status == http.StatusTooManyRequests:
		out.Answer = "the library, without asking anybody: no wait makes room for this request"
	case limited && leased:
		out.Answer = "a lease of the pod that has one, otherwise by Redis, while it answers in time"
	case limited:
		out.Answer = "Redis, while it answers in time"
	case exempt:
		out.Answer = "the library: exempt, neither charged nor denied"
	default:
		out.Answer = "the library: no rule limits this request"
	}
	return out
}

func ruleOf(row policy.Row, policyName, rule string) policy.RowRule {
	for _, r := range row.Rules {
		if r.Policy == policyName && r.Name == rule {
			return r
		}
	}
	return policy.RowRule{}
}

func fallbackText(missing policy.WhenKeyMissing) string {
	if missing == policy.WhenKeyMissingAnonymous {
		return "one budget for all such requests"
	}
	return "the client's address"
}

// keyText writes what a rule counts by.
func keyText(parts []policy.KeyPart) string {
	if len(parts) == 0 {
		return "one budget for the workload"
	}
	var texts []string
	for _, p := range parts {
		switch {
		case p.Header != "":
			texts = append(texts, "header "+p.Header)
		case p.Attribute != "":
			texts = append(texts, "attribute "+p.Attribute)
		case p.ClientIP != nil:
			texts = append(texts, "clientIP")
		case p.Request != "":
			texts = append(texts, "request "+string(p.Request))
		default:
			var inner []string
			for _, first := range p.FirstOf {
				inner = append(inner, keyText([]policy.KeyPart{first}))
			}
			texts = append(texts, "first of "+strings.Join(inner, ", "))
		}
	}
	return strings.Join(texts, " and ")
}

func (x explanation) print(w io.Writer, wide bool) {
	workload, err := policy.ParseWorkload(x.Workload)
	if err != nil {
		return
	}
	source := "as the API server has the policies (give --redis for the row that pods read)"
	if x.Source == "Redis" {
		source = "by revision " + x.Revision + " in Redis"
	}
	fmt.Fprintf(w, "%s for %s/%s, %s\n\n", x.Request, workload.Namespace, workload.Name, source)
	if len(x.Rules) > 0 {
		head := []string{"RULE", "EFFECT", "LIMIT", "COST", "COUNTED BY"}
		if wide {
			head = append(head, "IDENTITY", "LIMIT ID")
		}
		t := newTable(w, head...)
		for _, r := range x.Rules {
			limits := r.Limits
			if len(limits) == 0 {
				limits = []explainedLimit{{}}
			}
			for _, l := range limits {
				values := []string{r.Rule, r.Effect, dash(l.Limit), fmt.Sprint(r.Cost), r.Key}
				if wide {
					values = append(values, dash(r.Identity), dash(l.ID))
				}
				t.row(values...)
			}
		}
		t.flush()
		for _, r := range x.Rules {
			if r.Override != "" {
				fmt.Fprintf(w, "%s: by an override, because %s\n", r.Rule, r.Override)
			}
		}
		fmt.Fprintln(w)
	}
	if len(x.Others) > 0 {
		fmt.Fprintf(w, "Not asked: %s\n", strings.Join(x.Others, ", "))
	}
	fmt.Fprintf(w, "Answered by %s.\n", x.Answer)
	x.printOutage(w)
}

func (x explanation) printOutage(w io.Writer) {
	limited := false
	for _, r := range x.Rules {
		limited = limited || r.Effect == "Limits"
	}
	if x.Status != http.StatusOK || !limited {
		return
	}
	fmt.Fprintf(w, "\nWhile Redis is away, with %s:\n", plural(x.Replicas, "replica"))
	t := newTable(w, "RULE", "ON STORE FAILURE", "EACH REPLICA ADMITS")
	for _, r := range x.Rules {
		if r.Effect != "Limits" {
			continue
		}
		for _, l := range r.Limits {
			t.row(r.Rule, string(r.OnStoreFailure), dash(l.Each))
		}
	}
	t.flush()
}
