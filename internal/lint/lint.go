// Package lint owns what can be said of policies beyond whether they are valid: how they fit together, and what is
// valid and probably not meant.
package lint

import (
	"cmp"
	"fmt"
	"net/textproto"
	"slices"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

// Policies looks at valid policies that are to be in force together. Errors are what the controller would refuse of
// them, warnings what is probably not meant.
func Policies(policies []manifest.Policy) (errors, warnings manifest.Faults) {
	errors, warnings = together(policies)
	for _, p := range policies {
		warnings = append(warnings, alone(p)...)
	}
	byPlace := func(a, b manifest.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	}
	slices.SortStableFunc(errors, byPlace)
	slices.SortStableFunc(warnings, byPlace)
	return errors, warnings
}

// together finds policies that do not fit into the row of their workload, and names that are there twice, which is fine
// for variants of one policy that are never applied together.
func together(policies []manifest.Policy) (errors, warnings manifest.Faults) {
	type name struct{ namespace, name string }
	first := make(map[name]manifest.Policy)
	workloads := make(map[policy.Workload][]policy.Policy)
	for _, p := range policies {
		n := name{p.Metadata.Namespace, p.Metadata.Name}
		if other, ok := first[n]; ok {
			warnings = append(warnings, p.Fault("metadata.name", "%s/%s is in %s:%d too: applied together, the last one wins",
				n.namespace, n.name, other.File, other.Source.Line()))
			continue
		}
		first[n] = p
		workloads[p.Workload()] = append(workloads[p.Workload()], p.Policy)
	}
	for workload, attached := range workloads {
		_, verdicts := policy.Compile(workload, "", attached)
		for _, v := range verdicts {
			if !v.Accepted() {
				refused := first[name{workload.Namespace, v.Name}]
				errors = append(errors, refused.Fault("spec.rules", "%s: %s", v.Reason, v.Message))
			}
		}
	}
	return errors, warnings
}

// alone finds what is odd about one policy.
func alone(p manifest.Policy) (warnings manifest.Faults) {
	warn := func(path, format string, args ...any) {
		warnings = append(warnings, p.Fault("spec."+path, format, args...))
	}
	for i, e := range p.Spec.Exempt {
		if escapedSlash(e.PathPrefix) {
			warn(fmt.Sprintf("exempt[%d].pathPrefix", i), "exempts nothing: a router may read %%2F as the end of a segment, and a request is exempt only by every reading of its path")
		}
	}
	keyed := slices.ContainsFunc(p.Spec.Rules, func(r policy.Rule) bool { return r.Key != nil })
	for i, r := range p.Spec.Rules {
		at := fmt.Sprintf("rules[%d]", i)
		if r.Key == nil && keyed {
			warn(at, "has no key, so all callers together have its limits, while other rules of this policy count by a key")
		}
		for j, part := range r.Key {
			if forwarded := forwardedHeader(part); forwarded != "" {
				warn(fmt.Sprintf("%s.key[%d]", at, j), "counts by %s, which every client can write: clientIP reads it behind trusted proxies only", forwarded)
			}
		}
		for j, l := range r.Limits {
			if *l.Requests == 0 {
				warn(fmt.Sprintf("%s.limits[%d].requests", at, j), "0 denies every request that the rule matches")
			}
		}
		keys(warn, at+".key", r.Key)
		idle(warn, at+".limits", r.Limits)
		for j, o := range r.Overrides {
			idle(warn, fmt.Sprintf("%s.overrides[%d].limits", at, j), o.Limits)
		}
		leases(warn, p.Spec, i)
		beside(warn, p.Spec, i)
		if cost := r.Cost; cost != nil {
			for j, l := range r.Limits {
				if c := capacity(l); *l.Requests > 0 && cost.Max > c {
					warn(at+".cost.max", "requests that cost more than %d, all that limits[%d] ever holds, are never admitted", c, j)
				}
			}
		}
		if r.LocalShare != nil && effective(r.OnStoreFailure, p.Spec.OnStoreFailure) != policy.OnStoreFailureLocalShare {
			warn(at+".localShare", "has no effect: the policy's onStoreFailure is %s", p.Spec.OnStoreFailure)
		}
		if exempted(p.Spec.Exempt, r) {
			warn(at, "is never reached: every request that it matches is exempt")
		}
	}
	if p.Spec.Evaluation == policy.EvaluationFirstMatch {
		unreached(warn, p.Spec)
	}
	return warnings
}

func effective(rule, spec policy.OnStoreFailure) policy.OnStoreFailure {
	return cmp.Or(rule, spec, policy.OnStoreFailureLocalShare)
}

func capacity(l policy.Limit) int64 {
	if l.Burst != nil {
		return *l.Burst
	}
	return *l.Requests
}

// forwardedHeader returns the name of a header that proxies write for clients, if the part counts by one.
func forwardedHeader(p policy.KeyPart) string {
	for _, inner := range p.FirstOf {
		if name := forwardedHeader(inner); name != "" {
			return name
		}
	}
	switch name := textproto.CanonicalMIMEHeaderKey(p.Header); name {
	case "X-Forwarded-For", "X-Real-Ip", "Forwarded", "True-Client-Ip", "Cf-Connecting-Ip":
		return name
	}
	return ""
}
