package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/grpclimit"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

// service answers and counts.
type service struct {
	pb.UnimplementedTestServiceServer
	calls atomic.Int64
}

func (s *service) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) {
	s.calls.Add(1)
	return new(pb.Empty), nil
}

func (s *service) StreamingInputCall(stream pb.TestService_StreamingInputCallServer) error {
	s.calls.Add(1)
	n := int32(0)
	for {
		_, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		case err != nil:
			return err
		}
		n++
	}
}

func limiterOf(t *testing.T, rules string) *ratelimittest.Limiter {
	t.Helper()
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: cart, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: cart}
` + strings.Trim(rules, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return ratelimittest.New(t, ratelimit.Options{Policies: source})
}

// serve starts a server and returns a client of it.
func serve(t *testing.T, server []grpc.ServerOption, client ...grpc.DialOption) (pb.TestServiceClient, *service) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, impl := grpc.NewServer(server...), new(service)
	pb.RegisterTestServiceServer(s, impl)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(),
		append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, client...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn), impl
}

func limited(l *ratelimit.Limiter, o grpclimit.Options) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(l, o)),
		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(l, o)),
	}
}

const empty = `
  rules:
    - name: empty
      match: [{methods: [POST], route: /grpc.testing.TestService/EmptyCall}]
      key: [{header: X-Api-Key}]
      whenKeyMissing: Deny
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
`

func as(t *testing.T, key string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key)
}

// retried has a client retry what is told to be for a moment only, as meshes do by default.
var retried = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`)

// What is over the limit is no outage: it has a status of its own, says when to come back, and is not retried (B67).
func TestStatuses(t *testing.T) {
	limiter := limiterOf(t, empty+"      onStoreFailure: FailClosed\n")
	var attempts atomic.Int64
	options := append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, m any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			attempts.Add(1)
			return next(ctx, m)
		})}, limited(limiter.Limiter, grpclimit.Options{})...)
	client, impl := serve(t, options, retried)
	call := func(key string) (*status.Status, metadata.MD, int64) {
		t.Helper()
		before := attempts.Load()
		ctx := t.Context()
		if key != "" {
			ctx = as(t, key)
		}
		var trailer metadata.MD
		_, err := client.EmptyCall(ctx, new(pb.Empty), grpc.Trailer(&trailer))
		return status.Convert(err), trailer, attempts.Load() - before
	}
	for range 2 {
		if s, trailer, _ := call("alice"); s.Code() != codes.OK || len(trailer["grpc-retry-pushback-ms"]) > 0 {
			t.Errorf("within the limit: %v, trailer %v", s, trailer)
		}
	}
	limiter.Advance(20 * time.Second)
	s, trailer, tries := call("alice")
	if s.Code() != codes.ResourceExhausted || tries != 1 || impl.calls.Load() != 2 {
		t.Errorf("over the limit: %v after %d attempts, and the handler was called %d times", s, tries, impl.calls.Load())
	}
	if want := "rate limit cart/empty of 2 in 1m0s is exceeded, retry in 40s"; s.Message() != want {
		t.Errorf("message %q, want %q", s.Message(), want)
	}
	if got := trailer["grpc-retry-pushback-ms"]; len(got) != 1 || got[0] != "40000" {
		t.Errorf("pushback %v, want 40000", got)
	}
	var wait *errdetails.RetryInfo
	var quota *errdetails.QuotaFailure
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			wait = d
		case *errdetails.QuotaFailure:
			quota = d
		}
	}
	if wait.GetRetryDelay().AsDuration() != 40*time.Second {
		t.Errorf("RetryInfo %v, want 40 s", wait)
	}
	if v := quota.GetViolations(); len(v) != 1 || v[0].GetSubject() != "cart/empty" || v[0].GetQuotaValue() != 2 {
		t.Errorf("QuotaFailure %v, want one of cart/empty", quota)
	}
	if s, _, _ := call("bob"); s.Code() != codes.OK {
		t.Errorf("another key: %v", s)
	}
	if s, trailer, tries := call(""); s.Code() != codes.InvalidArgument || tries != 1 || trailer["grpc-retry-pushback-ms"][0] != "-1" {
		t.Errorf("without a key: %v, trailer %v, %d attempts", s, trailer, tries)
	}

	limiter.StoreDown()
	ctx, cancel := context.WithTimeout(as(t, "carol"), 200*time.Millisecond)
	defer cancel()
	before := attempts.Load()
	_, err := client.EmptyCall(ctx, new(pb.Empty))
	// The client waits for the second that it was told; its call ends before.
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Unavailable || attempts.Load()-before != 1 {
		t.Errorf("without a store: %v after %d attempts", err, attempts.Load()-before)
	}
	plain, _ := serve(t, limited(limiter.Limiter, grpclimit.Options{}))
	if _, err := plain.EmptyCall(as(t, "carol"), new(pb.Empty)); status.Code(err) != codes.Unavailable {
		t.Errorf("without a store: %v, want UNAVAILABLE", err)
	}
}

