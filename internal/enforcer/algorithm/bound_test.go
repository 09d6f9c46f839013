package algorithm_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// What each algorithm admits at worst is a promise to whoever writes a policy.
// These tests sum up what was admitted and never ask the state.

// admissions are the charges that were admitted and kept.
type admissions []algorithm.LogEntry

// overBucket: in any time, the burst and what it earns.
func (all admissions) overBucket(limit algorithm.Limit) error {
	return all.spans(func(sum, d int64) bool {
		return (sum-limit.Capacity())*limit.Window > limit.Requests*d
	})
}

// overSpan: in any time shorter than a window, at most that many.
func (all admissions) overSpan(window, most int64) error {
	return all.spans(func(sum, d int64) bool { return d < window && sum > most })
}

// overWindows: in each aligned window, at most the requests.
func (all admissions) overWindows(limit algorithm.Limit) error {
	sums := map[int64]int64{}
	for _, a := range all {
		sums[a.At/limit.Window] += a.Cost
	}
	for window, sum := range sums {
		if sum > limit.Requests {
			return fmt.Errorf("%d in window %d", sum, window)
		}
	}
	return nil
}

// spans looks for a span from one admission to another that is over.
func (all admissions) spans(over func(sum, d int64) bool) error {
	for i := range all {
		sum := int64(0)
		for _, a := range all[i:] {
			if sum += a.Cost; over(sum, a.At-all[i].At) {
				return fmt.Errorf("%d in %d µs from %d µs", sum, a.At-all[i].At, all[i].At)
			}
		}
	}
	return nil
}

func (all admissions) over(limit algorithm.Limit) error {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b algorithm.LogEntry) int { return int(a.At - b.At) })
	switch limit.Algorithm {
	case algorithm.FixedWindow:
		return sorted.overWindows(limit)
	case algorithm.SlidingWindowCounter:
		if err := sorted.overWindows(limit); err != nil {
			return err
		}
		return sorted.overSpan(limit.Window, max(1, 2*limit.Requests-1))
	case algorithm.SlidingWindowLog:
		return sorted.overSpan(limit.Window, limit.Requests)
	default:
		return sorted.overBucket(limit)
	}
}

// refunder gives back a charge; the real one and a naive one have this form.
type refunder func(l algorithm.Limit, s algorithm.State, now, taken, cost int64) algorithm.State

// crowd sends random requests to one counter and returns what was admitted and
// kept. With a refunder it refunds some of them; without one it lets the clock slip
// back now and then, up to a window behind where it has been. Not both: a refund
// can leave a counter in which nothing weighs, and that has no date to hold
// against the clock.
func crowd(d dice, limit algorithm.Limit, refund refunder) admissions {
	var state algorithm.State
	var kept, held admissions
	now := d.below(10 * limit.Window)
	latest := now
	for range 120 {
		latest = max(latest, now)
		switch step := d.below(10); {
		case step == 0 && refund == nil:
			now = max(0, latest-d.below(limit.Window+1))
		case step == 1:
			now += d.below(3 * limit.Window)
		default:
			now += d.below(limit.Window/limit.Requests + 2)
		}
		next, result := limit.Take(state, now, 1+d.below(limit.Capacity()))
		if result.Allowed {
			charge := algorithm.LogEntry{At: result.At, Cost: limit.Look(state, now, 0).Remaining - result.Remaining}
			if refund != nil && d.below(3) == 0 {
				held = append(held, charge)
			} else {
				kept = append(kept, charge)
			}
		}
		state = next
		if len(held) > 0 && d.below(2) == 0 {
			i := int(d.below(int64(len(held))))
			state = refund(limit, state, now, held[i].At, held[i].Cost)
			held = slices.Delete(held, i, i+1)
		}
	}
	return append(kept, held...)
}

func crowdLimit(d dice, a algorithm.Algorithm) algorithm.Limit {
	limit := algorithm.Limit{Algorithm: a, Requests: 1 + d.below(12), Window: 50 + d.below(1000)}
	if a == algorithm.TokenBucket {
		limit.Burst = d.below(20)
	}
	return limit
}

