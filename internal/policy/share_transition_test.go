package policy_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

const sec = 1_000_000

// old returns the places of a replica that is no longer new to anybody.
func old(r policy.Replica) *policy.Places {
	return policy.NewPlaces(0, 0).Counted(0).Move(r, 0)
}

func TestPlacesShare(t *testing.T) {
	exact := func(rank, n int) policy.Replica { return policy.Replica{Rank: rank, N: n, Exact: true} }
	const hour = 60 * minute
	ten := func(a policy.Algorithm) policy.RowLimit { return limitOf(a, 10) }
	tests := map[string]struct {
		places   *policy.Places
		limit    policy.RowLimit
		rounding policy.Rounding
		now      int64
		requests int64
		emptyAt  int64
		steps    []int64 // capacities
	}{
		"a place that stood for long gives its share": {
			places: old(exact(0, 3)), limit: ten(policy.FixedWindow), now: hour, requests: 4,
		},
		"a smaller share applies at once": {
			places: old(exact(0, 2)).Move(exact(0, 5), hour+30*sec), limit: ten(policy.FixedWindow), now: hour + 30*sec, requests: 2,
		},
		"a larger share waits for the next fixed window": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour+30*sec), limit: ten(policy.FixedWindow), now: hour + minute - 1, requests: 2,
		},
		"and is there in the next fixed window": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour+30*sec), limit: ten(policy.FixedWindow), now: hour + minute, requests: 5,
		},
		"a larger share of a log waits a whole window": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour+30*sec), limit: ten(policy.SlidingWindowLog), now: hour + 90*sec - 1, requests: 2,
		},
		"and is there after it": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour+30*sec), limit: ten(policy.SlidingWindowLog), now: hour + 90*sec, requests: 5,
		},
		"the smallest share of a window holds": {
			places: old(exact(0, 2)).Move(exact(0, 5), hour+10*sec).Move(exact(0, 2), hour+20*sec),
			limit:  ten(policy.FixedWindow), now: hour + 59*sec, requests: 2,
		},
		"a part of the remainder that comes back is a larger share": {
			places: old(exact(0, 3)).Move(policy.Replica{N: 3}, hour+10*sec).Move(exact(0, 3), hour+30*sec),
			limit:  ten(policy.FixedWindow), now: hour + 59*sec, requests: 3,
		},
		"a bucket knows what it went through while that matters": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour), limit: ten(policy.TokenBucket), now: hour + 59*sec, requests: 5,
			steps: []int64{2, 5},
		},
		"and no longer": {
			places: old(exact(0, 5)).Move(exact(0, 2), hour), limit: ten(policy.TokenBucket), now: hour + 60*sec, requests: 5,
		},
		"NeverZero: a new process has nothing at first": {
			places: policy.NewPlaces(hour, 0).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow), now: hour, requests: 0,
		},
		"NeverZero: and half of its share after half a window": {
			places: policy.NewPlaces(hour, 0).Move(exact(0, 2), hour), limit: limitOf(policy.FixedWindow, 100), now: hour + 30*sec, requests: 25,
		},
		"NeverZero: and all of it after a window": {
			places: policy.NewPlaces(hour, 0).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow), now: hour + minute, requests: 5,
		},
		"NeverZero: its bucket is empty at the start": {
			places: policy.NewPlaces(hour, 0).Move(exact(0, 2), hour), limit: ten(policy.TokenBucket), now: hour + 30*sec, requests: 5, emptyAt: hour,
		},
		"NeverExceed: a new process has nothing until all know of it": {
			places: policy.NewPlaces(hour, 0).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow),
			rounding: policy.RoundingNeverExceed, now: 2 * hour, requests: 0,
		},
		"NeverExceed: nor until the window ends in which they do": {
			places: policy.NewPlaces(hour, 0).Counted(hour+12*sec).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow),
			rounding: policy.RoundingNeverExceed, now: hour + 59*sec, requests: 0,
		},
		"NeverExceed: then it has its share": {
			places: policy.NewPlaces(hour, 0).Counted(hour+12*sec).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow),
			rounding: policy.RoundingNeverExceed, now: hour + minute, requests: 5,
		},
		"NeverExceed: a bucket is closed until all know of it": {
			places: policy.NewPlaces(hour, 0).Counted(hour+12*sec).Move(exact(0, 2), hour), limit: ten(policy.TokenBucket),
			rounding: policy.RoundingNeverExceed, now: hour + 12*sec - 1, requests: 0,
		},
		"NeverExceed: and then empty": {
			places: policy.NewPlaces(hour, 0).Counted(hour+12*sec).Move(exact(0, 2), hour), limit: ten(policy.TokenBucket),
			rounding: policy.RoundingNeverExceed, now: hour + 12*sec, requests: 5, emptyAt: hour + 12*sec,
		},
		"when nobody ran for a window, a new process has its share": {
			places: policy.NewPlaces(hour, minute).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow),
			rounding: policy.RoundingNeverExceed, now: hour, requests: 5,
		},
		"but not of limits with a longer window": {
			places: policy.NewPlaces(hour, minute-1).Move(exact(0, 2), hour), limit: ten(policy.FixedWindow),
			rounding: policy.RoundingNeverExceed, now: hour, requests: 0,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.rounding == "" {
				tc.rounding = policy.RoundingNeverZero
			}
			got := tc.places.Share(tc.limit, 1, tc.rounding, 0, tc.now, tc.now)
			if got.Requests != tc.requests || got.EmptyAt != tc.emptyAt {
				t.Errorf("requests %d, empty at %d; want %d, %d", got.Requests, got.EmptyAt, tc.requests, tc.emptyAt)
			}
			var steps []int64
			for _, s := range got.Steps {
				steps = append(steps, s.Limit.Burst)
			}
			if diff := cmp.Diff(tc.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// A window that falls back to a bucket, because its share is below one request, keeps the bucket until the window ends.
func TestPlacesGrowOutOfABucket(t *testing.T) {
	p := old(policy.Replica{N: 5, Exact: true}).Move(policy.Replica{N: 2, Exact: true}, 60*minute+30*sec)
	l := limitOf(policy.FixedWindow, 4)
	for now, want := range map[int64]policy.Algorithm{
		61*minute - 1: policy.TokenBucket,
		61 * minute:   policy.FixedWindow,
	} {
		if got := p.Share(l, 1, policy.RoundingNeverZero, 0, now, now).Limit.Algorithm; got != want {
			t.Errorf("at %v: %s, want %s", time.Duration(now)*time.Microsecond, got, want)
		}
	}
}

// Local windows are those of the store's clock.
func TestPlacesWindowsAreTheStores(t *testing.T) {
	const ahead = 17*sec + 40*minute
	p := old(policy.Replica{N: 5, Exact: true}).Move(policy.Replica{N: 2, Exact: true}, 60*minute)
	l := limitOf(policy.FixedWindow, 10)
	for now, want := range map[int64]int64{60*minute + 43*sec - 1: 2, 60*minute + 43*sec: 5} {
		if got := p.Share(l, 1, policy.RoundingNeverZero, 0, now, now+ahead).Requests; got != want {
			t.Errorf("at %v: %d, want %d", time.Duration(now)*time.Microsecond, got, want)
		}
	}
}

// However long the history, a share is never more than that of any place in the window.
func TestPlacesForgetNothingThatCounts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := limitOf(policy.SlidingWindowLog, 1000)
	for range 200 {
		now := int64(60 * minute)
		p := old(policy.Replica{N: 4})
		type stood struct {
			share, until int64
		}
		var history []stood
		for range 100 {
			now += r.Int64N(3 * sec)
			before := policy.ShareOf(l, 1, policy.RoundingNeverExceed, p.Current(), 7).Requests
			history = append(history, stood{before, now})
			p = p.Move(policy.Replica{N: 1 + r.IntN(9), Rank: r.IntN(9), Exact: r.IntN(2) == 0}, now)
			most := policy.ShareOf(l, 1, policy.RoundingNeverExceed, p.Current(), 7).Requests
			for _, h := range history {
				if h.until > now-l.Window {
					most = min(most, h.share)
				}
			}
			if got := p.Share(l, 1, policy.RoundingNeverExceed, 7, now, now).Requests; got > most {
				t.Fatalf("%d, want at most %d", got, most)
			}
		}
	}
}
