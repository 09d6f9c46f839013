package enforcer

import "sync/atomic"

// tallyStripes is into how many parts a rule's counts are split, so that processors which decide at the same time do not
// take one line of memory from each other with each decision.
const tallyStripes = 4

// tally counts the decisions of one rule.
type tally struct {
	stripes [tallyStripes]tallyStripe
	// missing counts requests that lacked a part of the rule's key.
	missing   atomic.Uint64
	throttled throttled
}

type tallyStripe struct {
	decisions [outcomes]atomic.Uint64
	_         [64]byte // the next stripe's counts are not on this cache line
}

// add counts a decision. Whoever counts often on one processor does so in one stripe.
func (t *tally) add(stripe uint32, o Outcome) { t.stripes[stripe%tallyStripes].decisions[o].Add(1) }

// count is how many decisions had an outcome.
func (t *tally) count(o Outcome) (n uint64) {
	for i := range t.stripes {
		n += t.stripes[i].decisions[o].Load()
	}
	return n
}

// enforced counts the decisions that were not those of a rule in shadow mode.
func (t *tally) enforced() (n uint64) {
	for o := range outcomes {
		if o != ShadowAdmitted && o != ShadowDenied {
			n += t.count(o)
		}
	}
	return n
}
