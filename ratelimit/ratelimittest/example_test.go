package ratelimittest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

const policies = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
      onStoreFailure: FailClosed
`

// checkout is the application, which gets its limiter from main or from a test.
func checkout(limiter *ratelimit.Limiter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /exports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	return limiter.Middleware(mux)
}

// post sends one request and returns its status.
func post(app http.Handler) int {
	r := httptest.NewRequest(http.MethodPost, "/exports", nil)
	r.Header.Set("X-Api-Key", "alice")
	w := httptest.NewRecorder()
	app.ServeHTTP(w, r)
	return w.Code
}

// A test of what an application answers. With a testing.TB at hand it begins with
//
//	limiter := ratelimittest.New(t, ratelimit.Options{Policies: source})
func Example() {
	source, err := file.Text(policies) // or file.Files("../deploy/policies/*.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, shut, err := ratelimittest.Open(ratelimit.Options{Policies: source})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = shut() }()
	app := checkout(limiter.Limiter)

	fmt.Println("first two:", post(app), post(app))
	fmt.Println("over the limit:", post(app))
	limiter.Advance(time.Minute)
	fmt.Println("a minute later:", post(app))
	limiter.StoreDown()
	fmt.Println("without a store:", post(app))
	limiter.StoreUp()
	fmt.Println("with it again:", post(app))
	// Output:
	// first two: 202 202
	// over the limit: 429
	// a minute later: 202
	// without a store: 503
	// with it again: 202
}
