package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/policy"
)

// rules are those of all policies that a scenario has at some time.
type rules []namedRule

// namedRule is a rule and the names by which a scenario can call it.
type namedRule struct {
	namespace, policy string
	rule              policy.Rule
}

// rules collects the rules of the policies that concern the scenario's workload. A policy that a step changes is there
// in each of its forms.
func (s *Scenario) rules() rules {
	var all rules
	add := func(p policy.Policy) {
		if p.Workload() != s.target() {
			return
		}
		for _, r := range p.Spec.Rules {
			all = append(all, namedRule{p.Metadata.Namespace, p.Metadata.Name, r})
		}
	}
	for _, source := range s.Policies {
		for _, p := range source.Policies {
			add(p)
		}
	}
	for _, step := range s.Steps {
		if step.Event != nil && step.Event.Policy != nil {
			for _, p := range step.Event.Policy.Policies {
				add(p)
			}
		}
	}
	return all
}

// find returns the rule with a name: namespace/policy/rule, policy/rule or rule. The last of a rule's forms is it.
func (r rules) find(name string) (namedRule, error) {
	var found *namedRule
	for i := range r {
		full := r[i].namespace + "/" + r[i].policy + "/" + r[i].rule.Name
		if full != name && !strings.HasSuffix(full, "/"+name) {
			continue
		}
		if found != nil && found.policy != r[i].policy {
			return namedRule{}, fmt.Errorf("more than one rule has the name %q: write the policy in front of it", name)
		}
		found = &r[i]
	}
	if found == nil {
		return namedRule{}, fmt.Errorf("there is no rule %q: known are %s", name, r)
	}
	return *found, nil
}

func (r rules) String() string {
	var names []string
	for i := range r {
		if name := r[i].policy + "/" + r[i].rule.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// costAttributes are those by which the application prices a request.
func (r rules) costAttributes() []string {
	var names []string
	for i := range r {
		if cost := r[i].rule.Cost; cost != nil && !slices.Contains(names, cost.Attribute) {
			names = append(names, cost.Attribute)
		}
	}
	return names
}

// limitIDs are those of the counters of a rule in all of its forms.
func (r rules) limitIDs(w policy.Workload, of namedRule) []string {
	var ids []string
	for _, form := range r {
		if form.policy != of.policy || form.rule.Name != of.rule.Name {
			continue
		}
		for _, l := range form.rule.Limits {
			window, err := policy.ParseDuration(l.Window)
			if err != nil {
				continue // Load refuses it
			}
			ids = append(ids, policy.LimitID(w, of.policy, of.rule.Name, cmp.Or(l.Algorithm, policy.TokenBucket), window))
		}
	}
	return ids
}
