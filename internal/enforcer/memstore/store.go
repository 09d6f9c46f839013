// Package memstore owns counters that live in the process: the store of an application that runs alone, and the local
// shares of a replica whose store is away.
package memstore

import (
	"context"
	"math"
	"math/bits"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// DefaultMaxKeys bounds the counters of a Store.
const DefaultMaxKeys = 100_000

// Options says how a Store counts. The zero value is usable.
type Options struct {
	// MaxKeys bounds the counters that are kept, DefaultMaxKeys if 0. A counter takes about 250 bytes. The entries of
	// a SlidingWindowLog, 16 bytes each, count as a counter for every eight.
	MaxKeys int
	// Clock tells the time in µs and must not go back. Nil means the time since the process started, which no change
	// of the wall clock moves, on top of the wall clock's time then.
	Clock func() int64
}

// Store is an [enforcer.Store] in memory. It is safe for concurrent use; counters are spread over shards, each with
// its own lock, and the shards of one take are locked together, so that it is all or nothing.
//
// It forgets nothing while it is less than half full, and then in this order: counters that are full again, then those that are soonest. A counter that
// denies is never forgotten. When all that could go for a new counter deny, the new one is not kept: it shares one
// counter with all others of its limit that found no room, so that a flood of identities finds less budget, never
// more.
//
// It is an [enforcer.Local], too: the shares of a replica, and what that replica used.
type Store struct {
	clock  func() int64
	shards [shards]shard
	telling
}

var _ enforcer.Store = (*Store)(nil)

// New returns an empty store.
func New(options Options) *Store {
	if options.MaxKeys <= 0 {
		options.MaxKeys = DefaultMaxKeys
	}
	if options.Clock == nil {
		start := time.Now()
		options.Clock = func() int64 { return start.UnixMicro() + time.Since(start).Microseconds() }
	}
	s := &Store{clock: options.Clock}
	for i := range s.shards {
		s.shards[i].init((options.MaxKeys + shards - 1) / shards)
	}
	return s
}

// Take answers the entries at the time of the store's own clock. It never fails.
func (s *Store) Take(_ context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	now := s.clock()
	for i := range entries {
		if !s.takeOne(now, &entries[i], &answers[i]) {
			s.TakeAt(now, &entries[i], &answers[i])
		}
	}
	return now, nil
}

// TakeAt answers one entry at the time now, in µs.
func (s *Store) TakeAt(now int64, e *enforcer.Entry, a *enforcer.Answer) {
	locked := s.lock(e.Counters)
	defer s.unlock(locked)

	var buffer [32]*slot
	slots := buffer[:0]
	for i := range e.Counters {
		slot := s.slot(&e.Counters[i], now)
		slot.pinned = true
		slots = append(slots, slot)
	}

	granted := e.N
	for i := range e.Counters[:e.Enforced] {
		granted = min(granted, slots[i].fits(&e.Counters[i], now))
	}
	charge(slots[:e.Enforced], e.Counters[:e.Enforced], now, granted)

	a.Granted, a.Err = granted, nil
	a.Shadow = a.Shadow[:0]
	start := e.Enforced
	for _, end := range e.Shadow {
		charged := granted
		for i := start; i < end; i++ {
			charged = min(charged, slots[i].fits(&e.Counters[i], now))
		}
		charge(slots[start:end], e.Counters[start:end], now, charged)
		a.Shadow = append(a.Shadow, charged)
		start = end
	}

	a.Results = a.Results[:0]
	for i := range e.Counters {
		c := &e.Counters[i]
		a.Results = append(a.Results, c.Limit.Look(slots[i].state, now, c.Cost))
		slots[i].pinned = false
	}
}

func charge(slots []*slot, counters []enforcer.Counter, now, callers int64) {
	if callers <= 0 {
		return
	}
	for i, slot := range slots {
		slot.charge(now, callers*counters[i].Cost)
	}
}

// Refund gives back what still weighs.
func (s *Store) Refund(_ context.Context, refunds []enforcer.Refund) error {
	now := s.clock()
	for i := range refunds {
		r := &refunds[i]
		locked := s.lock(r.Counters)
		for j := range r.Counters {
			c := &r.Counters[j]
			if slot := s.shards[shardOf(c)].find(c); slot != nil {
				slot.state = c.Limit.Refund(slot.state, now, r.Taken, r.N*c.Cost)
				slot.weigh()
			}
		}
		s.unlock(locked)
	}
	return nil
}

// Reset forgets counters.
func (s *Store) Reset(_ context.Context, counters []enforcer.Counter) error {
	locked := s.lock(counters)
	defer s.unlock(locked)
	now := s.clock()
	for i := range counters {
		shard := &s.shards[shardOf(&counters[i])]
		shard.forget(&counters[i])
		shard.reset(nameOf(&counters[i]), now)
	}
	return nil
}

// Len is the number of counters that are kept.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += len(s.shards[i].slots)
		s.shards[i].mu.Unlock()
	}
	return n
}

// Crowded counts the requests that shared a counter with others because there was no room for one of their own.
func (s *Store) Crowded() uint64 {
	var n uint64
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += s.shards[i].crowded
		s.shards[i].mu.Unlock()
	}
	return n
}

// lock locks the shards of counters in ascending order, and returns them as the bits of a mask.
func (s *Store) lock(counters []enforcer.Counter) (mask uint64) {
	for i := range counters {
		mask |= 1 << shardOf(&counters[i])
	}
	for m := mask; m != 0; m &= m - 1 {
		s.shards[bits.TrailingZeros64(m)].mu.Lock()
	}
	return mask
}

func (s *Store) unlock(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		s.shards[bits.TrailingZeros64(m)].mu.Unlock()
	}
}

// slot returns the counter's slot, which it creates. The counter's shard is locked.
func (s *Store) slot(c *enforcer.Counter, now int64) *slot {
	shard := &s.shards[shardOf(c)]
	found := shard.find(c)
	if found == nil {
		found = shard.add(c, now)
	}
	found.settle(c, now)
	return found
}

// fits is how many callers a counter has room for.
func (s *slot) fits(c *enforcer.Counter, now int64) int64 {
	if c.Cost <= 0 {
		return math.MaxInt64
	}
	return c.Limit.Look(s.state, now, 0).Remaining / c.Cost
}
