package otellimit_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/otellimit"
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
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
`

// world is a limiter whose spans are kept.
type world struct {
	*ratelimittest.Limiter
	spans  *tracetest.InMemoryExporter
	tracer trace.Tracer
}

func newWorld(t *testing.T, sampler sdktrace.Sampler, options ...otellimit.Option) *world {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler))
	source, err := file.Text(policies)
	if err != nil {
		t.Fatal(err)
	}
	tracer := otellimit.NewTracer(append(options, otellimit.WithTracerProvider(provider))...)
	return &world{
		Limiter: ratelimittest.New(t, ratelimit.Options{Policies: source, Tracer: tracer}),
		spans:   spans, tracer: provider.Tracer("application"),
	}
}

var request = ratelimit.Request{Method: "POST", Path: "/exports", Header: http.Header{"X-Api-Key": {"a-secret-key"}}, Remote: "203.0.113.7:1"}

// inSpan decides inside a span of the application.
func (w *world) inSpan(n int) (decisions []ratelimit.Decision) {
	ctx, span := w.tracer.Start(context.Background(), "POST /exports", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	for range n {
		decisions = append(decisions, w.Decide(ctx, request))
	}
	return decisions
}

// named are the spans of a name that have ended.
func (w *world) named(name string) tracetest.SpanStubs {
	return slices.DeleteFunc(w.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

func attributes(s tracetest.SpanStub) map[string]string {
	found := map[string]string{}
	for _, a := range s.Attributes {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

func TestDecisionsAreSpans(t *testing.T) {
	w := newWorld(t, sdktrace.AlwaysSample())
	w.inSpan(3)
	server := w.named("POST /exports")
	decisions := w.named("ratelimit decide")
	if len(server) != 1 || len(decisions) != 3 {
		t.Fatalf("%d spans of the application and %d of decisions, want 1 and 3", len(server), len(decisions))
	}
	for _, d := range decisions {
		if d.Parent.SpanID() != server[0].SpanContext.SpanID() || d.SpanContext.TraceID() != server[0].SpanContext.TraceID() {
			t.Errorf("a decision's parent is %v", d.Parent)
		}
		if d.SpanKind != trace.SpanKindInternal || d.Status.Code != codes.Unset || d.InstrumentationScope.Name != otellimit.ScopeName {
			t.Errorf("%v, status %v, scope %v", d.SpanKind, d.Status, d.InstrumentationScope)
		}
		for _, value := range attributes(d) {
			if strings.Contains(value, "secret") || strings.Contains(value, "203.0.113") {
				t.Errorf("the span holds %q", value)
			}
		}
	}
	rule := map[string]string{"weir.policy": "checkout", "weir.rule": "exports", "weir.limit": "2", "weir.window": "60"}
	want := func(more map[string]string) map[string]string {
		for key, value := range rule {
			more[key] = value
		}
		return more
	}
	for i, w := range []map[string]string{
		want(map[string]string{"weir.decision.allowed": "true", "weir.decision.source": "Store", "weir.remaining": "1"}),
		want(map[string]string{"weir.decision.allowed": "true", "weir.decision.source": "Store", "weir.remaining": "0"}),
		want(map[string]string{
			"weir.decision.allowed": "false", "weir.decision.source": "Store", "weir.remaining": "0", "weir.decision.retry_after": "60",
		}),
	} {
		if diff := cmp.Diff(w, attributes(decisions[i])); diff != "" {
			t.Errorf("decision %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestRequestsToTheStoreAreSpans(t *testing.T) {
	w := newWorld(t, sdktrace.AlwaysSample())
	w.inSpan(1)
	decision, take := w.named("ratelimit decide"), w.named("ratelimit take")
	if len(decision) != 1 || len(take) != 1 {
		t.Fatalf("%d decisions and %d takes, want 1 of each", len(decision), len(take))
	}
	if take[0].Parent.SpanID() != decision[0].SpanContext.SpanID() || take[0].SpanKind != trace.SpanKindClient ||
		attributes(take[0])["weir.entries"] != "1" || take[0].Status.Code != codes.Unset {
		t.Errorf("%+v", take[0])
	}

	w.spans.Reset()
	w.StoreDown()
	if d := w.inSpan(1)[0]; d.Source != ratelimit.SourceLocalShare {
		t.Fatalf("%+v, want the local share", d)
	}
	decision, take = w.named("ratelimit decide"), w.named("ratelimit take")
	if len(take) != 1 || take[0].Status.Code != codes.Error || attributes(take[0])["error.type"] == "" {
		t.Errorf("takes of a store that is away: %+v", take)
	}
	if len(decision) != 1 || attributes(decision[0])["weir.decision.cause"] == "" || decision[0].Status.Code != codes.Unset {
		t.Errorf("decision without the store: %+v", decision)
	}
}

// Decisions that ask together share a span, which is linked to all of them but its parent.
func TestOneTakeOfManyDecisions(t *testing.T) {
	w := newWorld(t, sdktrace.AlwaysSample())
	const callers = 200
	var group sync.WaitGroup
	for range callers {
		group.Go(func() { w.inSpan(1) })
	}
	group.Wait()
	w.inSpan(1) // whatever was under way is done
	seen := map[trace.SpanID]int{}
	takes := w.named("ratelimit take")
	for _, take := range takes {
		seen[take.Parent.SpanID()]++
		for _, link := range take.Links {
			seen[link.SpanContext.SpanID()]++
		}
	}
	for _, d := range w.named("ratelimit decide") {
		want := 0
		if source := attributes(d)["weir.decision.source"]; source == ratelimit.SourceStore {
			want = 1
		}
		if got := seen[d.SpanContext.SpanID()]; got != want {
			t.Errorf("a decision by %s is part of %d takes, want %d", attributes(d)["weir.decision.source"], got, want)
		}
	}
}

// Where nothing is recorded nothing is made, and nothing is allocated.
func TestWhatIsNotSampledCostsNothing(t *testing.T) {
	w := newWorld(t, sdktrace.NeverSample())
	w.inSpan(3)
	w.Decide(t.Context(), request) // in no span
	if spans := w.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("%d spans", len(spans))
	}
	recorded := newWorld(t, sdktrace.AlwaysSample())
	recorded.Decide(t.Context(), request) // in no span: a trace of its own would be of no use
	if spans := recorded.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("%d spans of a decision outside of all spans", len(spans))
	}

	source, err := file.Text(policies)
	if err != nil {
		t.Fatal(err)
	}
	plain := ratelimittest.New(t, ratelimit.Options{Policies: source})
	ctx, span := w.tracer.Start(t.Context(), "not sampled")
	defer span.End()
	measure := func(l *ratelimittest.Limiter) float64 {
		return testing.AllocsPerRun(1000, func() { l.Decide(ctx, request) })
	}
	if with, without := measure(w.Limiter), measure(plain); with > without+forgets {
		t.Errorf("%v allocations with a tracer, %v without", with, without)
	}
}

func TestWithCallerSpan(t *testing.T) {
	w := newWorld(t, sdktrace.AlwaysSample(), otellimit.WithCallerSpan())
	w.inSpan(1)
	if spans := w.named("ratelimit decide"); len(spans) != 0 {
		t.Errorf("%d spans of decisions", len(spans))
	}
	server, take := w.named("POST /exports"), w.named("ratelimit take")
	if len(server) != 1 || attributes(server[0])["weir.rule"] != "exports" || attributes(server[0])["weir.decision.allowed"] != "true" {
		t.Errorf("the application's span has %v", attributes(server[0]))
	}
	if len(take) != 1 || take[0].Parent.SpanID() != server[0].SpanContext.SpanID() {
		t.Errorf("takes %+v", take)
	}
}

// Reservations are decisions too.
func TestReservationsAreSpans(t *testing.T) {
	w := newWorld(t, sdktrace.AlwaysSample())
	ctx, span := w.tracer.Start(t.Context(), "POST /exports")
	if r := w.Reserve(ctx, request); !r.Allowed {
		t.Fatalf("%+v", r.Decision)
	}
	span.End()
	if spans := w.named("ratelimit decide"); len(spans) != 1 || spans[0].EndTime.Sub(spans[0].StartTime) > time.Minute {
		t.Errorf("spans %+v", spans)
	}
}
