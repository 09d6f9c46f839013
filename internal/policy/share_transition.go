package policy

import (
	"math"
	"math/bits"
	"time"
)

const (
	// Propagation is how long it takes at most until every replica goes by what was written to the table: two polls,
	// and the time that the controller needs.
	Propagation = 12 * time.Second
	// SnapshotPropagation is the same for replicas that read a mounted file only: the kubelet's sync and its cache.
	SnapshotPropagation = 120 * time.Second

	// maxPlaces bounds the history of a Places. Beyond it the two oldest places become one that is no larger than
	// either.
	maxPlaces = 32

	// never is a time that does not come.
	never = math.MaxInt64
)

// Places is where a replica stands among those that share the limits, and where it stood before: what share of a limit
// is in force follows from both. A smaller share applies at once; a larger one applies when what the others admitted
// before no longer counts. It is immutable. All times are µs of the process's own clock, which never goes back.
type Places struct {
	// started is when the process began.
	started int64
	// counted is from when on all others go by a count that has this replica in it, never while that is not known.
	counted int64
	// idle is how long no replica had run when this one began: nobody's use weighs of limits with such a window.
	idle int64
	// version grows with every change of the place.
	version int64
	// past is the places, oldest first, each until the next one began; never empty.
	past []place
}

type place struct {
	Replica
	from int64
}

// NewPlaces returns the places of a process that began at started. idle is for how long (µs) no replica had run then, 0
// when it is not known. Until a place is known the replica is the only one.
func NewPlaces(started, idle int64) *Places {
	return &Places{started: started, counted: never, idle: idle, past: []place{{Replica{N: 1}, started}}}
}

// Current is the replica's place now.
func (p *Places) Current() Replica { return p.past[len(p.past)-1].Replica }

// Version grows with every change of the place, from 0.
func (p *Places) Version() int64 { return p.version }

// Counted returns the places of a replica that all others know of from the time at on; the earliest such time stands.
func (p *Places) Counted(at int64) *Places {
	if at >= p.counted {
		return p
	}
	next := *p
	next.counted = at
	return &next
}

// Move returns the places after a change at the time now.
func (p *Places) Move(r Replica, now int64) *Places {
	r.N = max(r.N, 1)
	if p.version > 0 && p.Current() == r {
		return p
	}
	next := *p
	next.version++
	next.past = nil
	if p.version > 0 { // before the first change nothing was known, and nothing had been shared
		next.past = append(next.past, p.past...)
	}
	next.past = append(next.past, place{r, now})
	if len(next.past) > maxPlaces {
		next.past = joinOldest(next.past)
	}
	return &next
}

// joinOldest makes one of the two oldest places, whose share of anything is no larger than that of either.
func joinOldest(past []place) []place {
	if past[0].N > past[1].N {
		past[1].Replica = past[0].Replica
	}
	past[1].Exact = false
	past[1].from = past[0].from
	return past[1:]
}

// ShareInForce is what one replica may admit of a limit at one moment.
type ShareInForce struct {
	// Limit is the share. Its ID is the limit's; algorithm and window may differ.
	Limit RowLimit
	// Requests is how many of the Limit's requests a window may have: less than all while the replica is new. A bucket
	// has all of them, and starts empty instead, or none while nobody knows of this replica.
	Requests int64
	// Version tells shares of different places apart.
	Version int64
	// Steps are the shares that a bucket went through lately, oldest first and the Limit last; nil when no change
	// matters any more. From is in µs of the store's clock.
	Steps []ShareStep
	// EmptyAt is when (µs of the store's clock) a bucket that was never used was empty, 0 when it is full.
	EmptyAt int64
}

// ShareStep is a share that was in force from a time on.
type ShareStep struct {
	From  int64
	Limit RowLimit
}

