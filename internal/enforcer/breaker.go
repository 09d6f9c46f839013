package enforcer

import (
	"sync"
	"sync/atomic"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

const (
	// strikesToOpen failed batches, each success taking one back, open the breaker: a dead store opens it within three
	// timeouts, one that fails now and then does not.
	strikesToOpen = 3
	// Probes are sent after probeMin (µs), then twice as long after each that fails, up to probeMax, each interval
	// drawn from its upper half.
	probeMin = 100_000
	probeMax = 5_000_000
)

// breaker stops asking a store that does not answer. Its verdicts are of batches, at their deadline, and never of
// callers: one who hangs up says nothing about the store.
type breaker struct {
	runtime Runtime
	open    atomic.Bool // read by every decision; written under mu

	mu       sync.Mutex
	strikes  int
	interval int64
	next     int64 // when the next probe may leave
	probing  bool
	opened   int64 // when it opened last
	wasOpen  int64 // for how long it was open before that
	// cause is what opened it.
	cause atomic.Pointer[string]
}

// success is a verdict. An open breaker is closed by a probe only: an answer that was under way when it opened tells
// nothing of now.
func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() && b.strikes > 0 {
		b.strikes--
	}
}

// failure is a verdict at the time now. It says whether the breaker opened.
func (b *breaker) failure(now int64, cause string) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() {
		return false
	}
	b.strikes++
	if b.strikes < strikesToOpen {
		return false
	}
	b.cause.Store(&cause)
	b.interval = probeMin
	b.next = now + b.jitter()
	b.opened = now
	b.open.Store(true)
	return true
}

// claimProbe says whether the caller is to send a probe. There is one at a time; whoever claims it must end it with
// probed.
func (b *breaker) claimProbe(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() || b.probing || now < b.next {
		return false
	}
	b.probing = true
	return true
}

// probed ends a probe with a verdict. A good one closes the breaker.
func (b *breaker) probed(now int64, ok bool, cause string) (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if ok {
		b.strikes = 0
		b.wasOpen += now - b.opened
		b.open.Store(false)
		return true
	}
	b.cause.Store(&cause)
	b.interval = min(2*b.interval, probeMax)
	b.next = now + b.jitter()
	return false
}

// openFor is how long it has been open in all.
func (b *breaker) openFor(now int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() {
		return b.wasOpen + max(0, now-b.opened)
	}
	return b.wasOpen
}

// why is what keeps the breaker open.
func (b *breaker) why() string {
	if cause := b.cause.Load(); cause != nil {
		return *cause
	}
	return ""
}

func (b *breaker) jitter() int64 { return b.interval/2 + b.runtime.Int64N(b.interval/2) }

// probeEntry is what a probe asks: a write to a counter of its own, which expires by itself.
func probeEntry() Entry {
	return Entry{
		Counters: []Counter{{
			Identity: probeIdentity,
			ID:       "probe",
			Limit:    algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 1_000_000, Window: 1_000_000},
			Cost:     1,
		}},
		Enforced: 1,
		N:        1,
	}
}
