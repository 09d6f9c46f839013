// Package otellimit makes OpenTelemetry spans of the decisions of a ratelimit.Limiter and of its requests to the store. It
// is a module of its own, so that only applications that use OpenTelemetry get it.
//
//	options.Tracer = otellimit.NewTracer()
//
// A decision is traced if it is made inside a span that is recorded, such as the one that otelhttp makes of a request.
// Outside of one, and where the sampler has left the trace out, nothing is made and nothing is allocated.
//
// Each traced decision is a span "ratelimit decide" of kind internal, a child of the caller's:
//
//	weir.decision.allowed      bool    whether the request may proceed
//	weir.decision.source       string  who decided: "Store", "DenyCache", "LocalShare", …, as in weir_decisions_total
//	weir.decision.cause        string  why not the store; absent if it decided
//	weir.decision.retry_after  double  seconds; absent if the request was admitted, or if no wait helps
//	weir.policy, weir.rule     string  the rule that decided; absent if none did
//	weir.limit                 int     requests of the limit that decided, absent if none did
//	weir.window                double  seconds of its window
//	weir.remaining             int     the cost that would still be admitted
//
// No attribute holds a key, an address of a client or anything else of a request. A denial is no error: the status of
// the span stays unset.
//
// A request to the store is made for many decisions at once, of many traces. It is a span "ratelimit take" of kind client,
// a child of the first of the traced decisions that it is made for, with links to the others:
//
//	weir.entries  int     how many different things the store was asked for
//	error.type    string  the reason of the failure as in weir_store_failures_total; the status is then Error
//
// It ends with the store's answer, which may be after the decisions that could not wait for it. What a limiter asks its
// store for beside decisions (polls, probes, refunds) is not traced.
package otellimit

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-dev/weir/ratelimit"
)

// ScopeName is the name of the instrumentation scope.
const ScopeName = "github.com/weir-dev/weir/ratelimit/otellimit"

// The attributes of spans.
const (
	AllowedKey    = attribute.Key("weir.decision.allowed")
	SourceKey     = attribute.Key("weir.decision.source")
	CauseKey      = attribute.Key("weir.decision.cause")
	RetryAfterKey = attribute.Key("weir.decision.retry_after")
	PolicyKey     = attribute.Key("weir.policy")
	RuleKey       = attribute.Key("weir.rule")
	LimitKey      = attribute.Key("weir.limit")
	WindowKey     = attribute.Key("weir.window")
	RemainingKey  = attribute.Key("weir.remaining")
	EntriesKey    = attribute.Key("weir.entries")
	errorTypeKey  = attribute.Key("error.type")
)

// Option changes a Tracer.
type Option func(*config)

type config struct {
	provider   trace.TracerProvider
	callerSpan bool
}

// WithTracerProvider sets the provider of the spans. Default: the global one, otel.GetTracerProvider().
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.provider = p } }

// WithCallerSpan puts the attributes of decisions on the caller's span instead of making a span of each, for those to
// whom a span for each request is too much. Where several decisions are made inside one span, it has the attributes of
// the last.
func WithCallerSpan() Option { return func(c *config) { c.callerSpan = true } }

// Tracer makes the spans. It is safe for concurrent use.
type Tracer struct {
	tracer     trace.Tracer
	callerSpan bool
}

var _ ratelimit.Tracer = (*Tracer)(nil)

// NewTracer returns a Tracer, for Options.Tracer.
func NewTracer(options ...Option) *Tracer {
	var c config
	for _, option := range options {
		option(&c)
	}
	if c.provider == nil {
		c.provider = otel.GetTracerProvider()
	}
	return &Tracer{tracer: c.provider.Tracer(ScopeName), callerSpan: c.callerSpan}
}

// Decide begins the span of a decision.
func (t *Tracer) Decide(ctx context.Context) (context.Context, func(ratelimit.Decision)) {
	if !t.Traces(ctx) {
		return ctx, nil
	}
	return t.decide(ctx)
}

func (t *Tracer) decide(ctx context.Context) (context.Context, func(ratelimit.Decision)) {
	if t.callerSpan {
		span := trace.SpanFromContext(ctx)
		return ctx, func(d ratelimit.Decision) { describe(span, &d) }
	}
	ctx, span := t.tracer.Start(ctx, "ratelimit decide")
	return ctx, func(d ratelimit.Decision) {
		describe(span, &d)
		span.End()
	}
}

// Traces says whether the decision under a context is traced.
func (t *Tracer) Traces(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// Take begins the span of a request to the store.
func (t *Tracer) Take(decisions []context.Context, entries int) func(reason string) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(EntriesKey.Int(entries))}
	for _, ctx := range decisions[1:] {
		options = append(options, trace.WithLinks(trace.LinkFromContext(ctx)))
	}
	_, span := t.tracer.Start(decisions[0], "ratelimit take", options...)
	return func(reason string) {
		if reason != "" {
			span.SetAttributes(errorTypeKey.String(reason))
			span.SetStatus(codes.Error, reason)
		}
		span.End()
	}
}

func describe(span trace.Span, d *ratelimit.Decision) {
	if !span.IsRecording() {
		return // the sampler left out the decision's own span
	}
	attributes := make([]attribute.KeyValue, 0, 9)
	attributes = append(attributes, AllowedKey.Bool(d.Allowed), SourceKey.String(d.Source))
	if d.Cause != "" {
		attributes = append(attributes, CauseKey.String(d.Cause))
	}
	if d.RetryAfter > 0 {
		attributes = append(attributes, RetryAfterKey.Float64(d.RetryAfter.Seconds()))
	}
	if d.Rule != "" {
		attributes = append(attributes, PolicyKey.String(d.Policy), RuleKey.String(d.Rule))
	}
	if d.Window > 0 {
		attributes = append(attributes,
			LimitKey.Int64(d.Limit), WindowKey.Float64(d.Window.Seconds()), RemainingKey.Int64(d.Remaining))
	}
	span.SetAttributes(attributes...)
}