func TestWhatPoliciesRead(t *testing.T) {
	limiter := limiterOf(t, `
  evaluation: FirstMatch
  rules:
    - {name: host, match: [{headers: [{name: Host, value: cart.example}]}], limits: [{requests: 1, window: 1h}]}
    - {name: attribute, match: [{pathPrefix: /grpc.testing.TestService}], key: [{attribute: user}], whenKeyMissing: Skip, limits: [{requests: 1, window: 1h}]}
    - {name: client, key: [{clientIP: {}}], whenKeyMissing: Deny, limits: [{requests: 1, window: 1h}]}
`)
	o := grpclimit.Options{Attributes: func(ctx context.Context, method string) ratelimit.Attributes {
		if user := metadata.ValueFromIncomingContext(ctx, "x-user"); len(user) > 0 && strings.HasSuffix(method, "/EmptyCall") {
			return ratelimit.Attributes{"user": user[0]}
		}
		return nil
	}}
	client, _ := serve(t, limited(limiter.Limiter, o))
	host, _ := serve(t, limited(limiter.Limiter, o), grpc.WithAuthority("cart.example"))
	user := func(name string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "x-user", name)
	}
	for _, tc := range []struct {
		client pb.TestServiceClient
		ctx    context.Context
	}{{client, user("alice")}, {client, user("bob")}, {client, t.Context()}, {host, t.Context()}} {
		_, first := tc.client.EmptyCall(tc.ctx, new(pb.Empty))
		_, second := tc.client.EmptyCall(tc.ctx, new(pb.Empty))
		if first != nil || status.Code(second) != codes.ResourceExhausted {
			t.Errorf("calls of one identity: %v, %v, want the second one denied", first, second)
		}
	}
}

const streams = `
  rules:
    - name: input
      match: [{route: /grpc.testing.TestService/StreamingInputCall}]
      limits: [{requests: 3, window: 1m, algorithm: FixedWindow}]
`

// send opens a stream, sends messages and returns how many the server counted.
func send(t *testing.T, client pb.TestServiceClient, messages int) (int32, error) {
	t.Helper()
	stream, err := client.StreamingInputCall(t.Context())
	if err != nil {
		return 0, err
	}
	for range messages {
		if err := stream.Send(new(pb.StreamingInputCallRequest)); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
	}
	reply, err := stream.CloseAndRecv()
	return reply.GetAggregatedPayloadSize(), err
}

func TestStreams(t *testing.T) {
	client, impl := serve(t, limited(limiterOf(t, streams).Limiter, grpclimit.Options{}))
	for range 3 {
		if n, err := send(t, client, 10); n != 10 || err != nil {
			t.Errorf("a stream within the limit: %d messages, %v", n, err)
		}
	}
	if _, err := send(t, client, 1); status.Code(err) != codes.ResourceExhausted || impl.calls.Load() != 3 {
		t.Errorf("a stream over the limit: %v, handler called %d times", err, impl.calls.Load())
	}
}

func TestStreamsPerMessage(t *testing.T) {
	limiter := limiterOf(t, streams)
	client, _ := serve(t, limited(limiter.Limiter, grpclimit.Options{PerMessage: true}))
	for range 5 {
		if n, err := send(t, client, 0); n != 0 || err != nil {
			t.Errorf("a stream without messages: %d, %v", n, err)
		}
	}
	if n, err := send(t, client, 2); n != 2 || err != nil {
		t.Errorf("two messages: %d, %v", n, err)
	}
	if _, err := send(t, client, 2); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the fourth message: %v", err)
	}
	limiter.Advance(time.Minute)
	if n, err := send(t, client, 3); n != 3 || err != nil {
		t.Errorf("a minute later: %d, %v", n, err)
	}
}

// A client that waits gets no denial: its calls are sent when they are within the limit.
func TestClient(t *testing.T) {
	limiter := limiterOf(t, empty+strings.TrimPrefix(streams, "\n  rules:\n"))
	client, impl := serve(t, nil,
		grpc.WithChainUnaryInterceptor(grpclimit.UnaryClientInterceptor(limiter.Limiter, grpclimit.Options{})),
		grpc.WithChainStreamInterceptor(grpclimit.StreamClientInterceptor(limiter.Limiter, grpclimit.Options{})))
	for range 2 {
		if _, err := client.EmptyCall(as(t, "alice"), new(pb.Empty)); err != nil {
			t.Error(err)
		}
	}
	hasty, cancel := context.WithTimeout(as(t, "alice"), 30*time.Second)
	defer cancel()
	if _, err := client.EmptyCall(hasty, new(pb.Empty)); status.Code(err) != codes.DeadlineExceeded || hasty.Err() != nil {
		t.Errorf("a call with less time than the wait: %v, want DEADLINE_EXCEEDED at once", err)
	}
	if _, err := client.EmptyCall(t.Context(), new(pb.Empty)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a call without the key: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := client.EmptyCall(as(t, "alice"), new(pb.Empty))
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("a call over the limit returned: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	limiter.Advance(time.Minute)
	if err := <-done; err != nil || impl.calls.Load() != 3 {
		t.Errorf("a minute later: %v, and the server was called %d times", err, impl.calls.Load())
	}
	for range 3 {
		if n, err := send(t, client, 10); n != 10 || err != nil {
			t.Errorf("a stream: %d messages, %v", n, err)
		}
	}
	if d := limiter.Peek(t.Context(), ratelimit.Request{Route: "/grpc.testing.TestService/StreamingInputCall"}); d.Remaining != 0 {
		t.Errorf("%d streams remain, want 0", d.Remaining)
	}
}

func TestClientPerMessage(t *testing.T) {
	limiter := limiterOf(t, streams)
	client, _ := serve(t, nil,
		grpc.WithChainStreamInterceptor(grpclimit.StreamClientInterceptor(limiter.Limiter, grpclimit.Options{PerMessage: true})))
	done := make(chan error, 1)
	go func() {
		n, err := send(t, client, 5)
		if err == nil && n != 5 {
			t.Errorf("%d messages arrived, want 5", n)
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("five messages were sent at once: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	limiter.Advance(time.Minute)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