// Share returns what is in force of a limit at the time now, which is store on the store's clock, for the identities
// whose hash is key; maxCost and rounding as in ShareOf.
//
// A part that was added counts from the next window (FixedWindow), after a whole window (SlidingWindowCounter,
// SlidingWindowLog), and is missing from a bucket at first. So is the whole share of a new process. Under NeverExceed
// that begins when all others go by a count that has it in it; under NeverZero the share grows evenly from nothing at
// the start of the process to all of it one window later.
func (p *Places) Share(l RowLimit, maxCost int64, rounding Rounding, key uint64, now, store int64) ShareInForce {
	current := p.past[len(p.past)-1]
	s := ShareInForce{Limit: ShareOf(l, maxCost, rounding, current.Replica, key), Version: p.version}
	if s.Limit.Algorithm == TokenBucket {
		p.bucket(&s, l, maxCost, rounding, key, now, store)
		return s
	}
	since := now - l.Window
	if l.Algorithm == FixedWindow {
		since = now - store%l.Window
	}
	if smallest := p.smallest(l.Requests, key, since); smallest != len(p.past)-1 {
		s.Limit = ShareOf(l, maxCost, rounding, p.past[smallest].Replica, key)
		if s.Limit.Algorithm == TokenBucket { // too small for windows until then
			s.Requests = s.Limit.Requests
			p.empty(&s, l, rounding, now, store)
			return s
		}
	}
	s.Requests = s.Limit.Requests
	switch {
	case p.idle >= l.Window:
	case rounding == RoundingNeverExceed && p.counted > since:
		s.Requests = 0
	case rounding != RoundingNeverExceed && now-p.started < l.Window:
		s.Requests = mulDiv(s.Requests, max(0, now-p.started), l.Window)
	}
	return s
}

// smallest is the index of the place with the smallest part of a number since a time, of equal ones the latest.
func (p *Places) smallest(number int64, key uint64, since int64) int {
	i := len(p.past) - 1
	best := i
	least := p.past[i].part(number, int64(p.past[i].N), key)
	for ; i > 0 && p.past[i].from > since; i-- {
		before := &p.past[i-1]
		if part := before.part(number, int64(before.N), key); part < least {
			best, least = i-1, part
		}
	}
	return best
}

// bucket fills in what a bucket went through.
func (p *Places) bucket(s *ShareInForce, l RowLimit, maxCost int64, rounding Rounding, key uint64, now, store int64) {
	s.Requests = s.Limit.Requests
	if rounding == RoundingNeverExceed && p.idle < l.Window && p.counted > now {
		s.Requests = 0
		return
	}
	p.empty(s, l, rounding, now, store)
	if l.Algorithm != TokenBucket {
		return
	}
	first := len(p.past) - 1
	for ; first > 0 && p.past[first].from > now-fill(s.Limit); first-- {
	}
	if first == len(p.past)-1 {
		return
	}
	for _, past := range p.past[first:] {
		s.Steps = append(s.Steps, ShareStep{
			From: past.from + store - now, Limit: ShareOf(l, maxCost, rounding, past.Replica, key),
		})
	}
}

// empty says since when the bucket of a new process earns, as long as that tells.
func (p *Places) empty(s *ShareInForce, l RowLimit, rounding Rounding, now, store int64) {
	began := p.started
	if rounding == RoundingNeverExceed {
		began = p.counted
	}
	if p.idle < l.Window && now-began < fill(s.Limit) {
		s.EmptyAt = max(1, began+store-now)
	}
}

// fill is how long an empty bucket takes to be full.
func fill(l RowLimit) int64 {
	if l.Requests <= 0 {
		return never / 2
	}
	capacity := l.Burst
	if capacity == 0 {
		capacity = l.Requests
	}
	return mulDiv(capacity, l.Window, l.Requests)
}

// mulDiv returns ⌊a·b/m⌋, at most never/2.
func mulDiv(a, b, m int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high >= uint64(m) {
		return never / 2
	}
	q, _ := bits.Div64(high, low, uint64(m))
	return int64(min(q, never/2))
}
