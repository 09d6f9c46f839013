package enforcer

import "slices"

// want is what one request asks of the counters: those of enforced rules first, then those of shadow rules, as in
// Entry.
type want struct {
	counters []Counter
	origins  []origin // of each counter
	enforced int
	shadow   []int // ends
	peek     bool
	// lease is how many requests may be taken at once: of all rules the least, 0 if one of them has no lease.
	lease int64
}

// ahead is what a rule has decided before the store is asked.
type ahead struct {
	lease    int64 // tokens of a lease, 0 for none
	multiple int64 // of this replica's share that is let pass, 0 for all
}

// origin is the rule and the limit that a counter belongs to.
type origin struct {
	rule  *rule
	limit *limit
}

func (w *want) reset() {
	clear(w.origins)
	w.counters, w.origins, w.shadow = w.counters[:0], w.origins[:0], w.shadow[:0]
	w.enforced, w.peek, w.lease = 0, false, 0
}

func (w *want) add(c Counter, o origin) {
	w.counters = append(w.counters, c)
	w.origins = append(w.origins, o)
}

// fingerprint is equal for equal wants.
func (w *want) fingerprint() uint64 {
	if w.peek {
		return ^w.charged()
	}
	return w.charged()
}

// charged is the fingerprint of a want that is charged, whether or not this one is. Identities are hashes already.
func (w *want) charged() uint64 {
	const prime = 0x9e3779b97f4a7c15
	h := uint64(w.enforced)
	for i := range w.counters {
		c := &w.counters[i]
		h = (h ^ c.Identity.turn() ^ uint64(c.Cost)) * prime
		for j := 0; j < len(c.ID) && j < 8; j++ {
			h = h<<8 ^ h>>56 ^ uint64(c.ID[j])
		}
	}
	return h
}

// same says whether a caller with this want belongs to a group.
func (w *want) same(g *group, e *Entry) bool {
	return w.peek == g.peek && w.enforced == e.Enforced && slices.Equal(w.counters, e.Counters) &&
		slices.Equal(w.shadow, e.Shadow)
}
