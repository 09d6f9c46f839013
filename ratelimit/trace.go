package ratelimit

import (
	"context"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Tracer hears of decisions and of the requests to the store that they make. Its methods are called concurrently, on the
// way of the request: they must be quick.
type Tracer interface {
	// Decide hears that a decision begins. It returns the context under which it is made, the caller's or one made of it,
	// and what hears the decision; nil if that one is not traced.
	Decide(ctx context.Context) (context.Context, func(Decision))

	// Traces says whether the decision under a context, one that Decide returned, is traced.
	Traces(ctx context.Context) bool

	// Take hears that the store is asked, in one round trip, for decisions that are traced, and perhaps for others that
	// are not. There is one entry for all decisions that want the same of it. What Take returns hears the end: the reason
	// of the failure as in weir_store_failures_total, or nothing. A decision that could not wait may have ended before.
	Take(decisions []context.Context, entries int) (end func(reason string))
}

var _ enforcer.Tracer = Tracer(nil)

// decideTraced is Decide under a tracer.
func (l *Limiter) decideTraced(ctx context.Context, r Request) Decision {
	ctx, end := l.options.Tracer.Decide(ctx)
	d := l.decide(ctx, r)
	if end != nil {
		end(d)
	}
	return d
}

// reserveTraced is reserve under a tracer.
func (l *Limiter) reserveTraced(ctx context.Context, r Request) (Decision, *enforcer.Charge) {
	ctx, end := l.options.Tracer.Decide(ctx)
	d, charge := l.charge(ctx, r)
	if end != nil {
		end(d)
	}
	return d, charge
}