func TestNeverOverTheBound(t *testing.T) {
	for _, a := range algorithms {
		for name, refund := range map[string]refunder{"refunds": algorithm.Limit.Refund, "clock slips back": nil} {
			t.Run(a.String()+", "+name, func(t *testing.T) {
				d := newSeeded(startSeed(t))
				admitted := 0
				for range 2_000 {
					limit := crowdLimit(d, a)
					all := crowd(d, limit, refund)
					if err := all.over(limit); err != nil {
						t.Fatalf("%+v: %v\n%v", limit, err, all)
					}
					admitted += len(all)
				}
				if admitted < 20_000 {
					t.Errorf("only %d requests were admitted", admitted)
				}
			})
		}
	}
}

// A bucket that gets its refunds back in full, held at no debt, is over its bound:
// so the test above can see it.
func TestFullRefundsWouldBeOverTheBound(t *testing.T) {
	naive := func(l algorithm.Limit, s algorithm.State, now, _, cost int64) algorithm.State {
		return l.Refund(s, now, now+l.Window, cost)
	}
	d := newSeeded(startSeed(t))
	over := 0
	for range 3_000 {
		limit := crowdLimit(d, algorithm.TokenBucket)
		if crowd(d, limit, naive).over(limit) != nil {
			over++
		}
	}
	if over == 0 {
		t.Error("no run in 3,000 was over")
	}
	t.Logf("%d of 3,000 runs were over", over)
}

// greedy takes one at a time, as early as it can, from one time up to but not
// including another.
func greedy(limit algorithm.Limit, state algorithm.State, from, to int64) (algorithm.State, int64) {
	admitted := int64(0)
	for now := from; now < to; {
		var result algorithm.Result
		state, result = limit.Take(state, now, 1)
		if result.Allowed {
			admitted++
		}
		now += result.RetryAfter
	}
	return state, admitted
}

func TestWorstCasesAreAsDocumented(t *testing.T) {
	const last = minute - 1 // the last µs of the first window
	cases := map[string]struct {
		limit             algorithm.Limit
		atOnce, inAMinute int64 // both from the last µs of the first window
	}{
		"TokenBucket: the burst at once, and the rate": {
			limit:  algorithm.Limit{Requests: 60, Window: minute},
			atOnce: 60, inAMinute: 119, // and the 120th at the full minute
		},
		"TokenBucket with a burst of its own": {
			limit:  algorithm.Limit{Requests: 60, Window: minute, Burst: 10},
			atOnce: 10, inAMinute: 69,
		},
		"FixedWindow: twice the limit around the end of a window": {
			limit:  algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 60, Window: minute},
			atOnce: 120, inAMinute: 120,
		},
		"SlidingWindowCounter: one less than twice the limit in a window's time": {
			limit:  algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 60, Window: minute},
			atOnce: 60, inAMinute: 119,
		},
		"SlidingWindowLog: never more than the limit": {
			limit:  algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 60, Window: minute},
			atOnce: 60, inAMinute: 60,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, got := greedy(c.limit, algorithm.State{}, last, last+2); got != c.atOnce {
				t.Errorf("at once: %d, want %d", got, c.atOnce)
			}
			if _, got := greedy(c.limit, algorithm.State{}, last, last+minute); got != c.inAMinute {
				t.Errorf("in a minute: %d, want %d", got, c.inAMinute)
			}
		})
	}
}

// A sliding counter under constant pressure admits one less than its limit in each
// window, from the second on.
func TestLoadedSlidingCounterAdmitsOneLess(t *testing.T) {
	limit := algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 60, Window: minute}
	state, got := greedy(limit, algorithm.State{}, 0, minute)
	if got != 60 {
		t.Errorf("first window: %d, want 60", got)
	}
	for window := int64(1); window < 5; window++ {
		if state, got = greedy(limit, state, window*minute, (window+1)*minute); got != 59 {
			t.Errorf("window %d: %d, want 59", window, got)
		}
	}
}

