package scenario

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// stuckAfter is how long, in real time, anything may go on without waiting for the virtual clock. What takes longer
// waits for something that the clock does not know, and would wait for ever.
const stuckAfter = time.Minute

// forever is longer than a scenario lasts.
const forever = 100 * 365 * 24 * time.Hour

var errStuck = errors.New("something waits for what the virtual clock does not know of")

// world is a virtual clock and all that waits for it. One goroutine runs at a time, and time passes only when none can:
// so a run is the same every time, whatever the machine does.
//
// Its methods belong to the goroutine that drives it, except for those that a running goroutine calls through a
// runtime, while the driver waits.
type world struct {
	now    int64 // µs since 1970
	random *rand.Rand

	runnable []func()
	waiters  []*waiter
	timers   timerHeap
	created  int // timers, to order those of one instant
	yield    chan struct{}
	limit    *time.Timer // of stuckAfter
	stuck    error
}

// waiter is a goroutine that waits.
type waiter struct {
	ready, done <-chan struct{}
	timer       *timer // of the end of its patience
	wake        chan enforcer.Woken
}

// timer is due at a time.
type timer struct {
	at    int64
	order int
	fire  func()
	index int // in the heap, -1 when it is not there
}

func newWorld(start int64) *world {
	return &world{
		now:    start,
		random: rand.New(rand.NewPCG(1, 2)),
		yield:  make(chan struct{}),
		limit:  time.NewTimer(stuckAfter),
	}
}

// do runs f and whatever it starts, until all of it is done or waits for time to pass.
func (w *world) do(f func()) {
	w.runnable = append(w.runnable, f)
	w.settle()
}

// settle runs everything that can run without time passing.
func (w *world) settle() {
	for w.stuck == nil {
		if len(w.runnable) > 0 {
			f := w.runnable[0]
			w.runnable = w.runnable[1:]
			go func() {
				f()
				w.yield <- struct{}{}
			}()
			w.waitForYield()
			continue
		}
		i, woken := w.awake()
		if i < 0 {
			return
		}
		w.resume(i, woken)
	}
}

// awake finds a waiter that need not wait any longer.
func (w *world) awake() (int, enforcer.Woken) {
	for i, waiting := range w.waiters {
		select {
		case <-waiting.ready:
			return i, enforcer.WokenReady
		default:
		}
		select {
		case <-waiting.done:
			return i, enforcer.WokenDone
		default:
		}
	}
	return -1, 0
}

func (w *world) resume(i int, woken enforcer.Woken) {
	waiting := w.waiters[i]
	w.waiters = append(w.waiters[:i], w.waiters[i+1:]...)
	w.timers.stop(waiting.timer)
	waiting.wake <- woken
	w.waitForYield()
}

// waitForYield waits until the one goroutine that runs has ended or waits.
func (w *world) waitForYield() {
	w.limit.Reset(stuckAfter)
	select {
	case <-w.yield:
	case <-w.limit.C:
		w.stuck = errStuck
	}
}

// advance lets time pass until a moment, and whatever is due before it happen.
func (w *world) advance(until int64) {
	w.settle()
	for w.stuck == nil {
		next := w.timers.next()
		if next == nil || next.at > until {
			break
		}
		heap.Pop(&w.timers)
		w.now = max(w.now, next.at)
		next.fire()
		w.settle()
	}
	w.now = max(w.now, until)
}

// drain lets all that waits come to its end.
func (w *world) drain() {
	for next := w.timers.next(); next != nil && w.stuck == nil; next = w.timers.next() {
		w.advance(next.at)
	}
}

// after makes a timer. fire is called by the driver and must not wait.
func (w *world) after(d time.Duration, fire func()) *timer {
	w.created++
	t := &timer{at: w.now + max(0, d.Microseconds()), order: w.created, fire: fire}
	heap.Push(&w.timers, t)
	return t
}

// wait is called by the goroutine that runs, which lets others run meanwhile.
func (w *world) wait(ready, done <-chan struct{}, d time.Duration) enforcer.Woken {
	waiting := &waiter{ready: ready, done: done, wake: make(chan enforcer.Woken), timer: &timer{index: -1}}
	w.waiters = append(w.waiters, waiting)
	if d >= forever {
		w.yield <- struct{}{}
		return <-waiting.wake
	}
	waiting.timer = w.after(d, func() {
		for i := range w.waiters {
			if w.waiters[i] == waiting {
				w.resume(i, enforcer.WokenLate)
				return
			}
		}
	})
	w.yield <- struct{}{}
	return <-waiting.wake
}

// sleep lets time pass for the goroutine that runs, and returns the context's error if that ends before.
func (w *world) sleep(ctx context.Context, d time.Duration) error {
	if w.wait(nil, ctx.Done(), d) == enforcer.WokenDone {
		return context.Cause(ctx)
	}
	return nil
}

// timerHeap orders timers by time.
type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	if t, ok := x.(*timer); ok {
		t.index = len(*h)
		*h = append(*h, t)
	}
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	t.index = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

// next is the timer that is due first, nil without any.
func (h *timerHeap) next() *timer {
	if len(*h) == 0 {
		return nil
	}
	return (*h)[0]
}

// stop says whether the timer was still pending.
func (h *timerHeap) stop(t *timer) bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(h, t.index)
	return true
}

// runtime is the world as one process sees it.
type runtime struct {
	world *world
	// offset of the process's wall clock in µs.
	offset int64
}

var _ enforcer.Runtime = (*runtime)(nil)

// Now is the wall clock.
func (r *runtime) Now() time.Time { return time.UnixMicro(r.world.now + r.offset).UTC() }

func (r *runtime) Elapsed() time.Duration { return time.Duration(r.world.now) * time.Microsecond }
func (r *runtime) Int64N(n int64) int64   { return r.world.random.Int64N(n) }

// Go lets f run once the goroutine that calls it waits or ends.
func (r *runtime) Go(f func()) { r.world.runnable = append(r.world.runnable, f) }

// Yield does nothing: no processor is busy.
func (r *runtime) Yield() {}

// AfterFunc lets f run at its time.
func (r *runtime) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	t := r.world.after(d, func() { r.Go(f) })
	return func() bool { return r.world.timers.stop(t) }
}

// WithTimeout returns a context that ends in virtual time.
func (r *runtime) WithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	t := r.world.after(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		r.world.timers.stop(t)
		cancel(nil)
	}
}

// Wait lets others run until there is a reason to go on.
func (r *runtime) Wait(ready, done <-chan struct{}, d time.Duration) enforcer.Woken {
	return r.world.wait(ready, done, d)
}
