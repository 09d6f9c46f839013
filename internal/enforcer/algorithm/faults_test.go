package algorithm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Times in µs.
const (
	ms     = int64(1_000)
	second = 1_000 * ms
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// hits are count requests at one instant.
type hits struct {
	at    int64
	count int
	cost  int64  // default 1
	want  string // AAD: admitted, denied, in order; "60A 1D" for many
}

// send plays the hits with Take and returns the state, the last result and what
// came, written as in want.
func send(limit algorithm.Limit, state algorithm.State, h hits) (algorithm.State, algorithm.Result, string) {
	var result algorithm.Result
	var came strings.Builder
	admitted := 0
	for range h.count {
		state, result = limit.Take(state, h.at, max(h.cost, 1))
		if result.Allowed {
			admitted++
			came.WriteByte('A')
		} else {
			came.WriteByte('D')
		}
	}
	if strings.Contains(h.want, " ") {
		return state, result, fmt.Sprintf("%dA %dD", admitted, h.count-admitted)
	}
	return state, result, came.String()
}

// Real systems got each of these wrong. B numbers name the kind of fault; they are
// the ones that the scenarios carry as well.
func TestFaultsSeenElsewhere(t *testing.T) {
	cases := map[string]struct {
		limit algorithm.Limit
		state algorithm.State
		hits  []hits
	}{
		"B01b: a window seeded above its limit is denied until it ends, not for ever": {
			limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 5, Window: minute},
			state: algorithm.State{At: 0, Used: 9},
			hits: []hits{
				{at: 10 * second, count: 1, want: "D"},
				{at: minute - 1, count: 1, want: "D"},
				{at: minute, count: 6, want: "AAAAAD"},
			},
		},
		"B03: FixedWindow admits twice its limit around the end of a window": {
			limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 60, Window: minute},
			hits:  windowEdge("60A 0D", "60A 0D", "0A 60D", "0A 60D"),
		},
		"B03: SlidingWindowLog admits its limit and no more in any minute": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 60, Window: minute},
			hits:  windowEdge("60A 0D", "0A 60D", "0A 60D", "60A 0D"),
		},
		"B03: SlidingWindowCounter admits its own bound, 119 in 60 s": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 60, Window: minute},
			hits:  windowEdge("60A 0D", "0A 60D", "30A 30D", "29A 31D"),
		},
		"B03: TokenBucket admits its burst and then its rate": {
			limit: algorithm.Limit{Algorithm: algorithm.TokenBucket, Requests: 60, Window: minute},
			hits:  windowEdge("60A 0D", "1A 59D", "30A 30D", "29A 31D"),
		},
		"B05: the window before counts for what is left of it, and all that remains is admitted": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 100, Window: 10 * second},
			hits: []hits{
				{at: 5 * second, count: 50, want: "50A 0D"},
				{at: 10 * second, count: 10, want: "10A 0D"},
				{at: 11 * second, count: 100, want: "45A 55D"},
			},
		},
		"B09: a cost above the burst is denied and drains nothing": {
			limit: algorithm.Limit{Requests: 5, Window: minute},
			hits: []hits{
				{at: 0, count: 1, cost: 6, want: "D"},
				{at: 0, count: 1, cost: 1, want: "A"},
				{at: 0, count: 1, cost: 4, want: "A"},
				{at: 0, count: 1, cost: 1, want: "D"},
			},
		},
		"B09: a cost of a million leaves the two tokens for the next request": {
			limit: algorithm.Limit{Requests: 1, Window: second, Burst: 10},
			hits: []hits{
				{at: 100 * second, count: 1, cost: 8, want: "A"},
				{at: 100 * second, count: 1, cost: 1_000_000, want: "D"},
				{at: 100 * second, count: 1, cost: 2, want: "A"},
			},
		},
		"B11: one request per day refills after a day, whoever asks meanwhile": {
			limit: algorithm.Limit{Requests: 1, Window: day},
			hits: append(append([]hits{{at: 0, count: 1, want: "A"}}, hourly(1, 23)...),
				hits{at: 86_399 * second, count: 1, want: "D"},
				hits{at: day - 1, count: 1, want: "D"},
				hits{at: day, count: 2, want: "AD"},
			),
		},
		"B13: a caller whose clock is 10 s behind mints nothing for the others": {
			limit: algorithm.Limit{Requests: 2, Window: second, Burst: 4},
			hits: []hits{
				{at: 1000 * second, count: 5, want: "AAAAD"},
				{at: 990 * second, count: 1, want: "D"},
				{at: 1000 * second, count: 5, want: "DDDDD"},
			},
		},
		"B13: nor does one that is behind by less than the window, with tokens left": {
			limit: algorithm.Limit{Requests: 2, Window: second, Burst: 4},
			hits: []hits{
				{at: 1000 * second, count: 3, want: "AAA"},
				{at: 999 * second, count: 2, want: "AD"},
				{at: 1000 * second, count: 5, want: "DDDDD"},
			},
		},
		"B15: a bucket of 0 admits nothing, not even at first": {
			limit: algorithm.Limit{Requests: 0, Window: minute},
			hits:  []hits{{at: 0, count: 2, want: "DD"}, {at: hour, count: 1, want: "D"}},
		},
		"B15: a burst does not make a limit of 0 admit": {
			limit: algorithm.Limit{Requests: 0, Window: minute, Burst: 10},
			hits:  []hits{{at: 0, count: 2, want: "DD"}, {at: hour, count: 1, want: "D"}},
		},
		"B15: a fixed window of 0 admits nothing": {
			limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Window: minute},
			hits:  []hits{{at: 0, count: 2, want: "DD"}, {at: hour, count: 1, want: "D"}},
		},
		"B15: a sliding counter of 0 admits nothing": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Window: minute},
			hits:  []hits{{at: 0, count: 2, want: "DD"}, {at: hour, count: 1, want: "D"}},
		},
		"B15: a log of 0 admits nothing": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Window: minute},
			hits:  []hits{{at: 0, count: 2, want: "DD"}, {at: hour, count: 1, want: "D"}},
		},
		"B15: the zero limit admits nothing": {
			hits: []hits{{at: 0, count: 2, want: "DD"}},
		},
		"no burst means as much as the requests": {
			limit: algorithm.Limit{Requests: 3, Window: minute},
			hits:  []hits{{at: 0, count: 4, want: "AAAD"}},
		},
		"an entry aged exactly one window no longer counts": {
			limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 1, Window: minute},
			hits: []hits{
				{at: second, count: 1, want: "A"},
				{at: second + minute - 1, count: 1, want: "D"},
				{at: second + minute, count: 1, want: "A"},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			state := c.state
			for _, h := range c.hits {
				var came string
				state, _, came = send(c.limit, state, h)
				if came != h.want {
					t.Errorf("at %d µs: came %s, want %s", h.at, came, h.want)
				}
			}
		})
	}
}

