package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Reservation is a Decision whose cost is settled once it is known: how many rows a query returned, how many tokens a
// model made. It is safe for concurrent use, and need not be settled: then the cost stays as it was estimated.
type Reservation struct {
	Decision
	charge *enforcer.Charge
}

// ErrSettled is returned by the second attempt to settle or refund a Reservation.
var ErrSettled = errors.New("ratelimit: the reservation is settled already")

// Reserve is Decide for a request whose cost is known only afterwards. What it charges is the estimate that the
// attributes of the request give, as far as rules have a cost.
func (l *Limiter) Reserve(ctx context.Context, r Request) *Reservation {
	d, charge := l.reserve(ctx, r)
	return &Reservation{Decision: d, charge: charge}
}

// Settle says what the request really cost. Every rule with a cost that charged the request charges the difference or
// gives it back, by the rules of its algorithms: what has left the window already is not given back, and more than the
// rule's max is not charged. A cost above what the limit has left is charged all the same, and later requests wait for
// it. Rules without a cost still count one request.
//
// It returns at once; the store hears of it within a tenth of a second. What a limiter gives back it gives back at most
// once: if the answer of the store is lost, it stays charged until it ages out. What was decided without the store is
// not given back.
//
// The error is ErrSettled, or says that the cost is negative.
func (r *Reservation) Settle(actualCost int64) error {
	if actualCost < 0 {
		return fmt.Errorf("ratelimit: settling a cost of %d, want 0 or more", actualCost)
	}
	if !r.charge.Settle(actualCost) {
		return ErrSettled
	}
	return nil
}

// Refund gives everything back, also what rules without a cost counted: for a request that was not carried out. It
// returns as Settle does.
func (r *Reservation) Refund() error {
	if !r.charge.Refund() {
		return ErrSettled
	}
	return nil
}

// ErrNoSuchRule is returned by Reset.
var ErrNoSuchRule = errors.New("ratelimit: no such rule is in force, or its key finds nothing in the request")

// Reset makes the limits of one rule full again for one identity: the one by which the rule counts the request. Other
// replicas may go on denying it for a second. What replicas that have not heard of it admit without the store is not
// changed by it.
func (l *Limiter) Reset(ctx context.Context, policy, rule string, r Request) error {
	found, err := l.enforcer.Reset(ctx, policy, rule, enforcer.Request(r))
	if err != nil {
		return fmt.Errorf("ratelimit: resetting %s/%s: %w", policy, rule, err)
	}
	if !found {
		return fmt.Errorf("%w: %s/%s", ErrNoSuchRule, policy, rule)
	}
	return nil
}

type reservationKey struct{}

// FromContext returns the Reservation of the request that a handler serves, if Options.Reserve has Middleware make one,
// else nil.
func FromContext(ctx context.Context) *Reservation {
	r, _ := ctx.Value(reservationKey{}).(*Reservation)
	return r
}
