package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-dev/weir/ratelimit"
)

// UnaryClientInterceptor has calls of a client wait, as ratelimit.Limiter.Wait does, until they are within the limits of
// this application. One that cannot be in time is not sent: its status is DEADLINE_EXCEEDED at once, RESOURCE_EXHAUSTED
// if no wait helps, or CANCELED. The Host that policies read is the target of the connection as the application wrote it.
func UnaryClientInterceptor(l *ratelimit.Limiter, o Options) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if err := wait(ctx, l, o.outgoing(ctx, method, conn)); err != nil {
			return err
		}
		return invoke(ctx, method, request, reply, conn, options...)
	}
}

// StreamClientInterceptor has streams of a client wait before they are opened, or with Options.PerMessage each message
// before it is sent.
func StreamClientInterceptor(l *ratelimit.Limiter, o Options) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		request := o.outgoing(ctx, method, conn)
		if !o.PerMessage {
			if err := wait(ctx, l, request); err != nil {
				return nil, err
			}
		}
		stream, err := streamer(ctx, desc, conn, method, options...)
		if err != nil || !o.PerMessage {
			return stream, err
		}
		return &waiting{stream, l, request}, nil
	}
}

// waiting is a stream whose messages wait.
type waiting struct {
	grpc.ClientStream
	limiter *ratelimit.Limiter
	request ratelimit.Request
}

// SendMsg waits and sends. A message that is not sent leaves the stream open.
func (s *waiting) SendMsg(message any) error {
	if err := wait(s.Context(), s.limiter, s.request); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(message)
}

func wait(ctx context.Context, l *ratelimit.Limiter, r ratelimit.Request) error {
	d, err := l.Wait(ctx, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case d.Source == ratelimit.SourceKeyMissing:
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.ResourceExhausted, err.Error())
}

// outgoing is a call of a client as policies read it.
func (o *Options) outgoing(ctx context.Context, method string, conn *grpc.ClientConn) ratelimit.Request {
	md, _ := metadata.FromOutgoingContext(ctx)
	r := o.request(ctx, method, md)
	r.Host = conn.Target()
	return r
}
