package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// quietTime is how long a subscription may be silent before it is asked whether it lives, and how long it then has
	// to answer.
	quietTime = 10 * time.Second
	// Waits between attempts to subscribe double from minWait to maxWait; each is drawn from its upper half, so that
	// a thousand pods do not come back at once.
	minWait = 100 * time.Millisecond
	maxWait = 5 * time.Second
)

// subscription listens until its context ends, over any number of connections.
type subscription struct {
	open      func(context.Context) *redis.PubSub
	connected func() // the server confirmed: from here on nothing is missed
	message   func(*redis.Message)
}

// run returns the context's error, or the server's when it does not permit the subscription: waiting does not change
// that.
func (s subscription) run(ctx context.Context) error {
	wait := minWait
	for {
		err := s.listen(ctx, func() { wait = minWait })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if redis.HasErrorPrefix(err, "NOPERM") {
			return classify(err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		wait = min(2*wait, maxWait)
	}
}

// listen is one connection's life.
func (s subscription) listen(ctx context.Context, confirmed func()) error {
	pubsub := s.open(ctx)
	defer pubsub.Close()
	// A read on the socket does not end with the context.
	stop := context.AfterFunc(ctx, func() { _ = pubsub.Close() })
	defer stop()

	for asked := false; ; {
		received, err := pubsub.ReceiveTimeout(ctx, quietTime)
		switch received := received.(type) {
		case *redis.Subscription:
			confirmed()
			s.connected()
		case *redis.Message:
			s.message(received)
		}
		var network net.Error
		switch {
		case err == nil:
			asked = false
		case !asked && errors.As(err, &network) && network.Timeout():
			asked = true
			if err := pubsub.Ping(ctx); err != nil {
				return fmt.Errorf("asking a silent subscription: %w", err)
			}
		default:
			return fmt.Errorf("listening: %w", err)
		}
	}
}
