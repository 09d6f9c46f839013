package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

const (
	// minWait is the shortest time between two attempts of one caller.
	minWait = time.Millisecond
	// maxJitter is by how much a wait is lengthened at most, so that not all who were denied come back at once.
	maxJitter = time.Second
)

// ErrNeverAdmitted is the cause of a WaitError when no wait would help: the limit is 0, the cost is above the limit, or
// the rule denies requests without its key.
var ErrNeverAdmitted = errors.New("no wait would make room for it")

// WaitError says why Wait gave up. It wraps ErrNeverAdmitted; context.DeadlineExceeded, if the wait would have gone on
// beyond the deadline or did; or context.Canceled.
type WaitError struct {
	// Decision is the last one that was made; the zero Decision if others were still in front.
	Decision Decision
	err      error
}

func (e *WaitError) Error() string {
	d := &e.Decision
	if d.Window > 0 {
		return fmt.Sprintf("ratelimit: limit %s/%s of %d in %v: %v", d.Policy, d.Rule, d.Limit, d.Window, e.err)
	}
	return fmt.Sprintf("ratelimit: %v", e.err)
}

func (e *WaitError) Unwrap() error { return e.err }

// Wait returns when the request is admitted, for calls to others that must stay under a limit. It sleeps for as long as
// the limit tells, and a little longer by chance, so that replicas do not come back together. Requests of this process
// that are counted alike are admitted in the order in which they came.
//
// If the wait would go on beyond the deadline of ctx, Wait returns at once. Every error is a *WaitError; nothing is
// charged then. When the store is away the rule's onStoreFailure decides: under FailClosed, Wait goes on waiting.
func (l *Limiter) Wait(ctx context.Context, r Request) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, &WaitError{err: err}
	}
	fingerprint := uint64(0)
	if l.lines.waiting.Load() > 0 {
		fingerprint = l.enforcer.Fingerprint(enforcer.Request(r))
		if w := l.lines.join(fingerprint, false); w != nil {
			return l.waitInLine(ctx, r, w, nil)
		}
	}
	began := l.sleeper.Elapsed()
	d := l.Decide(ctx, r)
	if d.Allowed {
		return d, nil
	}
	if fingerprint == 0 {
		fingerprint = l.enforcer.Fingerprint(enforcer.Request(r))
	}
	return l.waitInLine(ctx, r, l.lines.join(fingerprint, true), &denial{d, began})
}

// denial is a decision that denied, and when it began.
type denial struct {
	Decision
	began time.Duration
}

// waitInLine waits for the caller's turn, and after a denial for the limit. A caller who did not ask yet has none.
func (l *Limiter) waitInLine(ctx context.Context, r Request, w *waiter, last *denial) (Decision, error) {
	room := int64(-1)
	defer func() { l.lines.leave(w, room) }()
	for {
		var d Decision
		if last != nil {
			d = last.Decision
		}
		if err := l.sleepInLine(ctx, w, last); err != nil {
			return d, &WaitError{Decision: d, err: err}
		}
		began := l.sleeper.Elapsed()
		if d = l.Decide(ctx, r); d.Allowed {
			room = d.Remaining
			return d, nil
		}
		last = &denial{d, began}
	}
}

// sleepInLine sleeps until the caller should ask, again.
func (l *Limiter) sleepInLine(ctx context.Context, w *waiter, last *denial) error {
	if last == nil {
		if err := w.tooLong(ctx); err != nil {
			return err
		}
		return l.sleep(ctx, 0, forever, w.turn)
	}
	wait, err := l.waitAfter(ctx, &last.Decision)
	if err != nil {
		return err
	}
	if !l.lines.first(w) {
		return l.sleep(ctx, 0, forever, w.turn)
	}
	w.line.until.Store(time.Now().Add(wait).UnixNano())
	return l.sleep(ctx, last.began, wait, w.turn)
}

