package algorithm_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// After the wait that is told there is more, and 2 µs before there is not.
func TestMoreAfterIsTheShortestWait(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	told := 0
	for range 5_000 {
		l := algorithm.Limit{
			Algorithm: algorithm.Algorithm(random.IntN(2)), Requests: 1 + random.Int64N(20), Window: 100_000 + random.Int64N(120_000_000),
		}
		if l.Algorithm == algorithm.TokenBucket && random.IntN(2) == 0 {
			l.Burst = 1 + random.Int64N(30)
		}
		var s algorithm.State
		now := int64(1_700_000_000_000_000)
		for range 1 + random.IntN(20) {
			now += random.Int64N(l.Window / 4)
			var r algorithm.Result
			s, r = l.Take(s, now, 1+random.Int64N(3))
			wait := l.MoreAfter(&r)
			if (wait == 0) != (r.Remaining == l.Capacity()) {
				t.Fatalf("seed %d: %+v: a wait of %d with %d left", seed, l, wait, r.Remaining)
			}
			if wait == 0 {
				continue
			}
			told++
			if before := l.Look(s, now+max(0, wait-2), 0).Remaining; before != r.Remaining {
				t.Fatalf("seed %d: %+v: %d left 2 µs before the wait of %d, not %d", seed, l, before, wait, r.Remaining)
			}
			if after := l.Look(s, now+wait, 0).Remaining; after <= r.Remaining {
				t.Fatalf("seed %d: %+v: %d left after a wait of %d, as before", seed, l, after, wait)
			}
		}
	}
	if told < 10_000 {
		t.Errorf("seed %d: %d waits", seed, told)
	}
}

func TestMoreAfterOfTheLargestLimits(t *testing.T) {
	l := algorithm.Limit{Algorithm: algorithm.TokenBucket, Requests: 1_000_000_000, Window: 31 * 24 * 3600 * 1_000_000}
	s, r := l.Take(algorithm.State{}, 1, 1_000_000_000)
	if wait := l.MoreAfter(&r); wait != 2679 { // 2.6784e12 µs / 1e9 requests, rounded up
		t.Errorf("%d µs", wait)
	}
	if after := l.Look(s, 1+2679, 0).Remaining; after != 1 {
		t.Errorf("%d left", after)
	}
	for _, sliding := range []algorithm.Algorithm{algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog} {
		l := algorithm.Limit{Algorithm: sliding, Requests: 5, Window: 1_000_000}
		if _, r := l.Take(algorithm.State{}, 1, 1); l.MoreAfter(&r) != 0 {
			t.Errorf("%v tells %d", sliding, l.MoreAfter(&r))
		}
	}
}
