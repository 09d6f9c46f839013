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
}

// origin is the rule and the limit that a counter belongs to.
type origin struct {
	rule  *rule
	limit *limit
}

func (w *want) reset() {
	clear(w.origins)
	w.counters, w.origins, w.shadow = w.counters[:0], w.origins[:0], w.shadow[:0]
	w.enforced, w.peek = 0, false
}

func (w *want) add(c Counter, o origin) {
	w.counters = append(w.counters, c)
	w.origins = append(w.origins, o)
}

// fingerprint is equal for equal wants. Identities are hashes already.
func (w *want) fingerprint() uint64 {
	const prime = 0x9e3779b97f4a7c15
	h := uint64(w.enforced)
	if w.peek {
		h++
	}
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
