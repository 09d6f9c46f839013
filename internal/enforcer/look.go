package enforcer

import (
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// Held is what counts a request by one limit of a rule, and what this replica would admit of that limit on its own.
type Held struct {
	Counter Counter
	Share   algorithm.Limit
}

// Held returns what the named rule would count a request by, in the order of its limits, whether or not the rule
// matches it. It is false when no such rule is in force, or the rule's key finds nothing to count by.
func (e *Enforcer) Held(policyName, ruleName string, r Request) ([]Held, bool) {
	s := e.snapshot.Load()
	if s == nil {
		return nil, false
	}
	for i := range s.rules {
		rule := &s.rules[i]
		if rule.policy != policyName || rule.name != ruleName {
			continue
		}
		match := policy.Request{Method: r.Method, Host: r.Host, Route: r.Route, Path: r.Path, Header: r.Header}
		walk := s.matcher.Walk(&match)
		by := subject{request: &r, walk: &walk, trusted: e.options.TrustedProxies, hasher: e.hasher()}
		id, outcome, _ := rule.key.identify(&by, nil)
		if outcome == keyDenied || outcome == keySkipped {
			return nil, false
		}
		var held []Held
		for j := range rule.limits {
			l := &rule.limits[j]
			held = append(held, Held{
				Counter: Counter{Identity: id, ID: l.row.ID, Limit: l.exact, Cost: 1},
				Share:   e.shareOf(origin{rule: rule, limit: l}, id).Limit,
			})
		}
		return held, true
	}
	return nil, false
}

// Place is this replica's among those that share the limits.
func (e *Enforcer) Place() policy.Replica { return e.place() }

// Forget drops what this replica remembers of denials of counters that were reset, and its leases of them. Others have
// theirs for a second at most.
func (e *Enforcer) Forget(counters []Counter) {
	e.denials.forget(counters)
	e.leases.forget(counters)
}
