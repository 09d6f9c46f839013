package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

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
