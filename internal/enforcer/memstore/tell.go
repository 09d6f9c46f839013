package memstore

import (
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// askAgain (µs) after a counter joined a round it is told once more, if nothing was used meanwhile: a replica that
// noticed the same loss later, or joined a round from before it, has begun another one. By then all have noticed, and
// share and store still have to admit both.
const askAgain = 8_000_000

// Suspect has every counter told anew, and every charge until Trust.
func (s *Store) Suspect() {
	s.epoch.Add(1)
	s.joining.Store(true)
	s.Follow()
}

// Follow has every charge told to the rounds that are joined, until Trust.
func (s *Store) Follow() {
	s.following.Store(true)
	s.dirty.Store(true)
}

// Trust ends that.
func (s *Store) Trust() {
	s.joining.Store(false)
	s.following.Store(false)
}

// Dirty is true while there may be something untold.
func (s *Store) Dirty() bool { return s.dirty.Load() }

// Owes is true while the store was not told of something that was used of a counter without it.
func (s *Store) Owes(c *enforcer.Counter) bool {
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	slot := shard.find(c)
	if slot == nil || slot.use == nil || slot.use.tell == nil {
		return false
	}
	t := slot.use.tell
	return weighs(t.untold) || t.pending != nil && weighs(t.pending.Untold)
}

// Untold appends what the store has not been told.
func (s *Store) Untold(now int64, at *enforcer.Cursor, limit int, into []enforcer.Push) []enforcer.Push {
	if *at == (enforcer.Cursor{}) {
		s.dirty.Store(false)
	}
	for ; at.Shard < shards; at.Shard, at.Slot = at.Shard+1, 0 {
		shard := &s.shards[at.Shard]
		shard.mu.Lock()
		for ; at.Slot < len(shard.slots) && limit > 0; at.Slot++ {
			if p := s.pushOf(shard.slots[at.Slot], now); p != nil {
				into = append(into, *p)
				limit--
				s.dirty.Store(true)
			}
		}
		shard.mu.Unlock()
		if limit == 0 {
			break
		}
	}
	return into
}

// pushOf makes the push of a slot, nil if there is nothing to tell.
func (s *Store) pushOf(slot *slot, now int64) *enforcer.Push {
	u := slot.use
	if u == nil {
		return nil
	}
	if u.tell != nil && u.tell.pending != nil {
		return u.tell.pending
	}
	suspect := u.lost || s.joining.Load() && u.epoch != s.epoch.Load()
	used := u.weighing(u.used, now)
	var untold, fresh algorithm.State
	if u.tell != nil {
		untold, fresh = u.weighing(u.tell.untold, now), u.weighing(u.tell.fresh, now)
	}
	switch {
	case suspect && weighs(used):
	case weighs(untold), weighs(fresh) && u.round > 0 && s.following.Load(), u.tell.unsure(now) && weighs(used):
		suspect = false
	default:
		return nil
	}
	if u.tell == nil {
		u.tell = new(tell)
	}
	u.tell.pending = &enforcer.Push{
		Identity: slot.name.identity, ID: slot.name.id, Limit: u.whole,
		Seq: s.pushes.Add(1), Since: u.since, Suspect: suspect, Round: u.round,
		Untold: untold, Fresh: fresh, Used: used,
	}
	u.tell.epoch = s.epoch.Load()
	u.tell.untold, u.tell.fresh = algorithm.State{}, algorithm.State{}
	return u.tell.pending
}

func weighs(s algorithm.State) bool { return s.Used > 0 || s.Carry > 0 }

// whole is what weighs of a state now; of a bucket the whole debt.
func (u *use) weighing(s algorithm.State, now int64) algorithm.State {
	used := u.limit.Used(s, now)
	switch {
	case used == 0:
		return algorithm.State{}
	case u.limit.Algorithm == algorithm.TokenBucket:
		return algorithm.State{At: now, Used: used}
	}
	return u.limit.Add(algorithm.State{}, s, now)
}

// Told takes over what the store answered to a push.
func (s *Store) Told(now int64, p *enforcer.Push, r enforcer.Pushed) {
	c := enforcer.Counter{Identity: p.Identity, ID: p.ID}
	shard := &s.shards[shardOf(&c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	slot := shard.find(&c)
	if slot == nil || slot.use == nil || slot.use.tell == nil || slot.use.tell.pending == nil ||
		slot.use.tell.pending.Seq != p.Seq {
		return
	}
	u := slot.use
	u.tell.pending, u.tell.again = nil, 0
	if r.Round != p.Round {
		u.tell.again = now + askAgain
	}
	switch {
	case r.Reset > 0:
		*u = use{limit: u.limit, whole: u.whole, since: r.Reset, judged: u.judged, latest: u.latest, epoch: u.tell.epoch, tell: new(tell)}
		slot.state = algorithm.State{}
	case p.Suspect:
		u.round, u.epoch, u.lost = r.Round, u.tell.epoch, false
	case r.Round == 0 && p.Round > 0: // the round is gone, and with it perhaps more
		u.round, u.lost = 0, s.following.Load()
	default:
		u.round = r.Round
	}
	slot.weigh()
	if u.lost || weighs(u.tell.untold) || weighs(u.tell.fresh) {
		s.dirty.Store(true)
	}
}
