package enforcer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

const (
	// leaseSlots bounds the leases that are held: 64 KiB, and about 400 bytes for each.
	leaseSlots = 1 << 13
	// leaseLife (µs) is how long a lease stands at most, and leasePart what part of the shortest window.
	leaseLife = 1_000_000
	leasePart = 20
	// leaseMargin (µs) is taken off the end of a window, because two clocks do not run exactly alike.
	leaseMargin = 1_000
	// tidyEvery is the shortest time between two looks for leases that are over.
	tidyEvery = 20 * time.Millisecond
	// leaseClosed is added to what was used of a lease that nobody may use any more.
	leaseClosed = 1 << 40
)

// leases are requests that the store has charged and nobody has made yet, so that they can be admitted without it.
//
// A lease holds requests of one want: all of its counters were charged for each of them, all or nothing. It ends before
// the first of their windows does, and what is left goes back. So windows never hold more than their limit; a bucket
// may have earned again what is used late, which is no more than the leases hold, and no more than it earns while a
// lease stands.
//
// It is read by every decision whose rules have leases, without a lock.
type leases struct {
	clock   *clock
	runtime Runtime
	counts  *counts
	local   Local
	// replicas is how many share the limits, current the snapshot in force, and careful while nothing is to be leased.
	replicas func() int
	current  func() *snapshot
	careful  func() bool
	refund   func([]Refund)
	// oneIdentity is for stores that keep what belongs together by identity: others could not take all or nothing.
	oneIdentity bool

	slots atomic.Pointer[[leaseSlots]atomic.Pointer[lease]]

	mu   sync.Mutex
	live []*lease
	tidy bool // under way
}

// lease does not change but for what was used of it. One that holds nothing says when a caller came, so that the next
// one knows how often they come.
type lease struct {
	fingerprint uint64
	serial      uint64 // of the revision
	entry       Entry
	answer      Answer // in which the lease's requests come last
	first, size int64  // place of the first of them, and how many there are
	room        int64  // requests that the store would have admitted besides
	callers     int64  // who were answered with it
	sentAt      int64  // monotonic time in µs, and until when the lease stands
	until       int64
	taken       int64 // time of the store
	used        atomic.Int64

	// Memory of what most leases have one of.
	counters [1]Counter
	results  [1]algorithm.Result
}

func (l *lease) left() int64 { return max(0, l.size-l.used.Load()) }

// claim takes one of a lease's requests, and says which.
func (l *lease) claim() (place int64, ok bool) {
	n := l.used.Add(1) - 1
	return l.first + n, n < l.size
}

// close ends a lease and returns how many of its requests are left, once.
func (l *lease) close() int64 {
	return max(0, l.size-(l.used.Add(leaseClosed)-leaseClosed))
}

// find returns the lease of a want, which may be over.
func (s *leases) find(w *want, fingerprint uint64) *lease {
	slots := s.slots.Load()
	if slots == nil {
		return nil
	}
	for _, i := range leasePlaces(fingerprint) {
		if l := slots[i].Load(); l != nil && l.fingerprint == fingerprint && l.of(w) {
			return l
		}
	}
	return nil
}

func (l *lease) of(w *want) bool {
	return l.serial == w.origins[0].rule.serial && w.enforced == l.entry.Enforced &&
		slices.Equal(w.counters, l.entry.Counters) && slices.Equal(w.shadow, l.entry.Shadow)
}

func leasePlaces(fingerprint uint64) [2]uint64 {
	first := (fingerprint ^ fingerprint>>32) % leaseSlots
	return [2]uint64{first, first ^ 1}
}

// ask says how many requests more than its callers' a batch takes for a group. That is at most half of what this
// replica's part of the room was a moment ago, so that the end of a budget is not held by anybody; and half of what would
// come while the lease stands if callers went on to come as often, so that little is given back.
func (s *leases) ask(g *group, e *Entry) int64 {
	if g.lease == 0 || g.peek || s.careful() {
		return 0
	}
	slots := s.slots.Load()
	if slots == nil {
		return 0
	}
	now := s.clock.monotonic()
	for _, i := range leasePlaces(g.fingerprint) {
		l := slots[i].Load()
		if l == nil || l.fingerprint != g.fingerprint || now >= l.until || !l.is(g, e) {
			continue
		}
		if l.left() > 0 {
			return 0
		}
		return min(s.most(g.lease, l.room), l.expected(now)/2)
	}
	return 0
}

