package simulate

import (
	"context"
	"math"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// counters is the store of a replay: for each variant of the limits one in memory. The enforcer matches and identifies
// once, and each variant counts what it asked for by its own numbers.
type counters struct {
	now      int64
	variants []variant

	// Of the decision that was made last: whether and for what it asked, and what was answered; by the first variant
	// for each shadow rule, and by each variant in all.
	asked    bool
	wanted   []enforcer.Counter
	shadow   []int
	enforced int
	shadowed []int64
	granted  []bool

	entry  [1]enforcer.Entry // with a variant's limits
	scaled []enforcer.Counter
	other  [1]enforcer.Answer
}

// variant is one way to set the limits.
type variant struct {
	name   string
	factor float64
	// limits are the requests of a limit by its ID, where they are not the policy's times the factor.
	limits map[string]int64
	store  *memstore.Store
}

// of returns a limit by the variant's numbers. The burst of a bucket stays in proportion.
func (v *variant) of(c *enforcer.Counter) algorithm.Limit {
	l := c.Limit
	factor := v.factor
	if requests, ok := v.limits[c.ID]; ok {
		if l.Requests == 0 {
			l.Requests, l.Burst = requests, 0
			return l
		}
		factor = float64(requests) / float64(l.Requests)
	}
	most := int64(policy.MaxRequests)
	if l.Algorithm == algorithm.SlidingWindowLog {
		most = policy.MaxLogRequests
	}
	l.Requests = scale(l.Requests, factor, most)
	if l.Burst > 0 {
		l.Burst = scale(l.Burst, factor, most)
	}
	return l
}

// scale never makes nothing of something.
func scale(n int64, factor float64, most int64) int64 {
	if n == 0 {
		return 0
	}
	return max(1, min(most, int64(math.Round(float64(n)*factor))))
}

// Take asks all variants, and answers what the first one does.
func (c *counters) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	e := &entries[0]
	for i := range c.variants {
		v := &c.variants[i]
		if i == 0 {
			if _, err := v.store.Take(ctx, entries, answers); err != nil {
				return 0, err
			}
			c.granted[0] = answers[0].Granted > 0
			continue
		}
		c.scaled = append(c.scaled[:0], e.Counters...)
		for j := range c.scaled {
			c.scaled[j].Limit = v.of(&e.Counters[j])
		}
		c.entry[0] = *e
		c.entry[0].Counters = c.scaled
		if _, err := v.store.Take(ctx, c.entry[:], c.other[:]); err != nil {
			return 0, err
		}
		c.granted[i] = c.other[0].Granted > 0
	}
	c.asked, c.enforced = true, e.Enforced
	c.wanted = append(c.wanted[:0], e.Counters...)
	c.shadow = append(c.shadow[:0], e.Shadow...)
	c.shadowed = append(c.shadowed[:0], answers[0].Shadow...)
	return c.now, nil
}

// Refund is never asked for: no request of a log goes away before it is decided.
func (c *counters) Refund(context.Context, []enforcer.Refund) error { return nil }

// Reset is never asked for.
func (c *counters) Reset(context.Context, []enforcer.Counter) error { return nil }
