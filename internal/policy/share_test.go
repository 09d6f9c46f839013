package policy_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

const minute = 60_000_000

func limitOf(a policy.Algorithm, requests int64) policy.RowLimit {
	l := policy.RowLimit{ID: "id", Algorithm: a, Requests: requests, Window: minute}
	if a == policy.TokenBucket {
		l.Burst = requests
	}
	return l
}

func TestShareOf(t *testing.T) {
	bucket := func(requests, window, burst int64) policy.RowLimit {
		return policy.RowLimit{ID: "id", Algorithm: policy.TokenBucket, Requests: requests, Window: window, Burst: burst}
	}
	windowed := func(a policy.Algorithm, requests int64) policy.RowLimit {
		return policy.RowLimit{ID: "id", Algorithm: a, Requests: requests, Window: minute}
	}
	exact := func(rank, n int) policy.Replica { return policy.Replica{Rank: rank, N: n, Exact: true} }
	tests := map[string]struct {
		limit    policy.RowLimit
		maxCost  int64
		rounding policy.Rounding
		replica  policy.Replica
		key      uint64
		want     policy.RowLimit
	}{
		"one replica has the whole limit": {
			limit: limitOf(policy.FixedWindow, 10), replica: exact(0, 1), want: windowed(policy.FixedWindow, 10),
		},
		"no count at all is one replica": {
			limit: limitOf(policy.FixedWindow, 10), want: windowed(policy.FixedWindow, 10),
		},
		"10 per minute on 3: the first has the rest": {
			limit: limitOf(policy.FixedWindow, 10), replica: exact(0, 3), want: windowed(policy.FixedWindow, 4),
		},
		"10 per minute on 3: the others have not": {
			limit: limitOf(policy.FixedWindow, 10), replica: exact(1, 3), want: windowed(policy.FixedWindow, 3),
		},
		"another key turns the rest to another replica": {
			limit: limitOf(policy.FixedWindow, 10), replica: exact(1, 3), key: 2, want: windowed(policy.FixedWindow, 4),
		},
		"a replica whose rank is not the counted one takes no rest": {
			limit: limitOf(policy.FixedWindow, 10), replica: policy.Replica{N: 3}, want: windowed(policy.FixedWindow, 3),
		},
		"a rank beyond the count turns around": {
			limit: limitOf(policy.FixedWindow, 10), replica: exact(3, 3), want: windowed(policy.FixedWindow, 4),
		},

		// B29, the first figure of each pair being requests/replicas.
		"10 per minute on 3, bucket": {
			limit: limitOf(policy.TokenBucket, 10), replica: exact(2, 3), want: bucket(3, minute, 3),
		},
		"3 per minute on 5 are one per 100 s": {
			limit: limitOf(policy.TokenBucket, 3), replica: exact(4, 5), want: bucket(3, 5*minute, 1),
		},
		"1 per minute on 4 is one per 240 s": {
			limit: limitOf(policy.TokenBucket, 1), replica: exact(0, 4), want: bucket(1, 4*minute, 1),
		},
		"2 per minute on 3 are one per 90 s": {
			limit: limitOf(policy.TokenBucket, 2), replica: exact(0, 3), want: bucket(2, 3*minute, 1),
		},
		"a window that is too small to share becomes a bucket": {
			limit: limitOf(policy.FixedWindow, 2), replica: exact(0, 3), want: bucket(2, 3*minute, 1),
		},
		"so does a log": {
			limit: limitOf(policy.SlidingWindowLog, 2), replica: exact(0, 3), want: bucket(2, 3*minute, 1),
		},

		"a burst is shared too": {
			limit: bucket(10, minute, 20), replica: exact(0, 3), want: bucket(4, minute, 7),
		},
		"a burst smaller than the replicas still holds one": {
			limit: bucket(30, minute, 1), replica: exact(2, 3), want: bucket(10, minute, 1),
		},
		"a large burst stays shared when the rate is too small": {
			limit: bucket(2, minute, 100), replica: exact(0, 3), want: bucket(2, 3*minute, 34),
		},
		"a bucket holds the most expensive request": {
			limit: bucket(100, minute, 30), maxCost: 20, replica: exact(2, 3), want: bucket(33, minute, 20),
		},
		"a part below the most expensive request": {
			limit: limitOf(policy.FixedWindow, 100), maxCost: 50, replica: exact(0, 3), want: bucket(100, 3*minute, 50),
		},
		"a request that the limit never admits needs no room": {
			limit: limitOf(policy.FixedWindow, 10), maxCost: 1000, replica: exact(0, 3), want: bucket(10, 3*minute, 10),
		},
		"a small part of a sliding counter is counted as a log": {
			limit: limitOf(policy.SlidingWindowCounter, 193), replica: exact(2, 3), want: windowed(policy.SlidingWindowLog, 64),
		},
		"a larger one is not": {
			limit: limitOf(policy.SlidingWindowCounter, 193), replica: exact(0, 3), want: windowed(policy.SlidingWindowCounter, 65),
		},
		"nothing shared is nothing": {
			limit: limitOf(policy.FixedWindow, 0), replica: exact(0, 3), want: windowed(policy.FixedWindow, 0),
		},

		"NeverExceed leaves a replica mute": {
			limit: limitOf(policy.FixedWindow, 2), rounding: policy.RoundingNeverExceed, replica: exact(2, 3),
			want: windowed(policy.FixedWindow, 0),
		},
		"NeverExceed gives the others their part": {
			limit: limitOf(policy.TokenBucket, 2), rounding: policy.RoundingNeverExceed, replica: exact(1, 3),
			want: bucket(1, minute, 1),
		},
		"NeverExceed does not turn a burst of none into a whole one": {
			limit: bucket(30, minute, 1), rounding: policy.RoundingNeverExceed, replica: exact(2, 3), want: bucket(0, minute, 0),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := policy.ShareOf(tc.limit, tc.maxCost, tc.rounding, tc.replica, tc.key)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("share (-want +got):\n%s", diff)
			}
		})
	}
}

