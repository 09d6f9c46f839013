package memstore

import (
	"sync"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

const (
	// shards is how many locks a store has; a take's shards are the bits of a uint64.
	shards = 64
	// sweep is how many slots a new counter looks at for one that can go, beginning where the last one stopped. Two
	// would keep up with a steady flow of new counters; eight find the ones that are soonest full among them.
	sweep = 8
	// maxFree slots are kept to be used again: as many as the limits of a request, or so.
	maxFree = 16
	// logWeight is how many entries of a log count as one counter.
	logWeight = 8
)

// name is what makes a counter.
type name struct {
	identity enforcer.Identity
	id       string
}

func nameOf(c *enforcer.Counter) name { return name{c.Identity, c.ID} }

// slot is one counter.
type slot struct {
	// A take reads no more than what stands before weight, which is two lines of the processor's cache.
	name  name
	limit algorithm.Limit // the last it was used with
	state algorithm.State
	next  *slot // of the same identity, in the order in which they were made
	// pinned slots belong to the take that is going on, and are not forgotten.
	pinned   bool
	informed bool // the store has told what remains

	// weight is what it counts as against the bound.
	weight int
	shard  *shard // nil for one that is shared
	place  int    // among the shard's slots

	// A share was brought up to date with a version of the replica's place at settled. use is what else a replica
	// knows of a counter; nil in a store.
	version, settled int64
	use              *use
}

// shard is the counters whose identities end alike. Everything in it is guarded by mu.
type shard struct {
	mu     sync.Mutex
	index  index
	slots  []*slot
	hand   int // where the sweep goes on
	weight int
	bound  int
	free   []*slot // dropped, for those that are added next
	// overflow holds, for each limit, what the identities share that found no room. Policies bound its size.
	overflow map[name]*slot
	crowded  uint64
	// rounds holds what is kept beside counters that replicas push to.
	rounds map[name]*beside
}

func (s *shard) init(bound int) {
	s.bound = bound
}

// shardOf goes by the identity alone, so that all limits of one identity are behind one lock.
func shardOf(c *enforcer.Counter) uint8 { return c.Identity[len(c.Identity)-1] % shards }

func (s *shard) find(c *enforcer.Counter) *slot {
	slot := s.index.find(&c.Identity)
	for slot != nil && slot.name.id != c.ID {
		slot = slot.next
	}
	return slot
}

// add makes room and returns a new slot, or the shared one where there is no room.
func (s *shard) add(c *enforcer.Counter, now int64) *slot {
	s.makeRoom(now)
	if s.weight >= s.bound {
		s.crowded++
		return s.shared(c)
	}
	var added *slot
	if n := len(s.free); n > 0 {
		added, s.free = s.free[n-1], s.free[:n-1]
	} else {
		added = new(slot)
	}
	*added = slot{name: nameOf(c), weight: 1, shard: s}
	added.place = len(s.slots)
	s.slots = append(s.slots, added)
	s.link(added)
	s.weight++
	return added
}

func (s *shard) shared(c *enforcer.Counter) *slot {
	limit := name{id: c.ID}
	found, ok := s.overflow[limit]
	if !ok {
		if s.overflow == nil {
			s.overflow = make(map[name]*slot)
		}
		found = &slot{name: limit}
		s.overflow[limit] = found
	}
	return found
}

// makeRoom, once the shard is half full, forgets what is full again among the next few slots, and when the shard is full
// the one of them that is soonest full again and does not deny.
func (s *shard) makeRoom(now int64) {
	if s.weight < s.bound/2 {
		return // what comes back soon would have to be made anew
	}
	var soonest *slot
	var wait int64
	for range min(sweep, len(s.slots)) {
		if s.hand >= len(s.slots) {
			s.hand = 0
		}
		slot := s.slots[s.hand]
		if slot.pinned {
			s.hand++
			continue
		}
		result := slot.look(now)
		if result.ResetAfter == 0 {
			s.drop(s.hand) // another slot takes this place: look there next
			continue
		}
		if result.Allowed && (soonest == nil || result.ResetAfter < wait) {
			soonest, wait = slot, result.ResetAfter
		}
		s.hand++
	}
	if s.weight >= s.bound && soonest != nil {
		s.drop(soonest.place)
	}
}

func (s *shard) forget(c *enforcer.Counter) {
	if slot := s.find(c); slot != nil {
		s.drop(slot.place)
	}
}

// link puts a slot behind those of its identity, so that the limits of a request lie one behind the other.
func (s *shard) link(added *slot) {
	last := s.index.find(&added.name.identity)
	if last == nil {
		s.index.set(added)
		return
	}
	for last.next != nil {
		last = last.next
	}
	last.next = added
}

func (s *shard) unlink(dropped *slot) {
	first := s.index.find(&dropped.name.identity)
	switch {
	case first != dropped:
		for first.next != dropped {
			first = first.next
		}
		first.next = dropped.next
	case dropped.next == nil:
		s.index.remove(&dropped.name.identity)
	default:
		s.index.set(dropped.next)
	}
}

func (s *shard) drop(i int) {
	dropped, last := s.slots[i], len(s.slots)-1
	s.slots[i] = s.slots[last]
	s.slots[i].place = i
	s.slots[last] = nil
	s.slots = s.slots[:last]
	s.unlink(dropped)
	s.weight -= dropped.weight
	if len(s.free) < maxFree {
		*dropped = slot{} // a log is let go at once
		s.free = append(s.free, dropped)
	}
}

// look says how a slot stands for one more request, and when nothing of it weighs any more.
func (s *slot) look(now int64) (result algorithm.Result) {
	if s.limit.Window > 0 {
		result = s.limit.Look(s.state, now, 1)
	}
	if s.use != nil {
		result.ResetAfter = max(result.ResetAfter, s.use.limit.Look(s.use.used, now, 0).ResetAfter)
	}
	return result
}

// settle readies a slot for a counter whose numbers may have changed since.
func (s *slot) settle(c *enforcer.Counter, now int64) {
	if s.limit != c.Limit {
		if s.limit.Window > 0 {
			s.state = s.limit.Convert(s.state, c.Limit, now)
		}
		s.limit = c.Limit
	}
	if rebased, ok := s.limit.Rebase(s.state, now); ok {
		s.state = rebased
	}
}

func (s *slot) charge(now, cost int64) {
	if cost <= 0 {
		return
	}
	s.state = s.limit.Charge(s.state, now, cost)
	s.weigh()
}

// weigh counts a slot again after its state has changed.
func (s *slot) weigh() {
	if s.shard == nil {
		return
	}
	entries := len(s.state.Log)
	if s.use != nil {
		entries += s.use.entries()
	}
	weight := 1 + entries/logWeight
	s.shard.weight += weight - s.weight
	s.weight = weight
}
