package ratelimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
	"github.com/weir-dev/weir/test/env"
)

// answers serves behind a limiter of tests and returns a client's GET.
func answers(t *testing.T, rules string, change func(*ratelimit.Options)) (*ratelimittest.Limiter, func(header ...string) (int, http.Header, string)) {
	t.Helper()
	source, err := file.Text(policyOf(rules))
	if err != nil {
		t.Fatal(err)
	}
	options := ratelimit.Options{Policies: source}
	if change != nil {
		change(&options)
	}
	limiter := ratelimittest.New(t, options)
	server := httptest.NewServer(limiter.Middleware(ok))
	t.Cleanup(server.Close)
	return limiter, func(header ...string) (int, http.Header, string) {
		t.Helper()
		return get(t, server.URL, header...)
	}
}

func get(t *testing.T, url string, header ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

// B63: who comes back after Retry-After, if nobody else does, is admitted; who comes a second earlier is not.
func TestRetryAfterIsWhenThereIsRoom(t *testing.T) {
	tests := map[string]struct {
		rules  string
		before func(l *ratelimittest.Limiter, get func(...string) (int, http.Header, string))
		want   string
	}{
		"a bucket": {
			`rules: [{name: r, limits: [{requests: 6, window: 1m}]}]`,
			func(l *ratelimittest.Limiter, get func(...string) (int, http.Header, string)) {
				for range 6 {
					get()
				}
				l.Advance(100 * time.Millisecond)
			}, "10",
		},
		"a log": {
			`rules: [{name: r, limits: [{requests: 10, window: 1m, algorithm: SlidingWindowLog}]}]`,
			func(l *ratelimittest.Limiter, get func(...string) (int, http.Header, string)) {
				for range 10 {
					get()
					l.Advance(2 * time.Second)
				}
			}, "40",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			limiter, get := answers(t, "  "+tc.rules, nil)
			tc.before(limiter, get)
			status, header, _ := get()
			if status != http.StatusTooManyRequests || header.Get("Retry-After") != tc.want {
				t.Fatalf("status %d, Retry-After %q, want 429 and %s", status, header.Get("Retry-After"), tc.want)
			}
			wait, err := strconv.Atoi(tc.want)
			if err != nil {
				t.Fatal(err)
			}
			limiter.Advance(time.Duration(wait-1) * time.Second)
			if status, _, _ := get(); status != http.StatusTooManyRequests {
				t.Errorf("a second early: %d", status)
			}
			limiter.Advance(time.Second)
			if status, _, _ := get(); status != http.StatusOK {
				t.Errorf("in time: %d", status)
			}
		})
	}
}

