// Package grpclimit limits the calls of a gRPC server, and has those of a gRPC client wait for a limit. It is a module of
// its own, so that only applications that use gRPC get it.
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, grpclimit.Options{})),
//		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter, grpclimit.Options{})),
//	)
//
// To policies a call is a POST to its full method: its route is /shop.v1.Cart/Add, which pathPrefix: /shop.v1.Cart
// matches too; headers are the metadata, and Host is the authority.
package grpclimit

import (
	"context"
	"net/http"
	"net/textproto"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weir-dev/weir/ratelimit"
)

// Options are those of interceptors. The zero value is usable.
type Options struct {
	// Attributes tells what the application knows of a call, by its context and its full method: its user, its price.
	// It takes the place of ratelimit.Options.Attributes, which reads requests of HTTP. Default: none.
	Attributes func(ctx context.Context, fullMethod string) ratelimit.Attributes

	// PerMessage counts each message of a stream that the client sends, and not the stream. Default: a stream is one
	// call, however many messages it has.
	PerMessage bool
}

// UnaryServerInterceptor limits calls. One that is denied does not reach its handler and gets a status:
//
//	over a limit             RESOURCE_EXHAUSTED, with RetryInfo and QuotaFailure
//	no store, FailClosed     UNAVAILABLE, with RetryInfo
//	without the rule's key   INVALID_ARGUMENT
//
// The trailer grpc-retry-pushback-ms has clients with a retry policy wait for as long as the limit tells, and not retry
// where no wait helps.
func UnaryServerInterceptor(l *ratelimit.Limiter, o Options) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		d := l.Decide(ctx, o.incoming(ctx, info.FullMethod))
		if !d.Allowed {
			if trailer := pushback(&d); trailer != nil {
				_ = grpc.SetTrailer(ctx, trailer) // it fails where the call is not of a server, and then nobody reads it
			}
			return nil, Error(&d)
		}
		return handler(ctx, message)
	}
}

// StreamServerInterceptor limits streams, or with Options.PerMessage the messages that clients send in them. What is
// denied is answered as by UnaryServerInterceptor; a message that is denied is the error of RecvMsg, and a handler that
// returns it, as handlers do, ends the stream with that status.
func StreamServerInterceptor(l *ratelimit.Limiter, o Options) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		request := o.incoming(stream.Context(), info.FullMethod)
		if o.PerMessage {
			return handler(server, &perMessage{stream, l, request})
		}
		d := l.Decide(stream.Context(), request)
		if !d.Allowed {
			stream.SetTrailer(pushback(&d))
			return Error(&d)
		}
		return handler(server, stream)
	}
}

// perMessage is a stream whose messages are counted as they come.
type perMessage struct {
	grpc.ServerStream
	limiter *ratelimit.Limiter
	request ratelimit.Request
}

// RecvMsg counts a message that has been received: the end of a stream is none.
func (s *perMessage) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	d := s.limiter.Decide(s.Context(), s.request)
	if !d.Allowed {
		s.SetTrailer(pushback(&d))
		return Error(&d)
	}
	return nil
}

// incoming is a call to a server as policies read it.
func (o *Options) incoming(ctx context.Context, fullMethod string) ratelimit.Request {
	md, _ := metadata.FromIncomingContext(ctx)
	r := o.request(ctx, fullMethod, md)
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		r.Remote = p.Addr.String()
	}
	return r
}

func (o *Options) request(ctx context.Context, fullMethod string, md metadata.MD) ratelimit.Request {
	r := ratelimit.Request{
		Method: http.MethodPost,
		Route:  fullMethod,
		Path:   fullMethod,
		Header: make(http.Header, len(md)),
	}
	for name, values := range md {
		if name == ":authority" {
			if len(values) > 0 {
				r.Host = values[0]
			}
			continue
		}
		r.Header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	if o.Attributes != nil {
		r.Attributes = o.Attributes(ctx, fullMethod)
	}
	return r
}