// expected is how many requests would come in the time that a lease stands.
func (l *lease) expected(now int64) int64 {
	return (l.callers + l.size) * (l.until - l.sentAt) / max(1, now-l.sentAt)
}

// most is how many requests a lease holds besides that of the caller who asks for it.
func (s *leases) most(tokens, room int64) int64 {
	return max(0, min(tokens, room/int64(2*s.replicas()))-1)
}

func (l *lease) is(g *group, e *Entry) bool {
	return l.serial == g.origins[0].rule.serial && e.Enforced == l.entry.Enforced &&
		slices.Equal(e.Counters, l.entry.Counters) && slices.Equal(e.Shadow, l.entry.Shadow)
}

// keep makes a lease of what a store granted beyond those who used it, and returns how much. What was known of the room
// may have been old: the rest goes back. So does what a lease holds that makes room for this one.
func (s *leases) keep(g *group, e *Entry, a *Answer, used, sentAt, taken int64, refunds []Refund) (int64, []Refund) {
	if g.lease == 0 || g.peek || e.Enforced == 0 || s.oneIdentity && !sameIdentity(e.Counters) {
		return 0, refunds
	}
	life, room := int64(leaseLife), int64(1<<62)
	for i := range e.Counters[:e.Enforced] {
		c, r := &e.Counters[i], &a.Results[i]
		life = min(life, c.Limit.Window/leasePart)
		if c.Limit.Algorithm != algorithm.TokenBucket {
			life = min(life, c.Limit.Window-r.At%c.Limit.Window-leaseMargin)
		}
		room = min(room, r.Remaining/c.Cost)
	}
	slot := s.place(g.fingerprint)
	if slot == nil {
		return 0, refunds
	}
	now := s.clock.monotonic()
	size := min(a.Granted-used, g.extra, s.most(g.lease, room+a.Granted-used))
	if size < 0 || now >= sentAt+life || s.careful() {
		size = 0
	}
	// Those who gathered while the last lease was fetched do not need it given back.
	if old := slot.Load(); size == 0 && old != nil && old.left() > 0 && now < old.until && old.is(g, e) {
		return 0, refunds
	}
	l := &lease{
		fingerprint: g.fingerprint, serial: g.origins[0].rule.serial,
		first: used, size: size, room: room + a.Granted - used - size,
		callers: used, sentAt: sentAt, until: sentAt + life, taken: taken,
	}
	l.entry = Entry{Counters: append(l.counters[:0], e.Counters...), Enforced: e.Enforced, Shadow: slices.Clone(e.Shadow)}
	l.answer = Answer{Granted: used + size, Shadow: slices.Clone(a.Shadow), Results: append(l.results[:0], a.Results...)}
	for i := range l.answer.Shadow {
		l.answer.Shadow[i] = min(l.answer.Shadow[i], l.answer.Granted)
	}
	if old := slot.Swap(l); old != nil {
		refunds = s.giveBack(old, refunds)
	}
	if size > 0 {
		s.counts.leased[LeaseTaken].Add(uint64(size))
		s.watch(l)
	}
	return size, refunds
}

func sameIdentity(counters []Counter) bool {
	for i := range counters {
		if counters[i].Identity != counters[0].Identity {
			return false
		}
	}
	return true
}

// place finds the slot for a lease: its former one, or one that holds nothing any more. Without one there is none.
func (s *leases) place(fingerprint uint64) (free *atomic.Pointer[lease]) {
	slots := s.slots.Load()
	if slots == nil {
		s.slots.CompareAndSwap(nil, new([leaseSlots]atomic.Pointer[lease]))
		slots = s.slots.Load()
	}
	for _, i := range leasePlaces(fingerprint) {
		l := slots[i].Load()
		if l != nil && l.fingerprint == fingerprint {
			return &slots[i]
		}
		if l == nil || l.left() == 0 { // also of those that are over, once they were given back
			free = &slots[i]
		}
	}
	return free
}

