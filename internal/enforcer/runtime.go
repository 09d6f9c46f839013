package enforcer

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

// Runtime is what an Enforcer takes from the process that it runs in: time, chance, and goroutines that wait. Scenarios
// have one on which a day passes in a moment and every run is the same.
type Runtime interface {
	// Now is the wall clock, which may be wrong and may jump.
	Now() time.Time
	// Elapsed is the time since some moment, by a clock that never goes back.
	Elapsed() time.Duration
	// Int64N draws from 0 to n-1.
	Int64N(n int64) int64
	// Go calls f in a goroutine of its own.
	Go(f func())
	// Yield lets goroutines go on that could.
	Yield()
	// AfterFunc calls f in a goroutine of its own once d has passed, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
	// WithTimeout returns a context that ends after d.
	WithTimeout(d time.Duration) (context.Context, context.CancelFunc)
	// Wait returns what came first: a value of ready, which it takes, the end of done, or the end of d, which may be
	// forever.
	Wait(ready, done <-chan struct{}, d time.Duration) Woken
}

// forever is longer than anybody waits.
const forever = time.Duration(math.MaxInt64)

// Woken is why a wait ended.
type Woken uint8

const (
	WokenReady Woken = iota
	WokenDone
	WokenLate
)

// Process is the Runtime of this process.
func Process() Runtime { return newProcess() }

type process struct {
	start  time.Time
	timers sync.Pool // of *time.Timer, stopped
}

func newProcess() *process {
	p := &process{start: time.Now()}
	p.timers.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return p
}

func (p *process) Now() time.Time         { return time.Now() }
func (p *process) Elapsed() time.Duration { return time.Since(p.start) }
func (p *process) Int64N(n int64) int64   { return rand.Int64N(n) }
func (p *process) Go(f func())            { go f() }
func (p *process) Yield()                 { runtime.Gosched() }

func (p *process) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}

func (p *process) WithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func (p *process) Wait(ready, done <-chan struct{}, d time.Duration) Woken {
	if d == forever {
		if done == nil {
			<-ready
			return WokenReady
		}
		select {
		case <-ready:
			return WokenReady
		case <-done:
			return WokenDone
		}
	}
	t := p.timers.Get().(*time.Timer) //nolint:errcheck // the pool holds nothing else
	t.Reset(d)
	woken := WokenLate
	select {
	case <-ready:
		woken = WokenReady
	case <-done:
		woken = WokenDone
	case <-t.C:
	}
	t.Stop()
	p.timers.Put(t)
	return woken
}
