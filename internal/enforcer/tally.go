package enforcer

import "sync/atomic"

// tally counts the decisions of one rule.
type tally struct {
	decisions [outcomes]atomic.Uint64
	// missing counts requests that lacked a part of the rule's key.
	missing   atomic.Uint64
	throttled throttled
}

// add counts a decision.
func (t *tally) add(o Outcome) { t.decisions[o].Add(1) }

// count is how many decisions had an outcome.
func (t *tally) count(o Outcome) uint64 { return t.decisions[o].Load() }

// enforced counts the decisions that were not those of a rule in shadow mode.
func (t *tally) enforced() (n uint64) {
	for o := range outcomes {
		if o != ShadowAdmitted && o != ShadowDenied {
			n += t.count(o)
		}
	}
	return n
}
