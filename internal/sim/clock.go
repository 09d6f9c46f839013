package sim

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// clock is a virtual time, and whoever waits for it. One goroutine runs at a time, and time passes only when none can,
// so that a seed gives the same run on every machine.
type clock struct {
	now     int64 // µs since 1970
	random  *rand.Rand
	tasks   []func()
	sleeper []*sleeper
	events  events
	made    int
	baton   chan struct{}
	yields  bool
}

// sleeper is a goroutine that waits.
type sleeper struct {
	ready, done <-chan struct{}
	event       *event
	wake        chan enforcer.Woken
}

// event happens at a time; those of one time happen in the order in which they were made.
type event struct {
	at    int64
	order int
	do    func()
	place int // in the heap, -1 outside
}

func newClock(start int64, random *rand.Rand) *clock {
	return &clock{now: start, random: random, baton: make(chan struct{})}
}

// run lets f run, and everything that it starts, until all of it has ended or waits for time to pass.
func (c *clock) run(f func()) {
	c.tasks = append(c.tasks, f)
	c.settle()
}

func (c *clock) settle() {
	for {
		if len(c.tasks) > 0 {
			f := c.tasks[0]
			c.tasks = c.tasks[1:]
			go func() {
				f()
				c.baton <- struct{}{}
			}()
			<-c.baton
			continue
		}
		if !c.wakeOne() {
			return
		}
	}
}

// wakeOne lets a goroutine go on whose wait is over.
func (c *clock) wakeOne() bool {
	for i, s := range c.sleeper {
		select {
		case <-s.ready:
			c.wake(i, enforcer.WokenReady)
			return true
		default:
		}
		select {
		case <-s.done:
			c.wake(i, enforcer.WokenDone)
			return true
		default:
		}
	}
	return false
}

func (c *clock) wake(i int, why enforcer.Woken) {
	s := c.sleeper[i]
	c.sleeper = append(c.sleeper[:i], c.sleeper[i+1:]...)
	c.cancel(s.event)
	s.wake <- why
	<-c.baton
}

// pass lets time pass until a moment.
func (c *clock) pass(until int64) {
	c.settle()
	for len(c.events) > 0 && c.events[0].at <= until {
		next := heap.Pop(&c.events).(*event) //nolint:errcheck // the heap holds nothing else
		c.now = max(c.now, next.at)
		next.do()
		c.settle()
	}
	c.now = max(c.now, until)
}

// after lets do happen after a time. It must not wait.
func (c *clock) after(d time.Duration, do func()) *event {
	c.made++
	e := &event{at: c.now + max(0, d.Microseconds()), order: c.made, do: do}
	heap.Push(&c.events, e)
	return e
}

func (c *clock) cancel(e *event) bool {
	if e.place < 0 {
		return false
	}
	heap.Remove(&c.events, e.place)
	return true
}

// wait is called by the goroutine that runs.
func (c *clock) wait(ready, done <-chan struct{}, d time.Duration) enforcer.Woken {
	s := &sleeper{ready: ready, done: done, wake: make(chan enforcer.Woken)}
	s.event = c.after(d, func() {
		for i := range c.sleeper {
			if c.sleeper[i] == s {
				c.wake(i, enforcer.WokenLate)
				return
			}
		}
	})
	c.sleeper = append(c.sleeper, s)
	c.baton <- struct{}{}
	return <-s.wake
}

// sleep is called by the goroutine that runs. It returns the context's error if that ends first.
func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	if c.wait(nil, ctx.Done(), d) == enforcer.WokenDone {
		return context.Cause(ctx)
	}
	return nil
}

// The clock is every process's Runtime.
var _ enforcer.Runtime = (*clock)(nil)

func (c *clock) Now() time.Time         { return time.UnixMicro(c.now).UTC() }
func (c *clock) Elapsed() time.Duration { return time.Duration(c.now) * time.Microsecond }
func (c *clock) Int64N(n int64) int64   { return c.random.Int64N(n) }
func (c *clock) Go(f func())            { c.tasks = append(c.tasks, f) }

// Yield lets all go on that can, if the schedule says so.
func (c *clock) Yield() {
	if c.yields {
		c.wait(nil, nil, 0)
	}
}

func (c *clock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	e := c.after(d, func() { c.Go(f) })
	return func() bool { return c.cancel(e) }
}

func (c *clock) WithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	e := c.after(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		c.cancel(e)
		cancel(nil)
	}
}

func (c *clock) Wait(ready, done <-chan struct{}, d time.Duration) enforcer.Woken {
	return c.wait(ready, done, d)
}

// events is a heap.
type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h events) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *events) Push(x any) {
	e := x.(*event) //nolint:errcheck // the heap holds nothing else
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	e.place = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