// B65: RateLimit counts down to the end of the window, and X-RateLimit-Reset stands.
func TestResetDoesNotWobble(t *testing.T) {
	limiter, get := answers(t, `  rules: [{name: r, limits: [{requests: 10, window: 1m, algorithm: FixedWindow}]}]`,
		func(o *ratelimit.Options) { o.LegacyHeaders = true })
	limiter.Advance(1_700_000_030 * time.Second) // the window ends at 1,700,000,040
	for i := range 10 {
		_, header, _ := get()
		want := http.Header{
			"Ratelimit":             {`"checkout/r";r=` + strconv.Itoa(9-i) + `;t=10`},
			"X-Ratelimit-Limit":     {"10"},
			"X-Ratelimit-Remaining": {strconv.Itoa(9 - i)},
			"X-Ratelimit-Reset":     {"1700000040"},
		}
		for name := range want {
			if diff := cmp.Diff(want[name], header[name]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
	for i := range 50 {
		_, header, _ := get()
		left := strconv.Itoa(10 - i/10)
		if header.Get("Retry-After") != left || header.Get("RateLimit") != `"checkout/r";r=0;t=`+left || header.Get("X-RateLimit-Reset") != "1700000040" {
			t.Errorf("%d00 ms later: Retry-After %s, RateLimit %s, X-RateLimit-Reset %s", i,
				header.Get("Retry-After"), header.Get("RateLimit"), header.Get("X-RateLimit-Reset"))
		}
		limiter.Advance(100 * time.Millisecond)
	}
}

// Two replicas, whose clocks may differ, tell the same end of the store's window.
func TestResetIsTheStores(t *testing.T) {
	addr := env.Redis(t, env.RedisOptions{}).Addr
	var urls []string
	for range 2 {
		limiter := limiterOf(t, `  rules: [{name: r, limits: [{requests: 3, window: 24h, algorithm: FixedWindow}]}]`, func(o *ratelimit.Options) {
			o.LegacyHeaders = true
			o.StoreTimeout = time.Second // the machine of a test may be slow
			o.Counters, o.Redis = nil, &redis.UniversalOptions{Addrs: []string{addr}}
		})
		server := httptest.NewServer(limiter.Middleware(ok))
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	end := strconv.FormatInt((time.Now().Unix()/86400+1)*86400, 10)
	for i := range 40 {
		if _, header, _ := get(t, urls[i%2]); header.Get("X-RateLimit-Reset") != end {
			t.Errorf("request %d: X-RateLimit-Reset %s, want %s", i, header.Get("X-RateLimit-Reset"), end)
		}
	}
}

// Of several limits the one is shown that has room for the fewest more, and over the limit the one that denies longest.
func TestTheBindingLimitIsShown(t *testing.T) {
	_, get := answers(t, `
  rules:
    - name: minute
      limits: [{requests: 3, window: 1m, algorithm: FixedWindow}, {requests: 100, window: 1h, algorithm: FixedWindow}]
    - name: day
      limits: [{requests: 4, window: 24h, algorithm: FixedWindow}]
    - name: wide
      limits: [{requests: 1000, window: 1s, algorithm: FixedWindow}]
`, nil)
	for _, want := range []string{
		`"checkout/minute";r=2;t=60`, `"checkout/minute";r=1;t=60`, `"checkout/minute";r=0;t=60`, `"checkout/minute";r=0;t=60`,
	} {
		_, header, _ := get()
		if got := header.Get("RateLimit"); got != want {
			t.Errorf("RateLimit %s, want %s", got, want)
		}
	}
}

func TestRespond(t *testing.T) {
	_, get := answers(t, `  rules: [{name: r, limits: [{requests: 1, window: 1m}]}]`, func(o *ratelimit.Options) {
		o.Respond = func(w http.ResponseWriter, r *http.Request, d ratelimit.Decision) {
			if r.Header.Get("Accept") == "application/problem+json" {
				d.WriteProblem(w)
				return
			}
			http.Error(w, "slow down: "+d.Rule, d.Status)
		}
	})
	if status, _, body := get(); status != http.StatusOK || body != "served" {
		t.Errorf("within the limit: %d %q", status, body)
	}
	status, header, body := get()
	if status != http.StatusTooManyRequests || body != "slow down: r\n" || header.Get("Retry-After") != "60" {
		t.Errorf("over the limit: %d %q, Retry-After %q", status, body, header.Get("Retry-After"))
	}
	if _, header, _ := get("Accept", "application/problem+json"); header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("content type %q", header.Get("Content-Type"))
	}
}

func TestExposeHeaders(t *testing.T) {
	_, get := answers(t, `  rules: [{name: r, limits: [{requests: 1, window: 1m}]}]`, func(o *ratelimit.Options) {
		o.ExposeHeaders = true
	})
	const want = "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
	for range 2 { // admitted, denied
		_, header, _ := get("Origin", "https://web.example")
		if got := header.Get("Access-Control-Expose-Headers"); got != want {
			t.Errorf("exposed %q, want %q", got, want)
		}
	}
	if _, header, _ := get(); header.Get("Access-Control-Expose-Headers") != "" {
		t.Error("exposed to one that comes from no other origin")
	}
}

// Clients that were denied together are told different times, none of them too early; RateLimit stays exact.
func TestRetryJitter(t *testing.T) {
	_, get := answers(t, `  rules: [{name: r, limits: [{requests: 0, window: 1m}, {requests: 1, window: 1h}]}]`, nil)
	if _, header, _ := get(); header.Get("Retry-After") != "" {
		t.Errorf("Retry-After %s where no wait helps", header.Get("Retry-After"))
	}
	_, get = answers(t, `  rules: [{name: r, limits: [{requests: 1, window: 1m, algorithm: FixedWindow}]}]`, func(o *ratelimit.Options) {
		o.RetryJitter = 20 * time.Second
	})
	get()
	seen := make(map[int]bool)
	for range 100 {
		_, header, _ := get()
		wait, err := strconv.Atoi(header.Get("Retry-After"))
		if err != nil || wait < 60 || wait > 80 || header.Get("RateLimit") != `"checkout/r";r=0;t=60` {
			t.Fatalf("Retry-After %q, RateLimit %q", header.Get("Retry-After"), header.Get("RateLimit"))
		}
		seen[wait] = true
	}
	if len(seen) < 5 {
		t.Errorf("100 clients were told only %d different times", len(seen))
	}
}

// The last admission of a bucket and the denial behind it tell the same: when the next token is there.
func TestTheFieldTellsOfOneThing(t *testing.T) {
	_, get := answers(t, `
  rules:
    - {name: r, limits: [{requests: 3, window: 1m}]}
`, nil)
	for _, want := range []string{
		`"checkout/r";r=2;t=20`, `"checkout/r";r=1;t=20`, `"checkout/r";r=0;t=20`, `"checkout/r";r=0;t=20`,
	} {
		_, header, _ := get()
		if got := header.Get("RateLimit"); got != want {
			t.Errorf("RateLimit %s, want %s", got, want)
		}
	}
}
