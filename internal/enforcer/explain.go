package enforcer

import (
	"github.com/weir-dev/weir/internal/policy"
)

// Explained is how a rule that matches a request looks at it.
type Explained struct {
	Policy, Rule string
	Shadow       bool
	// Skipped and Refused requests lack a part of the key, and are not counted.
	Skipped, Refused bool
	// Fallback says that a part of the key is missing and the request is counted by something else.
	Fallback  bool
	Unlimited bool
	// Override is the place of the override in force among the rule's, -1 when the rule's own limits are.
	Override int
	Identity Identity
	// Turn is what turns the ranks of replicas for this identity; policy.ShareOf wants it.
	Turn     uint64
	Cost     int64
	MaxCost  int64
	Rounding policy.Rounding
	// OnStoreFailure says who answers while the store does not.
	OnStoreFailure policy.OnStoreFailure
	Limits         []ExplainedLimit
}

// ExplainedLimit is a limit that counts a request.
type ExplainedLimit struct {
	Row     policy.RowLimit
	Counter Counter
}

// Explain returns how the rules that match a request look at it, in the order in which a decision asks them, and
// whether a policy exempts it. It asks no store.
func (e *Enforcer) Explain(r Request) (rules []Explained, exempt bool) {
	s := e.snapshot.Load()
	if s == nil {
		return nil, false
	}
	walk := s.matcher.Walk(&r)
	about := subject{request: &r, walk: &walk, trusted: e.options.TrustedProxies, hasher: e.hasher()}
	for i, ok := walk.Next(); ok; i, ok = walk.Next() {
		rule := &s.rules[i]
		x := Explained{
			Policy: rule.policy, Rule: rule.name, Shadow: rule.shadow, Override: -1,
			Cost: rule.costOf(r.Attributes), MaxCost: rule.maxCost(), Rounding: rule.rounding, OnStoreFailure: rule.onFailure,
		}
		id, outcome, _ := rule.key.identify(&about, nil)
		x.Identity, x.Turn = id, id.turn()
		switch outcome {
		case keySkipped:
			x.Skipped = true
			walk.Pass(i)
		case keyDenied:
			x.Refused = true
		case keyAbsent:
			x.Fallback = true
		case keyFound:
		}
		if !x.Skipped && !x.Refused {
			limits := rule.limitsFor(r.Attributes)
			x.Unlimited = len(limits) == 0
			x.Override = rule.overrideFor(r.Attributes)
			for j := range limits {
				x.Limits = append(x.Limits, ExplainedLimit{
					Row:     limits[j].row,
					Counter: Counter{Identity: id, ID: limits[j].row.ID, Limit: limits[j].exact, Cost: x.Cost},
				})
			}
		}
		rules = append(rules, x)
	}
	return rules, walk.Exempt()
}
