package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", "policy.yaml", out) }()
	line, err := bufio.NewReader(printed).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(strings.TrimSpace(strings.TrimPrefix(line, "listening on ")),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := grpc_health_v1.NewHealthClient(conn)
	check := func(ctx context.Context) codes.Code {
		_, err := client.Check(ctx, new(grpc_health_v1.HealthCheckRequest))
		return status.Code(err)
	}
	got := make(map[codes.Code]int)
	for range 8 {
		got[check(metadata.AppendToOutgoingContext(ctx, "x-api-key", "alice"))]++
	}
	if got[codes.OK] != 5 || got[codes.ResourceExhausted] != 3 {
		t.Errorf("%v, want 5 within the limit and 3 over it", got)
	}
	if code := check(ctx); code != codes.InvalidArgument {
		t.Errorf("without a key: %v", code)
	}
	for range 10 {
		watching, stop := context.WithCancel(ctx)
		stream, err := client.Watch(watching, new(grpc_health_v1.HealthCheckRequest))
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Errorf("a stream that is exempt: %v", err)
		}
		stop()
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