// In a year nothing is lost and nothing is gained: floor(rate × time) + burst.
func TestYearAdmitsRateTimesTimeAndBurst(t *testing.T) {
	const year = 365 * day
	cases := map[string]struct {
		limit algorithm.Limit
		want  int64
	}{
		"7 per second":                {algorithm.Limit{Requests: 7, Window: second}, 220_752_000 + 7},
		"7 per second, burst 2,000":   {algorithm.Limit{Requests: 7, Window: second, Burst: 2_000}, 220_752_000 + 2_000},
		"1 per day":                   {algorithm.Limit{Requests: 1, Window: day}, 365 + 1},
		"7 in 31 days, burst 1":       {algorithm.Limit{Requests: 7, Window: 31 * day, Burst: 1}, 82 + 1}, // 82.4
		"1,000,003 per hour, burst 2": {algorithm.Limit{Requests: 1_000_003, Window: hour, Burst: 2_000_000}, 8_760_026_280 + 2_000_000},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := newSeeded(startSeed(t))
			// A bucket that is emptied whenever it is nearly full loses nothing; ask
			// at most this long before it is, and 1 µs at least.
			early := c.limit.Window * (c.limit.Capacity() - 1) / c.limit.Requests / 8
			var before [256]int64
			for i := range before {
				before[i] = 1 + d.below(early+1)
			}
			start := int64(1_800_000_000)*second + d.below(day)
			var state algorithm.State
			admitted := int64(0)
			now, i := start, 0
			for ; now < start+year; i++ {
				room := c.limit.Look(state, now, 0).Remaining
				admitted += room
				var result algorithm.Result
				state, result = c.limit.Take(state, now, room)
				now += max(1, result.ResetAfter-before[i%len(before)])
			}
			admitted += c.limit.Look(state, start+year, 0).Remaining
			if admitted != c.want {
				t.Errorf("admitted %d, want %d", admitted, c.want)
			}
		})
	}
}

// The same, request by request, each after the wait that the last denial named.
func TestDayOfObedientRetriesAdmitsRateTimesTimeAndBurst(t *testing.T) {
	start := int64(1_800_000_000)*second + 1
	_, admitted := greedy(algorithm.Limit{Requests: 7, Window: second}, algorithm.State{}, start, start+day+1)
	if want := int64(7*86_400 + 7); admitted != want {
		t.Errorf("admitted %d, want %d", admitted, want)
	}
}

// The definition in small integers, asked at each µs, against the two branches of
// the wait.
func TestSlidingCounterWaitsByBruteForce(t *testing.T) {
	d := newSeeded(startSeed(t))
	denials := 0
	for denials < 50_000 {
		window, requests := 1+d.below(200), 1+d.below(40)
		limit := algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: requests, Window: window}
		state := algorithm.State{At: 5, Used: d.below(requests + 5), Carry: d.below(requests + 5)}
		now, cost := 5*window+d.below(window), 1+d.below(requests)
		fits := func(at int64) bool {
			before, current := state.Carry, state.Used
			switch at/window - state.At {
			case 1:
				before, current = current, 0
			case 2:
				before, current = 0, 0
			}
			return before*(window-at%window)+(current+cost)*window <= requests*window
		}
		want := int64(0)
		for !fits(now + want) {
			want++
		}
		result := limit.Look(state, now, cost)
		if result.RetryAfter != want || result.Allowed != (want == 0) {
			t.Fatalf("%+v %+v at %d, cost %d: %+v, want a wait of %d", limit, state, now, cost, result, want)
		}
		if want > 0 {
			denials++
		}
	}
}

// Several limits: the longest wait of those that refuse is the wait of the
// decision.
func TestLongestWaitIsTheWaitOfTheDecision(t *testing.T) {
	d := newSeeded(startSeed(t))
	denials := 0
	for denials < 20_000 {
		var limits []algorithm.Limit
		var states []algorithm.State
		for range 2 + d.below(3) {
			limit := crowdLimit(d, algorithms[d.below(4)])
			state := limit.Charge(algorithm.State{}, 10_000+d.below(500), d.below(2*limit.Capacity()))
			limits, states = append(limits, limit), append(states, state)
		}
		all := func(now int64) (allowed, satisfiable bool, wait int64) {
			allowed, satisfiable = true, true
			for i, limit := range limits {
				result := limit.Look(states[i], now, 1)
				allowed = allowed && result.Allowed
				satisfiable = satisfiable && result.Satisfiable
				wait = max(wait, result.RetryAfter)
			}
			return allowed, satisfiable, wait
		}
		now := 10_500 + d.below(1000)
		allowed, satisfiable, wait := all(now)
		if allowed || !satisfiable {
			continue
		}
		denials++
		if early, _, _ := all(now + wait - 1); early {
			t.Fatalf("%+v %+v at %d: admitted 1 µs before the wait of %d", limits, states, now, wait)
		}
		if allowed, _, _ = all(now + wait); !allowed {
			t.Fatalf("%+v %+v at %d: denied after the wait of %d", limits, states, now, wait)
		}
	}
}
