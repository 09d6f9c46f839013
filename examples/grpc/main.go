// Command grpc is a gRPC server behind a limiter. It serves gRPC's own health service, so that any client can call it:
//
//	grpc -policies examples/grpc/policy.yaml
//	grpcurl -plaintext -H 'x-api-key: alice' 127.0.0.1:9090 grpc.health.v1.Health/Check
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/grpclimit"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9090", "address to serve on")
	policies := flag.String("policies", "policy.yaml", "files with policies")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *policies, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "grpc: %v\n", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It prints the address that it serves on.
func run(ctx context.Context, listen, policies string, out io.Writer) error {
	source, err := file.Files(policies)
	if err != nil {
		return err
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop", Workload: "greeter", Policies: source, Counters: ratelimit.Memory(),
	})
	if err != nil {
		return err
	}
	limiting, stopLimiting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLimiting()
	limited := make(chan error, 1)
	go func() { limited <- limiter.Run(limiting) }()
	if err := limiter.WaitReady(ctx); err != nil {
		return err
	}

	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, grpclimit.Options{})),
		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter, grpclimit.Options{})),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, server.GracefulStop)
	fmt.Fprintf(out, "listening on %s\n", listener.Addr())
	err = server.Serve(listener)
	stopLimiting()
	return errors.Join(err, <-limited)
}
