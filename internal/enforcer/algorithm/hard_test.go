package algorithm_test

import (
	"math/bits"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Products a·b whose rest modulo m is next to 0 or to m are where inexact
// arithmetic goes wrong, and random numbers do not find them: one in m is one. So
// they are built, with b = a⁻¹·k mod m for a small k.

// cofactor returns b in 0 to m − 1 with a·b ≡ rest mod m, or with the next lower
// rest for which there is one.
func cofactor(a, rest, m int64) int64 {
	gcd, inverse := invert(a%m, m)
	rest = ((rest % m) + m) % m
	high, low := bits.Mul64(uint64(inverse), uint64(rest/gcd))
	return int64(bits.Rem64(high, low, uint64(m/gcd)))
}

// invert returns g = gcd(a, m) and the inverse of a/g modulo m/g.
func invert(a, m int64) (gcd, inverse int64) {
	r0, r1, x0, x1 := m, a, int64(0), int64(1)
	for r1 != 0 {
		q := r0 / r1
		r0, r1, x0, x1 = r1, r0-q*r1, x1, x0-q*x1
	}
	modulus := m / r0
	return r0, ((x0 % modulus) + modulus) % modulus
}

// hardInstant moves the clock to where the state's product has such a rest.
func (w *walk) hardInstant() {
	k := w.below(5) - 2
	switch w.limit.Algorithm {
	case algorithm.TokenBucket:
		if w.limit.Requests == 0 {
			return
		}
		// The part of a token that is owed meets the part that is earned.
		d := cofactor(w.limit.Requests, w.state.Carry+k, w.limit.Window)
		w.now = max(w.state.At, 0) + d
	case algorithm.SlidingWindowCounter:
		window, before := w.state.At, w.state.Carry
		if w.below(2) == 0 || before == 0 {
			window, before = w.state.At+1, w.state.Used
		}
		if before == 0 {
			return
		}
		left := cofactor(before, k, w.limit.Window)
		if left == 0 {
			left = w.limit.Window
		}
		w.now = (window+1)*w.limit.Window - left
	case algorithm.FixedWindow:
		w.now = w.around((w.state.At + 1) * w.limit.Window)
	case algorithm.SlidingWindowLog:
		if n := int64(len(w.state.Log)); n > 0 {
			w.now = w.around(w.state.Log[w.below(n)].At + w.limit.Window)
		}
	}
}

// chooseEdge sets the limit to what is in use, and one beside it, so that the next
// small cost just fits or just does not. For waits it looks for numbers whose
// product with the window has a hard rest.
func (w *walk) chooseEdge(limit *algorithm.Limit) {
	most := int64(maxRequests)
	switch limit.Algorithm {
	case algorithm.TokenBucket:
		wide := *limit
		wide.Requests, wide.Burst = max(wide.Requests, 1), 1<<40
		used := wide.Burst - wide.Look(w.state, w.now, 0).Remaining
		limit.Burst = min(max(w.around(used+w.below(2)), 1), most)
		return
	case algorithm.SlidingWindowLog:
		most = algorithm.MaxLogEntries
	case algorithm.SlidingWindowCounter:
		if before := w.state.Carry; before > 1 && w.below(3) == 0 {
			free := cofactor(limit.Window, w.below(5)-2, before)
			limit.Requests = min(w.state.Used+free+1, most)
			return
		}
	}
	wide := *limit
	wide.Requests = 1 << 40
	used := wide.Requests - wide.Look(w.state, w.now, 0).Remaining
	limit.Requests = min(max(w.around(used+w.below(2)), 0), most)
}

// hardCost is a cost whose wait has a hard rest, 1 if there is none.
func (w *walk) hardCost() int64 {
	if w.limit.Requests == 0 {
		return 1
	}
	k, capacity := w.below(5)-2, w.limit.Capacity()
	var cost int64
	switch w.limit.Algorithm {
	case algorithm.TokenBucket:
		missing := cofactor(w.limit.Window, k-w.state.Carry, w.limit.Requests)
		cost = missing + capacity - w.state.Used
	case algorithm.SlidingWindowCounter:
		if w.state.Used == 0 {
			return 1
		}
		cost = capacity - cofactor(w.limit.Window, k, w.state.Used)
	}
	if cost < 1 || cost > capacity {
		return 1
	}
	return cost
}

// The built products have to be ones that plain doubles decide wrongly; otherwise
// they test nothing.
func TestBuiltProductsAreOnesThatDoublesGetWrong(t *testing.T) {
	const n = 20_000
	d := newSeeded(startSeed(t))
	wrong := map[string]int{}
	for range n {
		before := int64(maxRequests) - d.below(1000)
		window := maxWindow - d.below(1000)
		for kind, left := range map[string]int64{
			"built":  max(1, cofactor(before, d.below(5)-2, window)),
			"random": 1 + d.below(window),
		} {
			weight, rest := algorithm.MulDiv(before, left, window)
			free := weight + d.below(3) - 1
			admits := weight < free || weight == free && rest == 0
			if admits != (float64(before)*float64(left)/float64(window) <= float64(free)) {
				wrong[kind]++
			}
		}
	}
	t.Logf("doubles are wrong in %d of %d built and %d of %d random products", wrong["built"], n, wrong["random"], n)
	if wrong["built"] < n/20 {
		t.Errorf("doubles are wrong in only %d of %d built products", wrong["built"], n)
	}
}
