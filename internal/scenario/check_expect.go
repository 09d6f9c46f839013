package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/manifest"
)

func (c *checker) expectOfSend(node manifest.Node, e *Expect, count int) {
	if e.Status != nil {
		node.FaultAt("status", "stands in a step of its own")
	}
	if e.Share != nil {
		node.FaultAt("share", "stands in a step of its own")
	}
	if e.Admitted == nil && e.Denied == nil && e.Decisions == "" && e.First == nil && e.Last == nil && e.Sources == nil && e.Charged == nil {
		node.Fault("expects nothing")
	}
	c.number(node, "admitted", e.Admitted, int64(count))
	c.number(node, "denied", e.Denied, int64(count))
	if rest := strings.Trim(e.decisions(), "AD"); rest != "" {
		node.FaultAt("decisions", fmt.Sprintf("Invalid value: %q: must be A and D only", e.Decisions))
	} else if n := len(e.decisions()); e.Decisions != "" && n != count {
		node.FaultAt("decisions", fmt.Sprintf("has %d decisions of %d requests", n, count))
	}
	c.decision(node, "first", e.First)
	c.decision(node, "last", e.Last)
	for source, number := range e.Sources {
		path := "sources." + string(source)
		if !slices.Contains(source.Supported(), string(source)) {
			node.FaultAt(path, "no decision comes from there: known are "+strings.Join(source.Supported(), ", "))
		}
		c.number(node, path, &number, int64(count))
	}
	for rule, number := range e.Charged {
		c.rule(node, "charged."+rule, rule)
		c.number(node, "charged."+rule, &number, maxCharge)
	}
}

// maxCharge bounds what one step can charge a rule.
const maxCharge = maxCount * 1_000_000

// decisions are those expected, without the blanks that part them for readers.
func (e *Expect) decisions() string { return strings.ReplaceAll(e.Decisions, " ", "") }

func (c *checker) number(node manifest.Node, path string, n *Number, most int64) {
	if n == nil {
		return
	}
	for _, value := range []*int64{n.Exactly, n.AtLeast, n.AtMost} {
		if value != nil && (*value < 0 || *value > most) {
			node.FaultAt(path, fmt.Sprintf("Invalid value: %d: must be from 0 to %d", *value, most))
		}
	}
}

func (c *checker) decision(node manifest.Node, path string, d *DecisionFields) {
	if d == nil {
		return
	}
	if d.Rule != nil && *d.Rule != "" {
		c.rule(node, path+".rule", *d.Rule)
	}
}

func (c *checker) expectAlone(node manifest.Node, e *Expect) {
	if e.Admitted != nil || e.Denied != nil || e.Decisions != "" || e.First != nil || e.Last != nil || e.Sources != nil || e.Charged != nil {
		node.Fault("without a send there are only status and share to look at")
		return
	}
	if e.Status == nil && e.Share == nil {
		node.Fault("expects nothing")
	}
	if e.Status != nil {
		c.status(node.Find("status"), e.Status)
	}
	if e.Share != nil {
		share := node.Find("share")
		c.replica(share, "replica", e.Share.Replica)
		rule, ok := c.rule(share, "rule", e.Share.Rule)
		if ok && e.Share.Key != nil && len(e.Share.Key) != len(rule.Key) {
			share.FaultAt("key", fmt.Sprintf("must have %d values, one for each part of the rule's key", len(rule.Key)))
		}
		if e.Share.Requests == nil && e.Share.Window == nil && e.Share.Burst == nil {
			share.Fault("expects nothing")
		}
	}
}

func (c *checker) status(node manifest.Node, s *StatusFields) {
	if c.known && s.Policy != "" && !c.policies[s.Policy] {
		node.FaultAt("policy", fmt.Sprintf("there is no policy %q at this time", s.Policy))
	}
	if c.known && s.Policy == "" && len(c.policies) != 1 {
		node.FaultAt("policy", fmt.Sprintf("Required value: there are %d policies at this time", len(c.policies)))
	}
	if s.Conditions == nil && s.ObservedGeneration == nil && s.Replicas == nil && s.Enforcers == nil {
		node.Fault("expects nothing")
	}
	for i, condition := range s.Conditions {
		if condition.Type == "" {
			node.FaultAt("conditions["+itoa(i)+"].type", "Required value")
		}
	}
}
