package memstore

import (
	"sync/atomic"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

var _ enforcer.Local = (*Store)(nil)

// use is what a replica used of one counter, all of it by enforcer.OwnUse.
type use struct {
	limit algorithm.Limit
	// whole is the counter's limit in the store.
	whole algorithm.Limit
	// used is all of it that still weighs.
	used algorithm.State
	// owed is, of a bucket, what would be owed if this replica were alone: no less is owed to a store that lost nothing.
	owed algorithm.State
	// since is from when on it is counted, judged the newest time at which the store judged this counter, and latest
	// that of a charge, with or without the store.
	since, judged, latest int64
	// round is the last one that was joined, and epoch the suspicion that was answered by it.
	round, epoch int64
	// lost says that the store has proven to have lost charges.
	lost bool
	// tell is what the store has to be told; nil when it never had to.
	tell *tell
}

// tell is what the store was not told of a counter.
type tell struct {
	// untold was never charged to the store, and fresh not to the round that was joined.
	untold, fresh algorithm.State
	// pending was sent and not answered, in answer to the suspicion epoch.
	pending *enforcer.Push
	epoch   int64
	// again is when the round is to be looked at once more, 0 for never.
	again int64
}

// unsure says that the round that was joined may not be the last one.
func (t *tell) unsure(now int64) bool { return t != nil && t.again > 0 && now >= t.again }

// entries are those of logs beside the newest one's.
func (u *use) entries() int {
	n := len(u.used.Log)
	if u.tell != nil {
		n += len(u.tell.untold.Log) + len(u.tell.fresh.Log)
	}
	return n
}

// idle says that the store has been told all and nothing is on its way.
func (t *tell) idle() bool {
	return t == nil || t.pending == nil && t.untold.Used == 0 && t.untold.Carry == 0
}

// telling is how much the store has to be told.
type telling struct {
	// epoch counts suspicions. While joining, each counter answers the last of them; while following, rounds are told
	// of each charge.
	epoch              atomic.Int64
	joining, following atomic.Bool
	dirty              atomic.Bool
	pushes             atomic.Int64
}

// TakeShare answers an entry from the shares of its counters.
func (s *Store) TakeShare(now int64, e *enforcer.Entry, shares []enforcer.Share, a *enforcer.Answer) {
	s.takeShare(now, e, shares, a, true)
}

// Hold takes from the shares and notes no use.
func (s *Store) Hold(now int64, e *enforcer.Entry, shares []enforcer.Share, a *enforcer.Answer) {
	s.takeShare(now, e, shares, a, false)
}

func (s *Store) takeShare(now int64, e *enforcer.Entry, shares []enforcer.Share, a *enforcer.Answer, used bool) {
	locked := s.lock(e.Counters)
	defer s.unlock(locked)
	var buffer [32]*slot
	slots := buffer[:0]
	for i := range e.Counters {
		slot := s.own(&e.Counters[i], now, shares[i].N)
		slot.settleShare(&shares[i], now)
		slot.pinned = true
		slots = append(slots, slot)
	}
	granted := e.N
	for i := range e.Counters[:e.Enforced] {
		granted = min(granted, slots[i].fitsShare(&e.Counters[i], &shares[i], now))
	}
	chargeShares(slots[:e.Enforced], e.Counters[:e.Enforced], now, granted)
	if used && granted > 0 {
		for i := range e.Counters[:e.Enforced] {
			s.admit(slots[i], now, granted*e.Counters[i].Cost)
		}
	}
	a.Granted, a.Err = granted, nil
	a.Shadow = a.Shadow[:0]
	start := e.Enforced
	for _, end := range e.Shadow {
		charged := granted
		for i := start; i < end; i++ {
			charged = min(charged, slots[i].fitsShare(&e.Counters[i], &shares[i], now))
		}
		chargeShares(slots[start:end], e.Counters[start:end], now, charged)
		a.Shadow = append(a.Shadow, charged)
		start = end
	}
	a.Results = a.Results[:0]
	for i := range e.Counters {
		limit := slots[i].inForce(&shares[i])
		a.Results = append(a.Results, limit.Look(slots[i].state, now, e.Counters[i].Cost))
		slots[i].pinned = false
	}
}

func chargeShares(slots []*slot, counters []enforcer.Counter, now, callers int64) {
	for i, slot := range slots {
		slot.charge(now, callers*counters[i].Cost)
	}
}

// inForce is a share's limit with what counts of it now.
func (s *slot) inForce(share *enforcer.Share) algorithm.Limit {
	limit := s.limit
	if share.Informed && s.informed {
		return limit
	}
	if limit.Algorithm != algorithm.TokenBucket || share.Requests == 0 {
		limit.Requests = share.Requests
	}
	return limit
}

func (s *slot) fitsShare(c *enforcer.Counter, share *enforcer.Share, now int64) int64 {
	limit := s.inForce(share)
	return limit.Look(s.state, now, 0).Remaining / max(c.Cost, 1)
}

// Release gives back what was held.
func (s *Store) Release(now int64, e *enforcer.Entry, a *enforcer.Answer) {
	locked := s.lock(e.Counters)
	defer s.unlock(locked)
	for i := range e.Counters[:min(e.Enforced, len(a.Results))] {
		c := &e.Counters[i]
		slot := s.shards[shardOf(c)].find(c)
		if slot == nil || slot.limit.Window == 0 {
			continue
		}
		slot.state = slot.limit.Refund(slot.state, now, a.Results[i].At, a.Granted*c.Cost)
		slot.weigh()
	}
}

// Note takes over what the store said of a counter.
func (s *Store) Note(c *enforcer.Counter, n *enforcer.Note) (lost bool) {
	now := n.Result.At
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if n.Admitted <= 0 && (n.Share == nil || n.Part >= n.Share.Limit.Capacity()) && shard.find(c) == nil {
		return false // it would only say that nothing was used
	}
	slot := s.own(c, now, n.N)
	u := slot.use
	// Answers may come in another order than they were given. Only the newest one can be compared with all that was used.
	newest := now > u.judged
	u.judged = max(u.judged, now)
	counted := c.Limit.Capacity() - n.Result.Remaining + u.notTold(now)
	if n.Admitted > 0 {
		u.used = u.charge(u.used, now, n.Admitted)
		u.owe(now, n.Admitted)
		s.follow(u, now, n.Admitted)
	}
	telling := newest && n.Result.Remaining > 0 // what remains of nothing does not say how much is owed
	if telling && slot.shard != nil && u.tell.idle() && u.provesLoss(now, counted) {
		u.lost = true
		s.dirty.Store(true)
	}
	believed := newest && !u.lost
	if n.Share != nil && (slot.limit.Window > 0 || n.Share.Requests > 0 || n.Share.Limit.Algorithm != algorithm.TokenBucket) {
		slot.note(n, believed, counted)
	}
	slot.weigh()
	if believed && telling && c.Limit.Algorithm == algorithm.TokenBucket {
		u.used = atMost(u.limit, u.used, now, counted)
	}
	return telling && u.lost
}

// owedSlack (µs) is by how much the times may differ at which this replica and the store take a charge of a bucket.
const owedSlack = 100_000

// provesLoss says that a store that counts so much has lost charges: this replica alone used more.
func (u *use) provesLoss(now, counted int64) bool {
	if u.limit.Algorithm != algorithm.TokenBucket {
		return u.limit.Used(u.used, now) > counted
	}
	return u.whole.Used(u.owed, now) > counted+1+u.whole.Requests*owedSlack/u.whole.Window
}

// owe charges what this replica would owe if it were alone.
func (u *use) owe(at, cost int64) {
	if u.limit.Algorithm == algorithm.TokenBucket {
		u.owed = u.whole.Add(u.owed, u.whole.Charge(algorithm.State{}, at, cost), max(at, u.owed.At))
	}
}

// note keeps a share in step with what the store said. A bucket's share drains more slowly than the whole: it owes no
// more than the store counts, or a replica that has more than its part of the traffic for long would be mute for as
// long when the store goes.
func (s *slot) note(n *enforcer.Note, newest bool, counted int64) {
	now := n.Result.At
	s.informed = true
	s.settleShare(n.Share, now)
	s.charge(now, n.Admitted)
	if newest && s.limit.Algorithm == algorithm.TokenBucket {
		s.state = atMost(s.limit, s.state, now, counted)
	}
	if over := s.limit.Look(s.state, now, 0).Remaining - n.Part; over > 0 {
		s.charge(now, over)
	}
}

// atMost is a bucket's state that owes no more than a number.
func atMost(l algorithm.Limit, state algorithm.State, now, owed int64) algorithm.State {
	if l.Used(state, now) <= owed {
		return state
	}
	return l.Charge(algorithm.State{}, now, owed)
}

// notTold is what the store does not count yet.
func (u *use) notTold(now int64) int64 {
	if u.tell == nil {
		return 0
	}
	n := u.limit.Used(u.tell.untold, now)
	if p := u.tell.pending; p != nil {
		n += p.Limit.Used(p.Untold, now)
	}
	return n
}

// charge charges what was used at a time, which may be before the last one.
func (u *use) charge(state algorithm.State, at, cost int64) algorithm.State {
	if at >= u.latest {
		u.latest = at
		return u.limit.Charge(state, at, cost)
	}
	return u.limit.Add(state, u.limit.Charge(algorithm.State{}, at, cost), u.latest)
}

// Admit notes what was admitted without the store and without a share.
func (s *Store) Admit(now int64, c *enforcer.Counter, replicas int64) {
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s.admit(s.own(c, now, replicas), now, c.Cost)
}

// admit notes a cost that the store was not told.
func (s *Store) admit(slot *slot, now, cost int64) {
	u := slot.use
	u.used = u.charge(u.used, now, cost)
	u.owe(now, cost)
	if u.tell == nil {
		u.tell = new(tell)
	}
	u.tell.untold = u.charge(u.tell.untold, now, cost)
	s.follow(u, now, cost)
	slot.weigh()
	s.dirty.Store(true)
}

// follow notes a cost for the round that was joined.
func (s *Store) follow(u *use, now, cost int64) {
	if !s.following.Load() {
		return
	}
	s.dirty.Store(true)
	if u.tell != nil && (u.round > 0 || u.tell.pending != nil) {
		u.tell.fresh = u.charge(u.tell.fresh, now, cost)
	}
}

// Granted has the store's charge in the place of what was admitted without it.
func (s *Store) Granted(now int64, c *enforcer.Counter, taken int64) {
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	slot := shard.find(c)
	if slot == nil || slot.use == nil || slot.use.tell == nil {
		return
	}
	u := slot.use
	latest := max(now, taken)
	u.tell.untold = u.limit.Refund(u.tell.untold, latest, taken, c.Cost)
	u.tell.fresh = u.limit.Refund(u.tell.fresh, latest, taken, c.Cost)
	u.used = u.charge(u.limit.Refund(u.used, latest, taken, c.Cost), now, c.Cost)
	s.follow(u, now, c.Cost)
	slot.weigh()
}

// Return takes back what was charged with a lease and not used. Of the share it takes back the part that this replica has
// of what remains in the store, which grows by as much.
func (s *Store) Return(now int64, c *enforcer.Counter, taken, amount, replicas int64) {
	shard := &s.shards[shardOf(c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	slot := shard.find(c)
	if slot == nil || slot.use == nil {
		return
	}
	u := slot.use
	latest := max(now, taken)
	u.used = u.limit.Refund(u.used, latest, taken, amount)
	if u.limit.Algorithm == algorithm.TokenBucket {
		u.owed = u.whole.Refund(u.owed, latest, taken, amount)
	}
	if u.tell != nil {
		u.tell.fresh = u.limit.Refund(u.tell.fresh, latest, taken, amount)
	}
	if slot.limit.Window > 0 {
		slot.state = slot.limit.Refund(slot.state, latest, taken, amount/max(replicas, 1))
	}
	slot.weigh()
}

// own returns the slot of a counter that n replicas share, with what this one used of it.
func (s *Store) own(c *enforcer.Counter, now, n int64) *slot {
	shard := &s.shards[shardOf(c)]
	slot := shard.find(c)
	if slot == nil {
		slot = shard.add(c, now)
	}
	limit := enforcer.OwnUse(c.Limit, n)
	if slot.use == nil {
		slot.use = &use{limit: limit, since: now}
		if !s.joining.Load() {
			slot.use.epoch = s.epoch.Load()
		}
	}
	u := slot.use
	if u.whole != c.Limit && u.whole.Window > 0 && c.Limit.Algorithm == algorithm.TokenBucket {
		u.owed = u.whole.Convert(u.owed, c.Limit, now)
	}
	u.whole = c.Limit
	if u.limit != limit {
		u.used = u.limit.Convert(u.used, limit, now)
		if u.tell != nil {
			u.tell.untold = u.limit.Convert(u.tell.untold, limit, now)
			u.tell.fresh = u.limit.Convert(u.tell.fresh, limit, now)
		}
		u.limit = limit
	}
	return slot
}

// settleShare brings a slot up to date with the share that is in force.
func (s *slot) settleShare(share *enforcer.Share, now int64) {
	if s.limit.Window == 0 {
		s.begin(share)
	}
	if s.version != share.Version {
		for _, step := range share.Steps {
			if step.From > s.settled && step.From <= now && s.limit.Algorithm == algorithm.TokenBucket {
				s.state = s.limit.Resize(s.state, step.Limit, step.From)
				s.limit = step.Limit
			}
		}
	}
	if s.limit != share.Limit {
		s.state = s.limit.Convert(s.state, share.Limit, now)
		s.limit = share.Limit
	}
	s.version, s.settled = share.Version, now
	if rebased, ok := s.limit.Rebase(s.state, now); ok {
		s.state = rebased
	}
}

// begin makes the share of a counter that was not used yet: full when its history began, or empty when the process did.
func (s *slot) begin(share *enforcer.Share) {
	s.limit, s.version, s.settled = share.Limit, -1, 0
	if len(share.Steps) > 0 {
		s.limit, s.settled = share.Steps[0].Limit, share.Steps[0].From
	}
	if share.EmptyAt == 0 || share.Informed && s.informed || s.limit.Algorithm != algorithm.TokenBucket {
		return
	}
	for _, step := range share.Steps {
		if step.From <= share.EmptyAt {
			s.limit = step.Limit
		}
	}
	s.settled = max(s.settled, share.EmptyAt)
	if capacity := s.limit.Capacity(); capacity > 0 {
		s.state = algorithm.State{At: share.EmptyAt, Used: capacity}
	}
}
