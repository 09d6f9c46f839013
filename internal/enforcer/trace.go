package enforcer

import "context"

// Tracer hears of the requests to the store that decisions make, if they are traced. Its methods are called concurrently.
type Tracer interface {
	// Traces says whether the decision under a context is traced.
	Traces(ctx context.Context) bool
	// Take hears that the store is asked for these decisions and perhaps others, in so many entries. What it returns hears
	// the end: why the request failed, as Reason has it, or nothing.
	Take(decisions []context.Context, entries int) (end func(reason string))
}

// takeTrace is one traced request; the zero value is one that nobody traces.
type takeTrace func(reason string)

func (t takeTrace) end(err error) {
	switch {
	case t == nil:
	case err != nil:
		t(string(reasonOf(err)))
	default:
		t("")
	}
}

func (b *batcher) trace(decisions []context.Context, entries int) takeTrace {
	if len(decisions) == 0 {
		return nil
	}
	return b.tracer.Take(decisions, entries)
}

// traceAlone is trace of one decision that asks by itself.
func (b *batcher) traceAlone(ctx context.Context) takeTrace {
	if b.tracer == nil || !b.tracer.Traces(ctx) {
		return nil
	}
	return b.tracer.Take([]context.Context{ctx}, 1)
}
