package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
)

// wrongClock is a clock that is wrong and can be stepped, in an otherwise ordinary process.
type wrongClock struct {
	enforcer.Runtime
	ahead atomic.Int64 // ns
}

func newWrongClock(ahead string) (*wrongClock, error) {
	c := &wrongClock{Runtime: enforcer.Process()}
	return c, c.step(ahead)
}

// step moves the clock.
func (c *wrongClock) step(by string) error {
	if c == nil {
		return errors.New("this process has the machine's clock")
	}
	d, err := time.ParseDuration(by)
	if err != nil {
		return fmt.Errorf("stepping the clock: %w", err)
	}
	c.ahead.Add(int64(d))
	return nil
}

// Now is what the pod takes for the time.
func (c *wrongClock) Now() time.Time { return c.Runtime.Now().Add(time.Duration(c.ahead.Load())) }

// counters are those in Redis, with the clock for their limiter: ratelimit.New asks its counters whether they have one.
type counters struct{ clock *wrongClock }

// OpenStore opens what the limiter would open by itself.
func (counters) OpenStore(o ratelimit.Options) (enforcer.Store, error) {
	return redisstore.NewStore(redisstore.StoreOptions{
		Client: redisstore.NewClient(o.Redis), Table: o.Table, Namespace: o.Namespace,
	}), nil
}

// Runtime is what the limiter takes from its process.
func (c counters) Runtime() enforcer.Runtime { return c.clock }

// Serve hears whose counters they are.
func (counters) Serve(*enforcer.Enforcer) {}
