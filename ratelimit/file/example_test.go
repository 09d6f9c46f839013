package file_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

// An application of one replica needs neither a cluster nor a store: policies come from files, and requests are counted
// in memory.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "policies")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "exports.yaml"), []byte(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: exports, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 24h}]
`), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	source, err := file.Files(filepath.Join(dir, "*.yaml"))
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Policies: source, Counters: ratelimit.Memory(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- limiter.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	if err := limiter.WaitReady(ctx); err != nil {
		fmt.Println(err)
		return
	}

	request := ratelimit.Request{Method: "POST", Route: "/exports", Header: http.Header{"X-Api-Key": {"alice"}}}
	for range 3 {
		decision := limiter.Decide(ctx, request)
		fmt.Println(decision.Status, decision.Remaining)
	}
	// Output:
	// 200 1
	// 200 0
	// 429 0
}