// waitAfter is how long to wait after a denial.
func (l *Limiter) waitAfter(ctx context.Context, d *Decision) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if d.RetryAfter <= 0 {
		return 0, ErrNeverAdmitted
	}
	wait := max(d.RetryAfter, minWait)
	jittered := wait + l.sleeper.Jitter(min(wait/8, maxJitter)+minWait)
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if left < wait {
			return 0, fmt.Errorf("waiting %v would exceed the deadline: %w", d.RetryAfter, context.DeadlineExceeded)
		}
		jittered = min(jittered, left)
	}
	return jittered, nil
}

// forever is the wait of those whose turn it is not.
const forever = time.Duration(1<<63 - 1)

// sleep ends with ctx, when the wait is over, or when the caller is woken.
func (l *Limiter) sleep(ctx context.Context, began, wait time.Duration, woken <-chan struct{}) error {
	var over <-chan struct{}
	if wait != forever {
		var stop func()
		over, stop = l.sleeper.After(began, wait)
		defer stop()
	}
	select {
	case <-woken:
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// sleeper is the time that passes while callers wait. Package ratelimittest has one of its own.
type sleeper interface {
	Elapsed() time.Duration
	// Jitter is what a wait is lengthened by.
	Jitter(most time.Duration) time.Duration
	// After closes over when a wait is over. It was told by a decision that began at a time of Elapsed.
	After(began, wait time.Duration) (over <-chan struct{}, stop func())
}

// process sleeps for real. The wait counts from now: the store told it after the decision began.
type process struct{}

func (process) Elapsed() time.Duration { return 0 }

func (process) Jitter(most time.Duration) time.Duration { return rand.N(most) }

func (process) After(_, wait time.Duration) (over <-chan struct{}, stop func()) {
	ch := make(chan struct{})
	t := time.AfterFunc(wait, func() { close(ch) })
	return ch, func() { t.Stop() }
}

// lines are the callers who wait, those that are counted alike one behind the other. Only the first of each asks: when he
// is admitted, he wakes as many as there is room for.
type lines struct {
	waiting atomic.Int64
	mu      sync.Mutex
	byPrint map[uint64]*line
}

// line is the callers with one fingerprint.
type line struct {
	fingerprint uint64
	until       atomic.Int64 // until when its first caller sleeps, in ns of Unix time
	waiters     []*waiter
}

type waiter struct {
	line *line
	turn chan struct{} // holds one
}

// join puts a caller at the end of a line. If there is none it makes one, or returns nil.
func (l *lines) join(fingerprint uint64, create bool) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.byPrint[fingerprint]
	if q == nil {
		if !create {
			return nil
		}
		if l.byPrint == nil {
			l.byPrint = make(map[uint64]*line)
		}
		q = &line{fingerprint: fingerprint}
		l.byPrint[fingerprint] = q
	}
	w := &waiter{line: q, turn: make(chan struct{}, 1)}
	q.waiters = append(q.waiters, w)
	l.waiting.Add(1)
	return w
}

func (l *lines) first(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.line.waiters[0] == w
}

// leave takes a caller out of its line and wakes the first ones of those behind: as many as there is room for, and always
// the first one. A caller who was not admitted knows of no room, and gives -1.
func (l *lines) leave(w *waiter, room int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.Add(-1)
	q := w.line
	wasFirst := q.waiters[0] == w
	for i := range q.waiters {
		if q.waiters[i] == w {
			q.waiters = append(q.waiters[:i], q.waiters[i+1:]...)
			break
		}
	}
	if len(q.waiters) == 0 {
		delete(l.byPrint, q.fingerprint)
		return
	}
	if !wasFirst && room < 0 {
		return
	}
	for _, next := range q.waiters[:min(int64(len(q.waiters)), max(1, room))] {
		select {
		case next.turn <- struct{}{}:
		default:
		}
	}
}

// tooLong says whether the line is known not to move before the caller's deadline.
func (w *waiter) tooLong(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if until := time.Unix(0, w.line.until.Load()); ok && until.After(deadline) {
		return fmt.Errorf("waiting behind others for %v would exceed the deadline: %w",
			time.Until(until).Round(time.Millisecond), context.DeadlineExceeded)
	}
	return nil
}