// windowEdge is 60 hits at each of four instants around the end of a minute.
func windowEdge(at59, at60, at90, at119 string) []hits {
	return []hits{
		{at: 59 * second, count: 60, want: at59},
		{at: 60 * second, count: 60, want: at60},
		{at: 90 * second, count: 60, want: at90},
		{at: 119 * second, count: 60, want: at119},
	}
}

func hourly(from, to int64) []hits {
	var all []hits
	for h := from; h <= to; h++ {
		all = append(all, hits{at: h * hour, count: 1, want: "D"})
	}
	return all
}

func TestB05RemainingIsWhatTheNextRequestsCanHave(t *testing.T) {
	limit := algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 100, Window: 10 * second}
	state := algorithm.State{At: 1, Used: 10, Carry: 50}
	if got := limit.Look(state, 11*second, 0).Remaining; got != 45 { // 100 − 10 − 50·0.9
		t.Errorf("remaining is %d, want 45", got)
	}
}

func TestB07RaisedLimitCountsWhatWasAdmittedOnly(t *testing.T) {
	limit := algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 10, Window: hour}
	state, _, came := send(limit, algorithm.State{}, hits{at: minute, count: 50, want: "10A 40D"})
	if came != "10A 40D" {
		t.Errorf("before the raise: %s", came)
	}
	limit.Requests = 20
	if _, _, came = send(limit, state, hits{at: 2 * minute, count: 15, want: "10A 5D"}); came != "10A 5D" {
		t.Errorf("after the raise: %s, want 10A 5D", came)
	}
}

// A denial leaves the state and its lifetime, and says whether waiting helps.
func TestB09CostAboveCapacityIsNeverSatisfiable(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			limit := algorithm.Limit{Algorithm: a, Requests: 5, Window: minute}
			before := limit.Charge(algorithm.State{}, second, 2)
			after, result := limit.Take(before, 2*second, 6)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the denial changed the state (-before +after):\n%s", diff)
			}
			want := algorithm.Result{
				Remaining: 3, RetryAfter: algorithm.MaxWait, ResetAfter: result.ResetAfter, At: 2 * second,
			}
			if diff := cmp.Diff(want, result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if _, result = limit.Take(after, 2*second, 3); !result.Allowed || result.Remaining != 0 {
				t.Errorf("the three that remained: %+v", result)
			}
		})
	}
}

func TestB15LimitOfZeroHasNoWaitThatHelps(t *testing.T) {
	for _, a := range algorithms {
		limit := algorithm.Limit{Algorithm: a, Window: minute, Burst: 10}
		want := algorithm.Result{RetryAfter: algorithm.MaxWait, At: second}
		if diff := cmp.Diff(want, limit.Look(algorithm.State{}, second, 1)); diff != "" {
			t.Errorf("%v: result (-want +got):\n%s", a, diff)
		}
	}
}

func TestB63RetryAfterIsTheWaitAndNotTheWindow(t *testing.T) {
	bucket := algorithm.Limit{Requests: 6, Window: minute}
	state, _, _ := send(bucket, algorithm.State{}, hits{at: 0, count: 6})
	if got := bucket.Look(state, 100*ms, 1).RetryAfter; got != 9_900*ms {
		t.Errorf("bucket: retry after %d µs, want 9.9 s", got)
	}

	log := algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 10, Window: minute}
	state = algorithm.State{}
	for at := int64(0); at <= 18; at += 2 {
		state = log.Charge(state, at*second, 1)
	}
	if got := log.Look(state, 20*second, 1).RetryAfter; got != 40*second {
		t.Errorf("log: retry after %d µs, want 40 s", got)
	}
}

// A product that doubles get wrong: prev·left is 546,174,180·Window + 1, which is
// 1.5e21, and there doubles count in steps of 262,144.
func TestSlidingCounterRefusesWhatDoublesAdmit(t *testing.T) {
	const prev, window, left, free = 999_999_937, 31 * day, 1_462_873_015_873, 546_174_180
	limit := algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: free + 1, Window: window}
	state := algorithm.State{At: 700, Carry: prev}
	result := limit.Look(state, 701*window-left, 1)
	if result.Allowed || result.RetryAfter != 1 {
		t.Errorf("exact arithmetic refuses, for 1 µs: %+v", result)
	}
	product := float64(prev) * float64(left)
	if product/float64(window) > free {
		t.Error("doubles refuse as well: these numbers prove nothing")
	}
}
