// Package ratelimittest gives applications a limiter for their tests: with the policies that they run with, counters of
// its own, and a clock that stands until the test moves it. So a test can use up a limit, see what the application
// answers, let the window pass, and take the store away.
package ratelimittest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

// Limiter is a ratelimit.Limiter on a clock of its own. It is safe for concurrent use.
type Limiter struct {
	*ratelimit.Limiter
	world *world
}

// Start is the time at which the clock of a Limiter stands at first. Windows of every length begin at it.
var Start = time.Unix(0, 0).UTC()

// startTimeout bounds, in real time, how long it takes to read policies that are in files.
const startTimeout = 10 * time.Second

// New returns a limiter whose policies are in force, and ends it with the test. The options are those of the application,
// with Policies from package ratelimit/file; Redis and Counters are not used. Without Namespace and Workload it is the
// first workload that the policies target. What is wrong with the policies fails the test.
func New(t testing.TB, o ratelimit.Options) *Limiter {
	t.Helper()
	limiter, shut, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shut(); err != nil {
			t.Error(err)
		}
	})
	return limiter
}

// Open is New where there is no testing.TB. The function that it returns ends the limiter.
func Open(o ratelimit.Options) (limiter *Limiter, shut func() error, err error) {
	w := newWorld()
	o.Redis, o.Counters = nil, w
	if o.Pod == "" {
		o.Pod = "test"
	}
	if o.Policies == nil {
		return nil, nil, errors.New("ratelimittest: Policies must be set, for example by file.Files")
	}
	if source, ok := o.Policies.(*file.Source); ok && o.Workload == "" {
		if targets := source.Workloads(); len(targets) > 0 {
			o.Namespace, o.Workload, _ = strings.Cut(targets[0], "/")
		}
	}
	l, err := ratelimit.New(o)
	if err != nil {
		return nil, nil, fmt.Errorf("ratelimittest: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	shut = func() error {
		cancel()
		return <-done
	}
	ready, stop := context.WithTimeout(ctx, startTimeout)
	defer stop()
	if err := l.WaitReady(ready); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("ratelimittest: %w", err), shut())
	}
	return &Limiter{Limiter: l, world: w}, shut, nil
}

// Now is the limiter's time.
func (l *Limiter) Now() time.Time { return l.world.Now() }

// Advance lets time pass: limits fill up again as they would. A negative duration panics.
func (l *Limiter) Advance(d time.Duration) {
	if d < 0 {
		panic("ratelimittest: time does not go back")
	}
	l.world.pass(d)
}

// StoreDown takes the store away: from now on each rule's onStoreFailure decides. What was admitted before weighs in
// the local share as it does in a pod.
func (l *Limiter) StoreDown() { l.world.down.Store(true) }

// StoreUp brings the store back, with what it held, and lets the limiter find out.
func (l *Limiter) StoreUp() {
	l.world.down.Store(false)
	l.world.enforcer.Probe()
	l.world.enforcer.Tell()
}

// world is the store and the clock of one limiter. As ratelimit.Counters it also is the limiter's time.
type world struct {
	runtime
	store    *memstore.Store
	enforcer *enforcer.Enforcer
	elapsed  atomic.Int64 // time.Duration since Start
	down     atomic.Bool

	mu     sync.Mutex
	timers map[*timer]bool
}

// timer ends when the clock has reached a time.
type timer struct {
	at   time.Duration // since Start
	over chan struct{}
}

// runtime is the process's own, for what waits.
type runtime = enforcer.Runtime

var (
	_ ratelimit.Counters = (*world)(nil)
	_ enforcer.Store     = (*world)(nil)
	_ enforcer.Pusher    = (*world)(nil)
	_ enforcer.Runtime   = (*world)(nil)
)

func newWorld() *world {
	w := &world{runtime: enforcer.Process(), timers: make(map[*timer]bool)}
	w.store = memstore.New(memstore.Options{Clock: func() int64 { return w.Now().UnixMicro() }})
	return w
}

// Now is the clock that the test moves.
func (w *world) Now() time.Time { return Start.Add(w.Elapsed()) }

// Elapsed is the same clock.
func (w *world) Elapsed() time.Duration { return time.Duration(w.elapsed.Load()) }

// pass moves the clock and ends the timers that are due.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Duration(w.elapsed.Add(int64(d)))
	for t := range w.timers {
		if t.at <= now {
			close(t.over)
			delete(w.timers, t)
		}
	}
}

// Jitter is called by ratelimit.Limiter.Wait, which in tests waits for exactly as long as it has to.
func (w *world) Jitter(time.Duration) time.Duration { return 0 }

// After is called by ratelimit.Limiter.Wait. What a decision told at a time is over when the clock has passed it, also
// when the clock was moved before anybody waited.
func (w *world) After(began, wait time.Duration) (over <-chan struct{}, stop func()) {
	t := &timer{at: began + wait, over: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.at <= w.Elapsed() {
		close(t.over)
		return t.over, func() {}
	}
	w.timers[t] = true
	return t.over, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.timers, t)
	}
}

// OpenStore is called by ratelimit.New.
func (w *world) OpenStore(ratelimit.Options) (enforcer.Store, error) { return w, nil }

// Runtime is called by ratelimit.New.
func (w *world) Runtime() enforcer.Runtime { return w }

// Serve is called by ratelimit.New.
func (w *world) Serve(e *enforcer.Enforcer) { w.enforcer = e }

var errDown = &enforcer.StoreError{Reason: enforcer.ReasonRefused, Err: errors.New("the test has the store down")}

// Take answers unless the store is down.
func (w *world) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	if w.down.Load() {
		return 0, errDown
	}
	return w.store.Take(ctx, entries, answers)
}

// Refund gives back unless the store is down.
func (w *world) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	if w.down.Load() {
		return errDown
	}
	return w.store.Refund(ctx, refunds)
}

// Push takes over what it is told unless the store is down.
func (w *world) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	if w.down.Load() {
		return 0, errDown
	}
	return w.store.Push(ctx, pushes, answers)
}

// Reset forgets unless the store is down.
func (w *world) Reset(ctx context.Context, counters []enforcer.Counter) error {
	if w.down.Load() {
		return errDown
	}
	return w.store.Reset(ctx, counters)
}