// For every key the parts of all replicas add up to the limit, in requests and in rate, and NeverExceed never to more,
// also at once.
func TestSharesAddUp(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	algorithms := []policy.Algorithm{
		policy.TokenBucket, policy.FixedWindow, policy.SlidingWindowCounter, policy.SlidingWindowLog,
	}
	for range 20_000 {
		l := limitOf(algorithms[rng.IntN(4)], rng.Int64N(1+rng.Int64N(2000)))
		if l.Algorithm == policy.TokenBucket {
			l.Burst = 1 + rng.Int64N(2000)
		}
		n, key, maxCost := 1+rng.IntN(40), rng.Uint64(), 1+rng.Int64N(1+rng.Int64N(50))

		var rate, never, atOnce int64 // rate in requests per n windows
		for rank := range n {
			r := policy.Replica{Rank: rank, N: n, Exact: true}
			share := policy.ShareOf(l, maxCost, policy.RoundingNeverZero, r, key)
			rate += share.Requests * int64(n) * minute / share.Window
			if l.Requests > 0 && share.Requests == 0 {
				t.Fatalf("%+v on %d: replica %d is mute under NeverZero", l, n, rank)
			}
			strict := policy.ShareOf(l, maxCost, policy.RoundingNeverExceed, r, key)
			never += strict.Requests
			if strict.Requests > 0 {
				atOnce += strict.Burst
			}
		}
		if want := l.Requests * int64(n); rate != want {
			t.Fatalf("%+v, max cost %d, on %d, key %d: %d requests in %d windows, want %d", l, maxCost, n, key, rate, n, want)
		}
		if never > l.Requests || atOnce > l.Burst {
			t.Fatalf("%+v on %d, key %d: NeverExceed gives %d and %d at once", l, n, key, never, atOnce)
		}
		if l.Algorithm != policy.TokenBucket && never != l.Requests {
			t.Fatalf("%+v on %d, key %d: NeverExceed gives %d", l, n, key, never)
		}
	}
}
