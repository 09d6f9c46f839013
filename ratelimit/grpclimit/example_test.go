package grpclimit_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/grpclimit"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

// The application gets its limiter from main, as package ratelimit shows; a test makes one of the same policies.
func Example() {
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: health, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: health}
  rules:
    - name: checks
      match: [{route: /grpc.health.v1.Health/Check}]
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

	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter.Limiter, grpclimit.Options{})),
		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter.Limiter, grpclimit.Options{})),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "alice")
	for range 3 {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, new(grpc_health_v1.HealthCheckRequest))
		fmt.Printf("%v %q\n", status.Code(err), status.Convert(err).Message())
	}
	// Output:
	// OK ""
	// OK ""
	// ResourceExhausted "rate limit health/checks of 2 in 1m0s is exceeded, retry in 30s"
}
