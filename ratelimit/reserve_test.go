package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
	"github.com/weir-dev/weir/test/env"
)

// rows is a query that is estimated at 10 rows.
func rows() ratelimit.Request {
	return ratelimit.Request{Method: http.MethodPost, Attributes: ratelimit.Attributes{"rows": "10"}}
}

func costs(algorithm string) string {
	return fmt.Sprintf(`
  rules:
    - name: rows
      limits: [{requests: 100, window: 1h, algorithm: %s}]
      cost: {attribute: rows, max: 60}
    - name: queries
      limits: [{requests: 1000, window: 1h, algorithm: %s}]
    - name: shadow
      mode: Shadow
      limits: [{requests: 100, window: 1h, algorithm: %s}]
      cost: {attribute: rows, max: 60}
`, algorithm, algorithm, algorithm)
}

// stores are where a limiter may count.
func stores(t *testing.T, rules string) map[string]func(t *testing.T) *ratelimit.Limiter {
	return map[string]func(t *testing.T) *ratelimit.Limiter{
		"memory": func(t *testing.T) *ratelimit.Limiter { return limiterOf(t, rules) },
		"Redis": func(t *testing.T) *ratelimit.Limiter {
			addr := env.Redis(t, env.RedisOptions{}).Addr
			return limiterOf(t, rules, func(o *ratelimit.Options) {
				o.Counters, o.Redis = nil, &redis.UniversalOptions{Addrs: []string{addr}}
				o.StoreTimeout = time.Second // the machine of a test may be slow
			})
		},
		"a limiter of tests": func(t *testing.T) *ratelimit.Limiter {
			source, err := file.Text(strings.TrimLeft(policyOf(rules), "\n"))
			if err != nil {
				t.Fatal(err)
			}
			return ratelimittest.New(t, ratelimit.Options{Policies: source}).Limiter
		},
	}
}

// What was estimated at 10 of 100 is settled. The store then holds what it really cost, in every algorithm.
func TestSettle(t *testing.T) {
	settle := func(cost int64) func(*ratelimit.Reservation) error {
		return func(r *ratelimit.Reservation) error { return r.Settle(cost) }
	}
	tests := map[string]struct {
		settle  func(*ratelimit.Reservation) error
		rows    int64 // that remain for a request of one row
		queries int64
	}{
		"as estimated":                  {settle(10), 90, 999},
		"less":                          {settle(3), 97, 999},
		"nothing":                       {settle(0), 100, 999},
		"more":                          {settle(25), 75, 999},
		"more than a request may cost":  {settle(1000), 40, 999},
		"a request that was not served": {(*ratelimit.Reservation).Refund, 100, 1000},
	}
	for _, algorithm := range []string{"TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog"} {
		for store, open := range stores(t, costs(algorithm)) {
			t.Run(algorithm+" "+store, func(t *testing.T) {
				limiter := open(t)
				for name, tc := range tests {
					for _, rule := range []string{"rows", "queries", "shadow"} {
						if err := limiter.Reset(t.Context(), "checkout", rule, rows()); err != nil {
							t.Fatal(err)
						}
					}
					r := limiter.Reserve(t.Context(), rows())
					if !r.Allowed || r.Rule != "rows" || r.Remaining != 90 {
						t.Fatalf("%s: reserved %+v, want 90 rows to remain", name, r.Decision)
					}
					if err := tc.settle(r); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					one := rows()
					one.Attributes = nil
					eventually(t, fmt.Sprintf("%s: %d rows remain", name, tc.rows), func() bool {
						d := limiter.Peek(context.Background(), one)
						return d.Rule == "rows" && d.Remaining >= tc.rows && d.Remaining <= tc.rows+1 // a bucket drains
					})
					if err := r.Settle(1); !errors.Is(err, ratelimit.ErrSettled) {
						t.Errorf("%s: settling again: %v", name, err)
					}
					if err := r.Refund(); !errors.Is(err, ratelimit.ErrSettled) {
						t.Errorf("%s: refunding what is settled: %v", name, err)
					}
				}
			})
		}
	}
}

// What a request cost beyond the limit is owed: later requests wait for it.
func TestSettleBeyondTheLimit(t *testing.T) {
	for store, open := range stores(t, costs("FixedWindow")) {
		t.Run(store, func(t *testing.T) {
			limiter := open(t)
			first, second := limiter.Reserve(t.Context(), rows()), limiter.Reserve(t.Context(), rows())
			for _, r := range []*ratelimit.Reservation{first, second} {
				if err := r.Settle(60); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "nothing remains", func() bool {
				return limiter.Peek(context.Background(), rows()).Status == http.StatusTooManyRequests
			})
			if d := limiter.Decide(t.Context(), ratelimit.Request{}); d.Allowed {
				t.Errorf("admitted: %+v", d)
			}
		})
	}
}

