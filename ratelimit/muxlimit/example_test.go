package muxlimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gorilla/mux"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/muxlimit"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

// The application gets its limiter from main, as package ratelimit shows; a test makes one of the same policies.
func Example() {
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: exports
      match: [{methods: [POST], route: "/exports/{id}"}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1m}]
`)
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

	router := mux.NewRouter()
	router.Use(muxlimit.Middleware(limiter.Limiter))
	router.HandleFunc("/exports/{id:[0-9]+}", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}).Methods(http.MethodPost)

	for _, id := range []string{"7", "8", "9"} { // one route, and one budget
		r := httptest.NewRequest(http.MethodPost, "/exports/"+id, nil)
		r.Header.Set("X-Api-Key", "alice")
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 202 "checkout/exports";r=1;t=30
	// 202 "checkout/exports";r=0;t=30
	// 429 "checkout/exports";r=0;t=30
}
