package algorithm_test

import (
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

func TestNames(t *testing.T) {
	for name, a := range map[string]algorithm.Algorithm{
		"TokenBucket":          algorithm.TokenBucket,
		"FixedWindow":          algorithm.FixedWindow,
		"SlidingWindowCounter": algorithm.SlidingWindowCounter,
		"SlidingWindowLog":     algorithm.SlidingWindowLog,
	} {
		if a.String() != name {
			t.Errorf("%d is called %s, want %s", a, a, name)
		}
		if got, err := algorithm.Parse(name); err != nil || got != a {
			t.Errorf("parsing %s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "tokenbucket", "TokenBucket ", "GCRA", "Algorithm(4)"} {
		if got, err := algorithm.Parse(name); err == nil {
			t.Errorf("parsing %q gives %v and no error", name, got)
		}
	}
	if got := algorithm.Algorithm(4).String(); got != "Algorithm(4)" {
		t.Errorf("an unknown algorithm is called %s", got)
	}
}

func TestMulDivAgainstBigIntegers(t *testing.T) {
	d := newSeeded(startSeed(t))
	number := func() int64 { // every length of up to 63 bits
		return d.below(1<<62) >> d.below(62) << d.below(2)
	}
	saturated := 0
	for range 200_000 {
		a, b, m := number(), number(), 1+number()
		if d.below(4) == 0 {
			b = cofactor(a, d.below(5)-2, m)
		}
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		wantQ, wantR := product.QuoRem(product, big.NewInt(m), new(big.Int))
		if most := big.NewInt(algorithm.MaxWait); wantQ.Cmp(most) > 0 {
			wantQ = most
			saturated++
		}
		if q, r := algorithm.MulDiv(a, b, m); q != wantQ.Int64() || r != wantR.Int64() {
			t.Fatalf("MulDiv(%d, %d, %d) = %d, %d, want %v, %v", a, b, m, q, r, wantQ, wantR)
		}
	}
	if saturated < 1_000 {
		t.Errorf("only %d quotients were above the most", saturated)
	}
}

// used fills a counter of 10 per minute to its capacity.
func usedUp(a algorithm.Algorithm, at int64) (algorithm.Limit, algorithm.State) {
	limit := algorithm.Limit{Algorithm: a, Requests: 10, Window: minute}
	return limit, limit.Charge(algorithm.State{}, at, 10)
}

// The clock goes back by less than a window: time that was counted is not counted
// again, and the wait counts from the true now.
func TestClockBehindByLessThanAWindow(t *testing.T) {
	now := 100*minute + 50*second
	want := map[algorithm.Algorithm]algorithm.Result{ // 20 s before the start of the state's window, 30 s before the charge
		algorithm.TokenBucket:          {Satisfiable: true, RetryAfter: 36 * second, ResetAfter: 90 * second, At: now + 30*second},
		algorithm.FixedWindow:          {Satisfiable: true, RetryAfter: 70 * second, ResetAfter: 70 * second, At: now + 10*second},
		algorithm.SlidingWindowCounter: {Satisfiable: true, RetryAfter: 76 * second, ResetAfter: 130 * second, At: now + 10*second},
		algorithm.SlidingWindowLog:     {Satisfiable: true, RetryAfter: 90 * second, ResetAfter: 90 * second, At: now + 30*second},
	}
	for _, a := range algorithms {
		limit, state := usedUp(a, now+30*second)
		if diff := cmp.Diff(want[a], limit.Look(state, now, 1)); diff != "" {
			t.Errorf("%v: result (-want +got):\n%s", a, diff)
		}
		if next, far := limit.Rebase(state, now); far || !equal(next, state) {
			t.Errorf("%v: was rebased to %+v", a, next)
		}
	}
}

// The clock of a store is set back by a day. What was used stays used, and is
// waited for from the new time: not for a day.
func TestClockSetBackByADayFreezesNothing(t *testing.T) {
	now := 5_000*day + 10*second
	wait := map[algorithm.Algorithm]int64{
		algorithm.TokenBucket:          6 * second,
		algorithm.FixedWindow:          50 * second,
		algorithm.SlidingWindowCounter: 56 * second, // 50 s to the next window, and 6 s until its tenth part is over
		algorithm.SlidingWindowLog:     minute,
	}
	for _, a := range algorithms {
		limit, state := usedUp(a, now+day)
		state, far := limit.Rebase(state, now)
		if !far {
			t.Errorf("%v: was not rebased", a)
		}
		next, result := limit.Take(state, now, 1)
		if result.Allowed || result.RetryAfter != wait[a] || result.At != now {
			t.Errorf("%v: %+v, want a wait of %d", a, result, wait[a])
		}
		if _, again := limit.Take(next, now+result.RetryAfter, 1); !again.Allowed {
			t.Errorf("%v: denied again after the wait: %+v", a, again)
		}
		if ttl := limit.TTL(next, now) * 1000; ttl > 2*minute+2*second {
			t.Errorf("%v: the key stays for %d µs", a, ttl)
		}
	}
}

// One window ahead is the last date that is still waited for.
func TestRebaseBeginsAboveOneWindow(t *testing.T) {
	for _, a := range algorithms {
		limit, state := usedUp(a, 100*minute)
		if next, far := limit.Rebase(state, 99*minute); far || !equal(next, state) {
			t.Errorf("%v: one window ahead was rebased to %+v", a, next)
		}
		next, far := limit.Rebase(state, 99*minute-1)
		if got := limit.Look(next, 99*minute-1, 0); !far || got.At != 99*minute-1 || got.Remaining != 0 {
			t.Errorf("%v: 1 µs further ahead: %t, %+v", a, far, got)
		}
	}
}

// Numbers that change in the middle of a window keep what was counted.
func TestChangedNumbersKeepTheCounters(t *testing.T) {
	for _, a := range algorithms {
		limit, state := usedUp(a, 100*minute)
		at := 100 * minute
		for requests, want := range map[int64]int64{20: 10, 11: 1, 10: 0, 3: 0} {
			limit.Requests = requests
			if got := limit.Look(state, at, 0).Remaining; got != want {
				t.Errorf("%v: of 10 used, a limit of %d leaves %d, want %d", a, requests, got, want)
			}
		}
	}
	bucket, state := usedUp(algorithm.TokenBucket, 100*minute)
	for burst, want := range map[int64]int64{25: 15, 10: 0, 1: 0} {
		bucket.Burst = burst
		if got := bucket.Look(state, 100*minute, 0).Remaining; got != want {
			t.Errorf("of 10 used, a burst of %d leaves %d, want %d", burst, got, want)
		}
	}
}

// A lowered limit has to be waited for until it is met, however far that is.
func TestLoweredLimitWaitsUntilItIsMet(t *testing.T) {
	want := map[algorithm.Algorithm]int64{
		algorithm.TokenBucket:          9 * 30 * second, // nine tokens too many, one in 30 s
		algorithm.FixedWindow:          minute,
		algorithm.SlidingWindowCounter: 114 * second, // until 10·left/W is 1
		algorithm.SlidingWindowLog:     minute,
	}
	for _, a := range algorithms {
		limit, state := usedUp(a, 100*minute)
		limit.Requests = 2
		if got := limit.Look(state, 100*minute, 1).RetryAfter; got != want[a] {
			t.Errorf("%v: retry after %d, want %d", a, got, want[a])
		}
	}
}

// Forced debts go above the capacity, are waited for in full, and end somewhere.
func TestForcedDebts(t *testing.T) {
	for _, a := range algorithms {
		limit, state := usedUp(a, 100*minute)
		state = limit.Charge(state, 100*minute, 5)
		if state.Used != 15 {
			t.Errorf("%v: ten and five are %+v", a, state)
		}
		for range 3 {
			state = limit.Charge(state, 100*minute+1, algorithm.MaxWait)
		}
		if state.Used != algorithm.MaxDebit || state.Carry != 0 {
			t.Errorf("%v: the most there can be is %+v", a, state)
		}
		result := limit.Look(state, 100*minute+2, 1)
		if result.Allowed || result.Remaining != 0 || !result.Satisfiable {
			t.Errorf("%v: %+v", a, result)
		}
	}
	bucket, state := usedUp(algorithm.TokenBucket, 100*minute)
	state = bucket.Charge(state, 100*minute, 5)
	if got := bucket.Look(state, 100*minute, 1).RetryAfter; got != 36*second { // six tokens, one in 6 s
		t.Errorf("retry after %d, want 36 s", got)
	}
}

// Forced debts do not make a log grow without end; they move its end instead, so
// that it counts for longer and never for less.
func TestFullLogGrowsNoFurther(t *testing.T) {
	limit := algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: algorithm.MaxLogEntries, Window: hour}
	var state algorithm.State
	for i := range int64(algorithm.MaxLogEntries) {
		var result algorithm.Result
		if state, result = limit.Take(state, hour+i, 1); !result.Allowed {
			t.Fatalf("request %d is denied: %+v", i, result)
		}
	}
	before := slices.Clone(state.Log)
	next := limit.Charge(state, hour+20_000, 3)
	if n := len(next.Log); n != algorithm.MaxLogEntries || next.Used != algorithm.MaxLogEntries+3 {
		t.Errorf("%d entries of %d", n, next.Used)
	}
	if want := (algorithm.LogEntry{At: hour + 20_000, Cost: 4}); next.Log[len(next.Log)-1] != want {
		t.Errorf("the last entry is %+v, want %+v", next.Log[len(next.Log)-1], want)
	}
	if diff := cmp.Diff(before, state.Log); diff != "" {
		t.Errorf("the state that was given changed (-before +after):\n%s", diff)
	}
	want := algorithm.Result{Satisfiable: true, RetryAfter: hour - 20_000 + 3, ResetAfter: hour, At: hour + 20_000}
	if diff := cmp.Diff(want, limit.Look(next, hour+20_000, 1)); diff != "" {
		t.Errorf("four have to go, so the fourth oldest says when (-want +got):\n%s", diff)
	}
}

// A refund gives back what still weighs, by the numbers.
func TestRefunds(t *testing.T) {
	const at = 100 * minute
	cases := map[string]struct {
		algorithm    algorithm.Algorithm
		refunded     int64 // ten were taken at the start of a window; five come back then
		remaining    int64
		thenFullFrom int64 // from the start of the window
	}{
		"a bucket at once":                        {algorithm.TokenBucket, 0, 5, 30 * second},
		"a bucket after 12 s: two have drained":   {algorithm.TokenBucket, 12 * second, 2 + 3, 42 * second},
		"a bucket after 30 s: all have drained":   {algorithm.TokenBucket, 30 * second, 5, minute},
		"a bucket after 15 s: 2.5 have drained":   {algorithm.TokenBucket, 15 * second, 5, 45 * second},
		"a fixed window in the same window":       {algorithm.FixedWindow, 59 * second, 5, minute},
		"a fixed window in the next":              {algorithm.FixedWindow, minute, 10, 0},
		"a sliding counter in the same window":    {algorithm.SlidingWindowCounter, 59 * second, 5, 2 * minute},
		"a sliding counter in the next: half":     {algorithm.SlidingWindowCounter, 90 * second, 7, 2 * minute},
		"a sliding counter in the window after":   {algorithm.SlidingWindowCounter, 2 * minute, 10, 0},
		"a log, one µs before the entry goes":     {algorithm.SlidingWindowLog, minute - 1, 5, minute},
		"a log, when the entry is gone":           {algorithm.SlidingWindowLog, minute, 10, 0},
		"a bucket that is full long before again": {algorithm.TokenBucket, day, 10, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			limit, state := usedUp(c.algorithm, at)
			now := at + c.refunded
			state = limit.Refund(state, now, at, 5)
			result := limit.Look(state, now, 0)
			if result.Remaining != c.remaining {
				t.Errorf("remaining is %d, want %d", result.Remaining, c.remaining)
			}
			if want := max(0, c.thenFullFrom-c.refunded); result.ResetAfter != want {
				t.Errorf("reset after %d, want %d", result.ResetAfter, want)
			}
			if result.Remaining == 10 && !equal(state, algorithm.State{}) {
				t.Errorf("nothing weighs in %+v", state)
			}
			if again := limit.Refund(state, now, at, 0); !equal(again, state) {
				t.Errorf("a refund of 0 made %+v", again)
			}
		})
	}
}

func TestRefundGoesToNoOtherCharge(t *testing.T) {
	const at = 100 * minute
	for _, a := range []algorithm.Algorithm{
		algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog,
	} {
		limit, state := usedUp(a, at)
		for _, taken := range []int64{0, at - 2*minute, at - minute, at + minute, at + 5*minute} {
			if got := limit.Refund(state, at+1, taken, 5); got.Used != 10 {
				t.Errorf("%v: a refund of something taken %d µs from the charge left %+v", a, taken-at, got)
			}
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for _, a := range algorithms[:3] {
		limit, state := usedUp(a, 100*minute)
		now := 100 * minute
		if n := testing.AllocsPerRun(1_000, func() {
			now += second
			state, _ = limit.Take(state, now, 1)
			state = limit.Charge(state, now, 1)
			state = limit.Refund(state, now, now, 1)
			state, _ = limit.Rebase(state, now)
			limit.Look(state, now, 1)
			limit.TTL(state, now)
		}); n != 0 {
			t.Errorf("%v: %v allocations", a, n)
		}
	}
	log, state := usedUp(algorithm.SlidingWindowLog, 100*minute)
	if n := testing.AllocsPerRun(1_000, func() {
		state, _ = log.Take(state, 100*minute+1, 1)
		log.Look(state, 100*minute+1, 1)
		log.TTL(state, 100*minute+1)
	}); n != 0 {
		t.Errorf("a log that denies: %v allocations", n)
	}
}
