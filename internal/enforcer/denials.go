package enforcer

import (
	"encoding/binary"
	"net/http"
	"sync/atomic"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

const (
	// denialSlots bounds what is remembered: 64 KiB, and about 150 bytes for each that is taken.
	denialSlots = 1 << 13
	// denialMargin (µs) is taken off, because two clocks do not run exactly alike.
	denialMargin = 1_000
	// maxDenial and shortDenial (µs) are how long a denial stands at most: what others give back meanwhile is not heard
	// of. The short one is for stores that give back by themselves, and for leases, of which replicas give back the rest.
	maxDenial   = 1_000_000
	shortDenial = 20_000
)

// denials remembers which counters cannot have room again yet, so that a flood is denied without the store. Until the
// wait that the store told is over, all that others do to a counter makes it longer, except what is given back: this
// process's own refunds are watched, and those of others are the reason for the bound.
//
// It is read by every decision, without a lock.
type denials struct {
	most  int64 // µs that one stands at most
	slots atomic.Pointer[[denialSlots]atomic.Pointer[denial]]
	// owing is set while refunds are under way, and credited is when the last of them were over: a denial of a batch
	// that was sent before may be older than they are, and is not kept.
	owing    atomic.Bool
	credited atomic.Int64
}

func newDenials() *denials {
	s := &denials{most: maxDenial}
	s.credited.Store(-1) // before the first moment
	return s
}

// denial does not change, but for its hits. A request is denied by it if it wants as much of the same counter, by the
// same numbers and under the same revision: one that wants more has to be told a longer wait, which only the store knows.
type denial struct {
	counter Counter
	tally   *tally       // of the counter's rule
	hits    atomic.Int64 // requests that it denied and that the tally was not told of yet, see throttled
	serial  uint64       // of the revision
	until   int64        // monotonic time in µs from which on it does not stand any more
	// retryAt and resetAt are what the store told, and remaining what it had left.
	retryAt, resetAt, remaining int64
}

// places are the two slots where a counter's denial may be.
func (c *Counter) places() (int, int) {
	h := binary.LittleEndian.Uint64(c.Identity[8:])
	for i := 0; i < len(c.ID) && i < 4; i++ {
		h = h*31 + uint64(c.ID[i])
	}
	first := int(h % denialSlots)
	return first, first ^ 1
}

func (n *denial) of(c *Counter, serial uint64) bool {
	return n.counter.Identity == c.Identity && n.serial == serial && n.counter.Limit == c.Limit && n.counter.ID == c.ID
}

// find returns the denial of a counter, which may be over.
func (s *denials) find(c *Counter, serial uint64) *denial {
	slots := s.slots.Load()
	if slots == nil {
		return nil
	}
	first, second := c.places()
	for _, i := range [...]int{first, second} {
		if n := slots[i].Load(); n != nil && n.of(c, serial) && c.Cost == n.counter.Cost {
			return n
		}
	}
	return nil
}

// learn takes over what a store said of an entry that was sent at that monotonic time in µs.
func (s *denials) learn(sentAt int64, origins []origin, e *Entry, a *Answer) {
	if a.Granted >= e.N || e.N == 0 || !s.current(sentAt) {
		return
	}
	for i := range e.Counters[:e.Enforced] {
		r := &a.Results[i]
		wait := min(r.RetryAfter-denialMargin, s.most)
		if origins[i].rule.ahead.lease > 0 {
			wait = min(wait, shortDenial)
		}
		if r.Allowed || !r.Satisfiable || wait <= 0 {
			continue
		}
		n := &denial{
			counter: e.Counters[i], tally: origins[i].rule.tally, serial: origins[i].rule.serial, until: sentAt + wait,
			retryAt: sentAt + r.RetryAfter, resetAt: sentAt + r.ResetAfter, remaining: r.Remaining,
		}
		slot := s.place(n, sentAt)
		slot.Swap(n).settle()
		if !s.current(sentAt) {
			slot.CompareAndSwap(n, nil)
		}
	}
}

// current says whether no refund of ours can have come after a batch that was sent at that time.
func (s *denials) current(sentAt int64) bool { return !s.owing.Load() && sentAt > s.credited.Load() }

// place finds the slot for a denial: its former one, a free one, one that is over, or any.
func (s *denials) place(n *denial, now int64) *atomic.Pointer[denial] {
	slots := s.slots.Load()
	if slots == nil {
		s.slots.CompareAndSwap(nil, new([denialSlots]atomic.Pointer[denial]))
		slots = s.slots.Load()
	}
	first, second := n.counter.places()
	for _, i := range [...]int{first, second} {
		if old := slots[i].Load(); old == nil || old.until <= now || old.of(&n.counter, n.serial) {
			return &slots[i]
		}
	}
	return &slots[first]
}

// forget drops the denials of counters.
func (s *denials) forget(counters []Counter) {
	slots := s.slots.Load()
	if slots == nil {
		return
	}
	for i := range counters {
		c := &counters[i]
		first, second := c.places()
		for _, k := range [...]int{first, second} {
			if n := slots[k].Load(); n != nil && n.counter.Identity == c.Identity && n.counter.ID == c.ID {
				slots[k].Swap(nil).settle()
			}
		}
	}
}

// settleAll has the tallies told of all hits.
func (s *denials) settleAll() {
	slots := s.slots.Load()
	if slots == nil {
		return
	}
	for i := range slots {
		slots[i].Load().settle()
	}
}

// settle tells the tally whom this denial denied. A request that is denied by it at this moment may be missed.
func (n *denial) settle() {
	if n == nil {
		return
	}
	if hits := n.hits.Swap(0); hits > 0 {
		n.tally.throttled.add(n.counter.Identity, hits)
	}
}

// owe forgets the denials of counters that are about to get something back.
func (s *denials) owe(refunds []Refund) {
	s.owing.Store(true)
	for i := range refunds {
		s.forget(refunds[i].Counters)
	}
}

// paid says that all refunds are over at that monotonic time.
func (s *denials) paid(now int64) {
	s.credited.Store(now)
	s.owing.Store(false)
}

// denied decides by what is remembered, and leaves the verdict in d. Of several denials the longest one is told.
func (d *decision) denied() bool {
	var longest *denial
	place, now := 0, int64(-1)
	for i := range d.want.counters[:d.want.enforced] {
		n := d.e.denials.find(&d.want.counters[i], d.want.origins[i].rule.serial)
		if n == nil {
			continue
		}
		if now < 0 {
			now = d.e.clock.monotonic()
		}
		if now < n.until && (longest == nil || n.retryAt > longest.retryAt) {
			longest, place = n, i
		}
	}
	if longest == nil {
		return false
	}
	o := d.want.origins[place]
	d.verdict.describe(&o, 0, &algorithm.Result{
		Satisfiable: true, Remaining: longest.remaining, RetryAfter: longest.retryAt - now, ResetAfter: max(0, longest.resetAt-now),
	}, 0)
	d.verdict.Status, d.verdict.Source = http.StatusTooManyRequests, SourceDenyCache
	if d.e.throttles != nil {
		longest.hits.Add(1)
	}
	d.count(o.rule, CacheDenied)
	return true
}