// giveBack closes a lease, and appends what is to be refunded of it.
func (s *leases) giveBack(l *lease, refunds []Refund) []Refund {
	left := l.close()
	if left == 0 {
		return refunds
	}
	s.forgetUse(l, left)
	s.counts.leased[LeaseReturned].Add(uint64(left))
	return appendRefunds(refunds, &l.entry, &l.answer, l.answer.Granted-left, l.taken)
}

// forgetUse has this replica know that requests were not made which it had charged to itself with the lease.
func (s *leases) forgetUse(l *lease, left int64) {
	now := s.clock.store(s.clock.monotonic())
	for i := range l.entry.Counters[:l.entry.Enforced] {
		c := &l.entry.Counters[i]
		s.local.Return(now, c, l.answer.Results[i].At, left*c.Cost, int64(s.replicas()))
	}
}

// watch has a lease end in time.
func (s *leases) watch(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = append(s.live, l)
	if !s.tidy {
		s.tidy = true
		s.runtime.AfterFunc(s.untilNext(), s.tidyUp)
	}
}

// untilNext is when the first of the leases is over. s.mu is held.
func (s *leases) untilNext() time.Duration {
	first := s.live[0].until
	for _, l := range s.live {
		first = min(first, l.until)
	}
	return max(tidyEvery, time.Duration(first-s.clock.monotonic())*time.Microsecond)
}

// tidyUp gives back what is left of leases that are over, or of another revision.
func (s *leases) tidyUp() {
	now, serial := s.clock.monotonic(), s.current().serial()
	var refunds []Refund
	s.mu.Lock()
	s.live = slices.DeleteFunc(s.live, func(l *lease) bool {
		if over := now >= l.until || l.serial != serial; !over {
			return l.left() == 0
		}
		refunds = s.giveBack(l, refunds)
		return true
	})
	s.tidy = len(s.live) > 0
	if s.tidy {
		s.runtime.AfterFunc(s.untilNext(), s.tidyUp)
	}
	s.mu.Unlock()
	if len(refunds) > 0 {
		s.refund(refunds)
	}
}

// drop ends the leases of which that holds. They are not given back: the store may have forgotten that it charged them.
func (s *leases) drop(holds func(*lease) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = slices.DeleteFunc(s.live, func(l *lease) bool {
		if !holds(l) {
			return false
		}
		if left := l.close(); left > 0 {
			s.forgetUse(l, left)
			s.counts.leased[LeaseDropped].Add(uint64(left))
		}
		return true
	})
}

// dropAll is for a store that may have lost charges.
func (s *leases) dropAll() { s.drop(func(*lease) bool { return true }) }

// forget is for counters that were reset.
func (s *leases) forget(counters []Counter) {
	s.drop(func(l *lease) bool {
		for i := range counters {
			c := &counters[i]
			if slices.ContainsFunc(l.entry.Counters, func(o Counter) bool { return o.Identity == c.Identity && o.ID == c.ID }) {
				return true
			}
		}
		return false
	})
}

// serial numbers snapshots; 0 is none.
func (s *snapshot) serial() uint64 {
	if s == nil || len(s.rules) == 0 {
		return 0
	}
	return s.rules[0].serial
}

// leased admits by a lease, if there is one, and leaves the verdict in d.
func (d *decision) leased() bool {
	s := d.e.leases
	if d.want.lease == 0 || d.want.enforced == 0 || s.slots.Load() == nil {
		return false
	}
	l := s.find(&d.want, d.want.charged())
	if l == nil || l.size == 0 {
		return false
	}
	now := d.e.clock.monotonic()
	if now >= l.until {
		return false
	}
	after := l.left()
	if after == 0 {
		return false
	}
	place := l.answer.Granted - after
	if !d.peek {
		var ok bool
		if place, ok = l.claim(); !ok {
			return false
		}
		after = l.answer.Granted - 1 - place
	}
	d.admit(&l.answer, place, after, LeaseAdmitted)
	age := microseconds(now - l.sentAt)
	d.verdict.ResetAfter, d.verdict.MoreAfter = max(0, d.verdict.ResetAfter-age), max(0, d.verdict.MoreAfter-age)
	return true
}
