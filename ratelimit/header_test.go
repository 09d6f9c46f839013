package ratelimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestHeader(t *testing.T) {
	over := func(retry time.Duration) Decision {
		return Decision{Policy: "p", Rule: "r", Limit: 6, Window: time.Minute, RetryAfter: retry, ResetAfter: time.Minute}
	}
	tests := map[string]struct {
		decision Decision
		want     http.Header
	}{
		"admitted": {
			Decision{Allowed: true, Policy: "p", Rule: "r", Limit: 6, Window: time.Minute, Remaining: 5, ResetAfter: 10 * time.Second, MoreAfter: 10 * time.Second},
			http.Header{"Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=5;t=10`}},
		},
		"admitted, and it is not known when there is more": {
			Decision{Allowed: true, Policy: "p", Rule: "r", Limit: 6, Window: time.Minute, Remaining: 5, ResetAfter: time.Minute},
			http.Header{"Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=5`}},
		},
		"a full limit resets at no time": {
			Decision{Allowed: true, Policy: "p", Rule: "r", Limit: 6, Window: time.Minute, Remaining: 6},
			http.Header{"Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=6`}},
		},
		"a wait is rounded up, so that a client that keeps to it is not too early (B63)": {
			over(9900 * time.Millisecond),
			http.Header{"Retry-After": {"10"}, "Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=0;t=10`}},
		},
		"the shortest wait is 1 s": {
			over(time.Microsecond),
			http.Header{"Retry-After": {"1"}, "Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=0;t=1`}},
		},
		"a whole wait stays": {
			over(10 * time.Second),
			http.Header{"Retry-After": {"10"}, "Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=0;t=10`}},
		},
		"a month is exact": {
			over(31*24*time.Hour - time.Microsecond),
			http.Header{"Retry-After": {"2678400"}, "Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=0;t=2678400`}},
		},
		"no wait helps": {
			over(0), http.Header{"Ratelimit-Policy": {`"p/r";q=6;w=60`}, "Ratelimit": {`"p/r";r=0`}},
		},
		"a window that is no whole seconds is not told": {
			Decision{Allowed: true, Policy: "p", Rule: "r", Limit: 6, Window: 100 * time.Millisecond, Remaining: 5},
			http.Header{"Ratelimit-Policy": {`"p/r";q=6`}, "Ratelimit": {`"p/r";r=5`}},
		},
		"failed closed": {Decision{RetryAfter: time.Second}, http.Header{"Retry-After": {"1"}}},
		"no rule":       {Decision{Allowed: true}, http.Header{}},
		"names are strings of RFC 9651": {
			Decision{Allowed: true, Policy: `a"b\c`, Rule: "é\n", Limit: 1, Window: time.Second},
			http.Header{"Ratelimit-Policy": {`"a\"b\\c/???";q=1;w=1`}, "Ratelimit": {`"a\"b\\c/???";r=0`}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := http.Header{}
			tc.decision.SetHeader(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
		})
	}
}