func TestSettleRefusesNegativeCosts(t *testing.T) {
	r := limiterOf(t, costs("FixedWindow")).Reserve(t.Context(), rows())
	if err := r.Settle(-1); err == nil {
		t.Error("a negative cost was settled")
	}
	if err := r.Settle(5); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

// What was denied, or decided by no limit, has nothing to settle.
func TestSettleWithoutACharge(t *testing.T) {
	limiter := limiterOf(t, `
  rules: [{name: one, match: [{pathPrefix: /one}], limits: [{requests: 1, window: 1h, algorithm: FixedWindow}]}]
`)
	one := ratelimit.Request{Path: "/one"}
	limiter.Decide(t.Context(), one)
	for _, r := range []*ratelimit.Reservation{limiter.Reserve(t.Context(), one), limiter.Reserve(t.Context(), ratelimit.Request{})} {
		if err := r.Refund(); err != nil {
			t.Error(err)
		}
	}
	if d := limiter.Decide(t.Context(), one); d.Allowed {
		t.Error("refunding a denial made room")
	}
}

// Without a store the replica owes the difference, and tells it when the store is back. Nothing is given back: it may
// have been told already.
func TestSettleWithoutAStore(t *testing.T) {
	source, err := file.Text(policyOf(costs("FixedWindow")))
	if err != nil {
		t.Fatal(err)
	}
	limiter := ratelimittest.New(t, ratelimit.Options{Policies: source})
	limiter.Decide(t.Context(), rows()) // so that the replica knows what the store holds
	limiter.StoreDown()
	for _, cost := range []int64{25, 0} {
		r := limiter.Reserve(t.Context(), rows())
		if !r.Allowed || r.Source != ratelimit.SourceLocalShare {
			t.Fatalf("decided: %+v", r.Decision)
		}
		if err := r.Settle(cost); err != nil {
			t.Error(err)
		}
	}
	limiter.StoreUp()
	limiter.Advance(11 * time.Second) // for 10 s the local share counts too
	if d := limiter.Peek(t.Context(), ratelimit.Request{}); d.Remaining != 100-10-25-10 {
		t.Errorf("%d remain in the store, want 55", d.Remaining)
	}
}

func TestReserveInTheMiddleware(t *testing.T) {
	limiter := limiterOf(t, costs("FixedWindow"), func(o *ratelimit.Options) {
		o.Attributes = func(*http.Request) ratelimit.Attributes { return ratelimit.Attributes{"rows": "10"} }
		o.Reserve = func(r *http.Request) bool { return r.URL.Path == "/query" }
	})
	server := httptest.NewServer(limiter.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reservation := ratelimit.FromContext(r.Context())
		if reservation == nil {
			_, _ = io.WriteString(w, "none")
			return
		}
		cost, err := strconv.ParseInt(r.URL.Query().Get("rows"), 10, 64)
		if err == nil {
			err = reservation.Settle(cost)
		}
		fmt.Fprint(w, err)
	})))
	t.Cleanup(server.Close)
	read := func(path string) string {
		t.Helper()
		_, header, body := get(t, server.URL+path)
		return body + " " + header.Get("RateLimit")
	}
	for _, tc := range []struct{ path, want string }{
		{"/query?rows=40", `<nil> "checkout/rows";r=90;`},
		{"/other", `none "checkout/rows";r=50;`},
		{"/query?rows=2", `<nil> "checkout/rows";r=40;`},
		{"/other", `none "checkout/rows";r=38;`},
	} {
		if got := read(tc.path); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s, want %s", tc.path, got, tc.want)
		}
	}
}

func TestReset(t *testing.T) {
	const rules = `
  rules:
    - name: login
      key: [{header: X-Api-Key}]
      limits: [{requests: 1, window: 1h}, {requests: 1, window: 24h, algorithm: FixedWindow}]
      overrides: [{when: {attribute: plan, values: [scale]}, limits: [{requests: 2, window: 1h}]}]
`
	for store, open := range stores(t, rules) {
		t.Run(store, func(t *testing.T) {
			limiter := open(t)
			scale := ratelimit.Request{
				Header: http.Header{"X-Api-Key": {"carol"}}, Attributes: ratelimit.Attributes{"plan": "scale"},
			}
			bob := ratelimit.Request{Header: http.Header{"X-Api-Key": {"bob"}}}
			for _, r := range []ratelimit.Request{alice(), scale, scale, bob} {
				if !limiter.Decide(t.Context(), r).Allowed {
					t.Fatalf("%v is over the limit at first", r)
				}
			}
			for _, r := range []ratelimit.Request{alice(), scale, bob} {
				if limiter.Decide(t.Context(), r).Allowed {
					t.Fatalf("%v is not over the limit", r)
				}
			}
			for _, r := range []ratelimit.Request{alice(), scale} {
				if err := limiter.Reset(t.Context(), "checkout", "login", r); err != nil {
					t.Fatal(err)
				}
			}
			if !limiter.Decide(t.Context(), alice()).Allowed || !limiter.Decide(t.Context(), scale).Allowed {
				t.Error("alice or carol is denied after the reset")
			}
			if limiter.Decide(t.Context(), bob).Allowed {
				t.Error("bob was reset, too")
			}
			if err := limiter.Reset(t.Context(), "checkout", "logon", alice()); !errors.Is(err, ratelimit.ErrNoSuchRule) {
				t.Errorf("resetting a rule that does not exist: %v", err)
			}
		})
	}
}
