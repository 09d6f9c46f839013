package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// shadowOptions are the flags of shadow.
type shadowOptions struct {
	cluster  *cluster
	output   output
	policies []string
	off      bool
	apply    bool
}

// shadowedAnnotation holds the modes that a policy had before, so that it gets exactly those back.
const shadowedAnnotation = "ratelimit.weir.dev/modes-before-shadow"

func newShadow(s streams) *cobra.Command {
	var o shadowOptions
	cmd := &cobra.Command{
		Use:   "shadow WORKLOAD",
		Short: "Have the policies of a workload count and not deny, and back",
		Long: `Put the policies of a workload into Shadow mode: requests are counted and reported, and none is denied. With --off
each rule gets the mode back that it had.

The command prints the patches. Only with --apply it applies them; a tool that keeps the cluster like a repository will
undo that, so put the change there or pause the tool.`,
		Example: `  kubectl weir shadow checkout
  kubectl weir shadow checkout --apply
  kubectl weir shadow checkout --off --apply`,
		Args: workload,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), s, args[0]) },
	}
	o.cluster = newCluster(cmd)
	o.output.bind(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "only these policies; all of the workload if absent")
	flags.BoolVar(&o.off, "off", false, "give the rules the modes back that they had")
	flags.BoolVar(&o.apply, "apply", false, "apply the patches")
	cmd.ValidArgsFunction = o.cluster.completeWorkloads
	return cmd
}

