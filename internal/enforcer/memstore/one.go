package memstore

import (
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// maxOne bounds the counters that takeOne takes at once.
const maxOne = 16

// takeOne answers an entry of one caller and enforced counters only, as most are, in one step for each counter: it
// takes from one after the other, and puts all back if one of them denies. It leaves others to TakeAt, and says so.
func (s *Store) takeOne(now int64, e *enforcer.Entry, a *enforcer.Answer) bool {
	if e.N != 1 || e.Enforced != len(e.Counters) || len(e.Counters) > maxOne {
		return false
	}
	for i := range e.Counters {
		// A log weighs more with each charge, and a counter without a cost cannot deny.
		if e.Counters[i].Limit.Algorithm == algorithm.SlidingWindowLog || e.Counters[i].Cost <= 0 {
			return false
		}
	}
	if len(e.Counters) == 1 {
		s.takeSingle(now, &e.Counters[0], a)
		return true
	}
	locked := s.lock(e.Counters)
	var previous *slot
	var slots [maxOne]*slot
	var before [maxOne]algorithm.State
	a.Granted, a.Err, a.Shadow, a.Results = 1, nil, a.Shadow[:0], a.Results[:0]
	for i := range e.Counters {
		c := &e.Counters[i]
		slot := follower(previous, c)
		if slot != nil {
			slot.settle(c, now)
		} else {
			slot = s.slot(c, now)
		}
		previous = slot
		slot.pinned = true
		slots[i], before[i] = slot, slot.state
		if a.Granted == 0 {
			continue
		}
		next, result := c.Limit.Take(slot.state, now, c.Cost)
		if !result.Allowed {
			a.Granted = 0
			continue
		}
		slot.state = next
		if result.Remaining < c.Cost {
			result = c.Limit.Look(next, now, c.Cost) // the next caller's wait
		}
		a.Results = append(a.Results, result)
	}
	if a.Granted == 0 {
		a.Results = a.Results[:0]
		for i := len(e.Counters) - 1; i >= 0; i-- {
			slots[i].state = before[i]
		}
		for i := range e.Counters {
			a.Results = append(a.Results, e.Counters[i].Limit.Look(before[i], now, e.Counters[i].Cost))
		}
	}
	for i := range e.Counters {
		slots[i].pinned = false
	}
	s.unlock(locked)
	return true
}

// takeSingle is takeOne for one counter.
func (s *Store) takeSingle(now int64, c *enforcer.Counter, a *enforcer.Answer) {
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	slot := s.slot(c, now)
	next, result := c.Limit.Take(slot.state, now, c.Cost)
	a.Granted, a.Err, a.Shadow = 0, nil, a.Shadow[:0]
	if result.Allowed {
		a.Granted, slot.state = 1, next
		if result.Remaining < c.Cost {
			result = c.Limit.Look(next, now, c.Cost) // the next caller's wait
		}
	}
	shard.mu.Unlock()
	a.Results = append(a.Results[:0], result)
}

// follower is the slot behind another one, if that is the counter's. The limits of a request mostly follow one another.
func follower(previous *slot, c *enforcer.Counter) *slot {
	if previous == nil || previous.next == nil {
		return nil
	}
	next := previous.next
	if next.name.id != c.ID || next.name.identity != c.Identity {
		return nil
	}
	return next
}
