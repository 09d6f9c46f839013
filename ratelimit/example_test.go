package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

const policies = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  exempt: [{pathPrefix: /healthz}]
  rules:
    - name: exports
      match: [{methods: [POST], route: "/exports/{id}"}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1h}]
`

// start returns a limiter that has read its policies, and a function that ends it.
func start() (*ratelimit.Limiter, func()) {
	source, err := file.Text(policies)
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop",
		Workload:  "checkout",
		Policies:  source,
		Counters:  ratelimit.Memory(),
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- limiter.Run(ctx) }()
	if err := limiter.WaitReady(ctx); err != nil {
		panic(err)
	}
	return limiter, func() {
		cancel()
		<-done
	}
}

func ExampleLimiter_Middleware() {
	limiter, stop := start()
	defer stop()

	mux := http.NewServeMux()
	mux.HandleFunc("POST /exports/{id}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	handler := limiter.Middleware(mux)

	for range 3 {
		r := httptest.NewRequest(http.MethodPost, "/exports/7", nil)
		r.Header.Set("X-Api-Key", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %s retry=%q\n", w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 202 "checkout/exports";q=2;w=3600 retry=""
	// 202 "checkout/exports";q=2;w=3600 retry=""
	// 429 "checkout/exports";q=2;w=3600 retry="1800"
}

func ExampleLimiter_Decide() {
	limiter, stop := start()
	defer stop()

	request := ratelimit.Request{
		Method: http.MethodPost,
		Route:  "/exports/{id}",
		Header: http.Header{"X-Api-Key": {"alice"}},
	}
	fmt.Println(limiter.Peek(context.Background(), request).Remaining)
	for range 3 {
		d := limiter.Decide(context.Background(), request)
		fmt.Println(d.Allowed, d.Policy, d.Rule, d.Remaining, d.Source)
	}
	// Output:
	// 2
	// true checkout exports 1 Store
	// true checkout exports 0 Store
	// false checkout exports 0 Store
}

// A worker that must stay under a partner's quota waits before each call.
func ExampleLimiter_Wait() {
	limiter, stop := start()
	defer stop()

	export := ratelimit.Request{
		Method: http.MethodPost, Route: "/exports/{id}", Header: http.Header{"X-Api-Key": {"alice"}},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 3 {
		_, err := limiter.Wait(ctx, export)
		var gaveUp *ratelimit.WaitError
		if errors.As(err, &gaveUp) { // at once: the wait would be longer than the 5 s
			fmt.Println("put it off for", gaveUp.Decision.RetryAfter.Round(time.Minute))
			return
		}
		fmt.Println("exported")
	}
	// Output:
	// exported
	// exported
	// put it off for 30m0s
}

// An HTTP client that waits by itself where it would be over a limit.
func ExampleLimiter_RoundTripper() {
	limiter, stop := start()
	defer stop()
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}))
	defer partner.Close()

	client := &http.Client{Transport: limiter.RoundTripper(nil), Timeout: 10 * time.Second}
	for range 3 {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, partner.URL+"/exports/7", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Header.Set("X-Api-Key", "alice")
		response, err := client.Do(r)
		if errors.Is(err, context.DeadlineExceeded) {
			fmt.Println("the wait is longer than the client's timeout")
			return
		} else if err != nil {
			fmt.Println(err)
			return
		}
		_ = response.Body.Close()
		fmt.Println(response.StatusCode)
	}
	// Output:
	// 202
	// 202
	// the wait is longer than the client's timeout
}

// What a query costs is known when it has run.
func ExampleReservation_Settle() {
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: search, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: search}
  rules:
    - name: rows
      key: [{attribute: user}]
      cost: {attribute: rows, max: 1000}
      limits: [{requests: 10000, window: 1h, algorithm: FixedWindow}]
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop", Workload: "search", Policies: source, Counters: ratelimit.Memory(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- limiter.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := limiter.WaitReady(ctx); err != nil {
		fmt.Println(err)
		return
	}

	query := ratelimit.Request{Attributes: ratelimit.Attributes{"user": "alice", "rows": "100"}} // an estimate
	for _, rows := range []int64{30, 450} {
		reservation := limiter.Reserve(ctx, query)
		if !reservation.Allowed {
			fmt.Println("over the limit")
			return
		}
		// The query runs, and returns so many rows.
		if err := reservation.Settle(rows); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(limiter.Peek(ctx, query).Remaining)
	// Output:
	// 9520
}
