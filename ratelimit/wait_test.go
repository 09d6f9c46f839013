package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

const partner = `
  rules:
    - name: partner
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
`

func alice() ratelimit.Request {
	return ratelimit.Request{Method: http.MethodGet, Header: http.Header{"X-Api-Key": {"alice"}}}
}

// In a minute two are admitted, whatever waits, and nobody asks more than once or twice for it.
func TestWaitStaysUnderTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limiterOf(t, partner)
		start := time.Now()
		var admitted []time.Duration
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 9 {
			all.Go(func() {
				if _, err := limiter.Wait(t.Context(), alice()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, time.Since(start.Truncate(time.Minute)))
			})
		}
		all.Wait()
		perWindow := make(map[time.Duration]int)
		for _, at := range admitted {
			perWindow[at/time.Minute]++
			if jitter := at % time.Minute; at >= time.Minute && jitter > 2*time.Second {
				t.Errorf("one was admitted %v into a window, want soon after its start", jitter)
			}
		}
		for window, n := range perWindow {
			if n > 2 {
				t.Errorf("%d were admitted in window %d, want 2", n, window)
			}
		}
		if len(perWindow) != 5 {
			t.Errorf("admitted in windows %v, want 9 in 5 of them", perWindow)
		}
	})
}

// Callers of one identity are admitted in the order in which they came, and others do not wait for them.
func TestWaitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limiterOf(t, partner)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 11 {
			all.Go(func() {
				if _, err := limiter.Wait(t.Context(), alice()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i/2) // two at once come in any order
			})
			synctest.Wait() // until he is admitted or waits
		}
		bob := alice()
		bob.Header = http.Header{"X-Api-Key": {"bob"}}
		began := time.Now()
		if _, err := limiter.Wait(t.Context(), bob); err != nil || time.Since(began) > 0 {
			t.Errorf("bob waited %v for alice: %v", time.Since(began), err)
		}
		all.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("admitted in the order %v", order)
		}
	})
}

func TestWaitGivesUp(t *testing.T) {
	const never = `
  rules:
    - {name: none, match: [{pathPrefix: /none}], limits: [{requests: 0, window: 1m}]}
    - {name: key, match: [{pathPrefix: /key}], key: [{header: X-Api-Key}], whenKeyMissing: Deny, limits: [{requests: 1, window: 1m}]}
    - {name: one, match: [{pathPrefix: /one}], limits: [{requests: 1, window: 1m, algorithm: FixedWindow}]}
`
	tests := map[string]struct {
		path   string
		within time.Duration
		cancel time.Duration
		cause  error
		after  time.Duration
		text   string
	}{
		"a limit of 0":                {path: "/none", cause: ratelimit.ErrNeverAdmitted, text: "ratelimit: limit checkout/none of 0 in 1m0s: no wait would make room for it"},
		"a request without its key":   {path: "/key", cause: ratelimit.ErrNeverAdmitted, text: "ratelimit: no wait would make room for it"},
		"a deadline before the wait":  {path: "/one", within: 5 * time.Second, cause: context.DeadlineExceeded, text: "ratelimit: limit checkout/one of 1 in 1m0s: waiting "},
		"a caller who stops waiting":  {path: "/one", cancel: 5 * time.Second, cause: context.Canceled, after: 5 * time.Second, text: "ratelimit: limit checkout/one of 1 in 1m0s: context canceled"},
		"a context that is over":      {path: "/one", cancel: -1, cause: context.Canceled, text: "ratelimit: context canceled"},
		"a deadline behind the limit": {path: "/one", within: 2 * time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := limiterOf(t, never)
				limiter.Decide(t.Context(), ratelimit.Request{Path: "/one"})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.within > 0 {
					ctx, cancel = context.WithTimeout(ctx, tc.within)
					defer cancel()
				}
				switch {
				case tc.cancel < 0:
					cancel()
				case tc.cancel > 0:
					time.AfterFunc(tc.cancel, cancel)
				}
				began := time.Now()
				_, err := limiter.Wait(ctx, ratelimit.Request{Path: tc.path})
				if tc.cause == nil {
					if err != nil {
						t.Error(err)
					}
					return
				}
				var failure *ratelimit.WaitError
				if !errors.Is(err, tc.cause) || !errors.As(err, &failure) || !strings.HasPrefix(err.Error(), tc.text) {
					t.Errorf("error %v, want %s", err, tc.text)
				}
				if took := time.Since(began); took != tc.after {
					t.Errorf("gave up after %v, want %v", took, tc.after)
				}
			})
		})
	}
}

// One who gives up at the head of the line leaves it to the next, and who comes when the line is known to be too long
// for him does not join it.
func TestWaitBehindOneWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limiterOf(t, partner)
		limiter.Decide(t.Context(), alice())
		limiter.Decide(t.Context(), alice())
		first, giveUp := context.WithCancel(t.Context())
		gone, admitted := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := limiter.Wait(first, alice())
			gone <- err
		}()
		synctest.Wait()
		go func() {
			_, err := limiter.Wait(t.Context(), alice())
			admitted <- err
		}()
		synctest.Wait()
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := limiter.Wait(hasty, alice()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
			t.Errorf("one with a second to wait got %v after %v, want to be told at once", err, time.Since(began))
		}
		giveUp()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-admitted; err != nil {
			t.Error(err)
		}
	})
}

// counting counts how often a store is asked.
type counting struct {
	http.RoundTripper
	n atomic.Int64
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

func TestRoundTripper(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: worker, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: worker}
  rules:
    - name: partner
      match: [{methods: [POST], pathPrefix: /v1, headers: [{name: Host, value: "` + strings.TrimPrefix(server.URL, "http://") + `"}]}]
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
`)
	if err != nil {
		t.Fatal(err)
	}
	limiter := ratelimittest.New(t, ratelimit.Options{Policies: source})
	sent := &counting{RoundTripper: http.DefaultTransport}
	client := &http.Client{Transport: limiter.RoundTripper(sent), Timeout: time.Minute - time.Second}
	send := func(path string, body io.Reader) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, body)
		if err != nil {
			return nil, err
		}
		return client.Do(r)
	}
	post := func(path string) error {
		r, err := send(path, strings.NewReader("order"))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != "order" {
			t.Errorf("the body came back as %q, %v", body, err)
		}
		return nil
	}
	for _, path := range []string{"/v1/orders", "/v2/orders", "/v1/orders", "/v2/orders"} {
		if err := post(path); err != nil {
			t.Error(err)
		}
	}
	body := &closing{Reader: strings.NewReader("order")}
	r, err := send("/v1/orders", body)
	if err == nil {
		_ = r.Body.Close()
	}
	var failure *ratelimit.WaitError
	if !errors.As(err, &failure) || failure.Decision.Rule != "partner" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that the wait is longer than the client's timeout", err)
	}
	if !body.closed {
		t.Error("the body of a request that was not sent stays open")
	}
	if n := sent.n.Load(); n != 4 {
		t.Errorf("%d requests were sent, want 4", n)
	}

	client.Timeout = 0
	done := make(chan error, 1)
	go func() { done <- post("/v1/orders") }()
	select {
	case err := <-done:
		t.Errorf("a request over the limit returned: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	limiter.Advance(time.Minute)
	if err := <-done; err != nil {
		t.Error(err)
	}
	client.CloseIdleConnections()
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}
