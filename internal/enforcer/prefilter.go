package enforcer

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// filterSlots bounds the identities that prefilters remember: 64 KiB, and about 150 bytes for each.
const filterSlots = 1 << 13

// filters count what this replica asks the store for, so that it asks for no more than a multiple of its share. What
// is not remembered passes: the store decides about it.
type filters struct {
	slots atomic.Pointer[[filterSlots]atomic.Pointer[filter]]
}

// filter is what was asked for of one counter.
type filter struct {
	identity Identity
	id       string

	mu    sync.Mutex
	limit algorithm.Limit
	state algorithm.State
}

// of returns the filter of a counter, in the place of another one if there is no room.
func (s *filters) of(c *Counter) *filter {
	slots := s.slots.Load()
	if slots == nil {
		s.slots.CompareAndSwap(nil, new([filterSlots]atomic.Pointer[filter]))
		slots = s.slots.Load()
	}
	first, second := c.places()
	free := first
	for _, i := range [...]int{first, second} {
		f := slots[i].Load()
		if f == nil {
			free = i
		} else if f.identity == c.Identity && f.id == c.ID {
			return f
		}
	}
	f := &filter{identity: c.Identity, id: c.ID}
	slots[free].Store(f)
	return f
}

// filterLimit is a multiple of the share that one of n replicas has of a limit. Windows that slide are counted in fixed
// ones, which hold no less: a prefilter that lets pass the whole limit must not refuse what the store admits.
func filterLimit(c *Counter, multiple, n int64) algorithm.Limit {
	part := func(whole int64) int64 { return min((whole*multiple+n-1)/n, maxFiltered) }
	l := algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: max(part(c.Limit.Requests), c.Cost), Window: c.Limit.Window}
	if c.Limit.Algorithm == algorithm.TokenBucket {
		l = algorithm.Limit{
			Algorithm: algorithm.TokenBucket, Requests: part(c.Limit.Requests), Window: c.Limit.Window,
			Burst: max(part(c.Limit.Capacity()), c.Cost),
		}
	}
	return l
}

// maxFiltered is as high as limits are.
const maxFiltered = 1_000_000_000

// look says how a filter stands for a cost.
func (f *filter) look(l algorithm.Limit, now, cost int64) algorithm.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limit != l {
		if f.limit.Window > 0 {
			f.state = f.limit.Convert(f.state, l, now)
		}
		f.limit = l
	}
	if rebased, ok := l.Rebase(f.state, now); ok {
		f.state = rebased
	}
	return l.Look(f.state, now, cost)
}

func (f *filter) charge(now, cost int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = f.limit.Charge(f.state, now, cost)
}

// filtered denies what is above the multiple of this replica's share that a rule lets pass, and leaves the verdict in d.
// Callers who come at the same moment may pass together: the store decides about them.
func (d *decision) filtered() bool {
	now, n := int64(-1), int64(0)
	var longest algorithm.Result
	place := -1
	for i := range d.want.counters[:d.want.enforced] {
		c, multiple := &d.want.counters[i], d.want.origins[i].rule.ahead.multiple
		if multiple == 0 {
			continue
		}
		if now < 0 {
			now, n = d.e.clock.store(d.e.clock.monotonic()), int64(max(1, d.e.place().N))
		}
		r := d.e.filters.of(c).look(filterLimit(c, multiple, n), now, c.Cost)
		if !r.Allowed && (place < 0 || r.RetryAfter > longest.RetryAfter) {
			longest, place = r, i
		}
	}
	switch {
	case now < 0:
		return false
	case place >= 0:
		o := d.want.origins[place]
		d.verdict.describe(&o, 0, &longest, 0)
		d.verdict.Status, d.verdict.Source, d.verdict.Remaining = http.StatusTooManyRequests, SourcePrefilter, 0
		d.throttle(o.rule, d.want.counters[place].Identity)
		d.count(o.rule, PrefilterDenied)
		return true
	case d.peek:
		return false
	}
	for i := range d.want.counters[:d.want.enforced] {
		if d.want.origins[i].rule.ahead.multiple > 0 {
			d.e.filters.of(&d.want.counters[i]).charge(now, d.want.counters[i].Cost)
		}
	}
	return false
}
