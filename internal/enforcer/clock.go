package enforcer

import (
	"sync/atomic"
	"time"
)

// clock tells two times in µs: the process's own, which only moves forward, and the store's, by which local windows
// run so that they end when the store's do.
type clock struct {
	runtime Runtime
	start   time.Duration
	// ahead is the store's time minus the process's.
	ahead atomic.Int64
}

func newClock(r Runtime) *clock {
	c := &clock{runtime: r, start: r.Elapsed()}
	c.ahead.Store(r.Now().UnixMicro()) // until the store says its own: Unix time
	return c
}

// monotonic is the time since the start.
func (c *clock) monotonic() int64 { return c.at(c.runtime.Elapsed()) }

// at is the monotonic time at an Elapsed of the runtime.
func (c *clock) at(elapsed time.Duration) int64 { return (elapsed - c.start).Microseconds() }

// store is the store's time at the monotonic time now.
func (c *clock) store(now int64) int64 { return now + c.ahead.Load() }

// learn takes the store's time from an answer that came at the monotonic time received.
func (c *clock) learn(store, received int64) { c.ahead.Store(store - received) }