// modes are those that a policy says itself; empty is inherited.
type modes struct {
	Spec  v1alpha1.Mode            `json:"spec,omitempty"`
	Rules map[string]v1alpha1.Mode `json:"rules,omitempty"`
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patched is what is to become of a policy.
type patched struct {
	Policy  string      `json:"policy"`
	Patch   []operation `json:"patch,omitempty"`
	Applied bool        `json:"applied"`
	// Note says why there is nothing to do.
	Note string `json:"note,omitempty"`
}

func (o *shadowOptions) run(ctx context.Context, s streams, name string) error {
	if err := o.output.validate(); err != nil {
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
	objects, err := policiesOf(ctx, api, w)
	if err != nil {
		return err
	}
	if len(o.policies) > 0 {
		objects = slices.DeleteFunc(objects, func(p v1alpha1.RateLimitPolicy) bool { return !slices.Contains(o.policies, p.Name) })
		if len(objects) == 0 {
			return fmt.Errorf("%s/%s has no policy %s: `kubectl weir status` lists those that it has", w.Namespace, w.Name, strings.Join(o.policies, ", "))
		}
	}
	var all []patched
	for i := range objects {
		p := &objects[i]
		var change patched
		if o.off {
			change, err = unshadow(p)
		} else {
			change, err = intoShadow(p)
		}
		if err != nil {
			return err
		}
		if o.apply && len(change.Patch) > 0 {
			if err := apply(ctx, api, p, change.Patch); err != nil {
				return err
			}
			change.Applied = true
		}
		all = append(all, change)
	}
	if err := o.output.write(s.out, all, func(out io.Writer, _ bool) { printPatches(out, w.Namespace, all) }); err != nil {
		return fmt.Errorf("writing the patches: %w", err)
	}
	if !o.apply && slices.ContainsFunc(all, func(p patched) bool { return len(p.Patch) > 0 }) {
		fmt.Fprintln(s.err, "Nothing was changed. Apply this with --apply, or make the change where the policies are kept.")
	}
	return nil
}

func apply(ctx context.Context, api client.Client, p *v1alpha1.RateLimitPolicy, patch []operation) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	if err := api.Patch(ctx, p, client.RawPatch(types.JSONPatchType, data)); err != nil {
		return advise(fmt.Errorf("patching policy %s/%s: %w", p.Namespace, p.Name, err))
	}
	return nil
}

// intoShadow takes the modes of the rules away, and sets the policy's.
func intoShadow(p *v1alpha1.RateLimitPolicy) (patched, error) {
	out := patched{Policy: p.Name}
	before := modes{Spec: p.Spec.Mode, Rules: map[string]v1alpha1.Mode{}}
	enforced := false
	var rules []operation
	for i, r := range p.Spec.Rules {
		enforced = enforced || r.Mode == v1alpha1.ModeEnforce || r.Mode == "" && p.Spec.Mode != v1alpha1.ModeShadow
		if r.Mode == "" {
			continue
		}
		before.Rules[r.Name] = r.Mode
		rules = append(rules, testRule(i, r.Name), operation{Op: "remove", Path: fmt.Sprintf("/spec/rules/%d/mode", i)})
	}
	if !enforced {
		out.Note = "no rule of it denies"
		return out, nil
	}
	text, err := json.Marshal(before)
	if err != nil {
		return out, fmt.Errorf("encoding the modes: %w", err)
	}
	if p.Annotations == nil {
		out.Patch = append(out.Patch, operation{Op: "add", Path: "/metadata/annotations", Value: map[string]string{shadowedAnnotation: string(text)}})
	} else {
		out.Patch = append(out.Patch, operation{Op: "add", Path: annotationPath, Value: string(text)})
	}
	out.Patch = append(out.Patch, operation{Op: "add", Path: "/spec/mode", Value: v1alpha1.ModeShadow})
	out.Patch = append(out.Patch, rules...)
	return out, nil
}

var annotationPath = "/metadata/annotations/" + strings.ReplaceAll(shadowedAnnotation, "/", "~1")

// testRule has a patch fail when the rules are not those that it was made for.
func testRule(i int, name string) operation {
	return operation{Op: "test", Path: fmt.Sprintf("/spec/rules/%d/name", i), Value: name}
}

// unshadow gives the modes back that the annotation holds. A rule that came since stays as it is.
func unshadow(p *v1alpha1.RateLimitPolicy) (patched, error) {
	out := patched{Policy: p.Name}
	text, ok := p.Annotations[shadowedAnnotation]
	if !ok {
		out.Note = "it was not put into Shadow mode by this command: edit its modes where it is kept"
		return out, nil
	}
	var before modes
	if err := json.Unmarshal([]byte(text), &before); err != nil {
		return out, fmt.Errorf("the annotation %s of policy %s cannot be read: remove it and set the modes by hand: %w", shadowedAnnotation, p.Name, err)
	}
	switch {
	case before.Spec != "":
		out.Patch = append(out.Patch, operation{Op: "add", Path: "/spec/mode", Value: before.Spec})
	case p.Spec.Mode != "":
		out.Patch = append(out.Patch, operation{Op: "remove", Path: "/spec/mode"})
	}
	for i, r := range p.Spec.Rules {
		if mode, ok := before.Rules[r.Name]; ok && r.Mode == "" {
			out.Patch = append(out.Patch, testRule(i, r.Name), operation{Op: "add", Path: fmt.Sprintf("/spec/rules/%d/mode", i), Value: mode})
		}
	}
	out.Patch = append(out.Patch, operation{Op: "remove", Path: annotationPath})
	return out, nil
}

func printPatches(w io.Writer, namespace string, all []patched) {
	for _, p := range all {
		switch {
		case p.Note != "":
			fmt.Fprintf(w, "# %s/%s: %s\n", namespace, p.Policy, p.Note)
		case p.Applied:
			fmt.Fprintf(w, "# %s/%s: applied\n", namespace, p.Policy)
		}
		if len(p.Patch) == 0 {
			continue
		}
		data, err := json.Marshal(p.Patch)
		if err != nil {
			continue // texts and lists always encode
		}
		fmt.Fprintf(w, "kubectl patch ratelimitpolicies.ratelimit.weir.dev %s -n %s --type json -p '%s'\n",
			p.Policy, namespace, strings.ReplaceAll(string(data), "'", `'\''`))
	}
}
