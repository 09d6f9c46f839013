package enforcer

import (
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// place is this replica's among those that share the limits.
func (e *Enforcer) place() policy.Replica { return e.places.Load().Current() }

func (e *Enforcer) movePlaces(move func(*policy.Places) *policy.Places) {
	for {
		before := e.places.Load()
		if after := move(before); after == before || e.places.CompareAndSwap(before, after) {
			return
		}
	}
}

// beginIdle starts the shares of a process that is among the first after a time without any, as the first count says.
// A count that does not expect replicas was made before anybody asked for them.
func (e *Enforcer) beginIdle(counted *policy.Replicas, now int64) {
	if counted.IdleSince == 0 || counted.Desired == 0 {
		return
	}
	idle := e.clock.store(now) - counted.IdleSince
	e.places.Store(policy.NewPlaces(e.clock.monotonic(), max(0, idle)))
}

// decidesAlone has the others know of this replica some time after it first decided without the store, if the store
// never heard of it: they read of it in the count of pods.
func (e *Enforcer) decidesAlone() {
	if e.alone.Load() || !e.alone.CompareAndSwap(false, true) {
		return
	}
	at := e.clock.monotonic() + policy.SnapshotPropagation.Microseconds()
	e.movePlaces(func(p *policy.Places) *policy.Places { return p.Counted(at) })
}

// shareOf is what this replica admits on its own of a limit now, for one identity.
func (e *Enforcer) shareOf(o origin, id Identity) Share {
	now := e.clock.monotonic()
	places := e.places.Load()
	in := places.Share(o.limit.row, o.rule.maxCost(), o.rule.rounding, id.turn(), now, e.clock.store(now))
	share := Share{
		Limit:    o.limit.share(in.Limit),
		Requests: in.Requests,
		Informed: o.rule.rounding != policy.RoundingNeverExceed,
		Version:  in.Version,
		EmptyAt:  in.EmptyAt,
		N:        int64(places.Current().N),
	}
	for _, step := range in.Steps {
		share.Steps = append(share.Steps, ShareStep{From: step.From, Limit: o.limit.share(step.Limit)})
	}
	return share
}

// share is a share of the limit as the arithmetic has it.
func (l *limit) share(row policy.RowLimit) algorithm.Limit {
	if row.Algorithm == l.row.Algorithm {
		return algorithm.Limit{Algorithm: l.exact.Algorithm, Requests: row.Requests, Window: row.Window, Burst: row.Burst}
	}
	limit, err := exactLimit(row)
	if err != nil { // shares have no other algorithms than policies
		return algorithm.Limit{Window: row.Window}
	}
	return limit
}

// noted is the memory of a Note, which is used again.
type noted struct {
	note  Note
	share Share
}

// mirror keeps what this replica knows of the counters in step with what the store said of an entry.
func (e *Enforcer) mirror(g *group, entry *Entry, a *Answer, admitted int64, late []int64) {
	place := e.place()
	m, ok := e.noted.Get().(*noted)
	if !ok {
		m = new(noted)
	}
	defer e.noted.Put(m)
	for i := range entry.Counters[:entry.Enforced] {
		o, c := g.origins[i], &entry.Counters[i]
		m.note = Note{
			Result:   a.Results[i],
			Admitted: admitted * c.Cost,
			Part:     place.Part(a.Results[i].Remaining, c.Identity.turn()),
			N:        int64(place.N),
		}
		if o.rule.onFailure == policy.OnStoreFailureLocalShare {
			m.share = e.shareOf(o, c.Identity)
			m.note.Share = &m.share
		}
		for _, at := range late {
			e.options.Local.Granted(a.Results[i].At, c, at)
		}
		if e.options.Local.Note(c, &m.note) {
			e.follow()
		}
	}
}

// hold is what a decision has taken from the local shares while it asks a store that was not asked a moment ago.
type hold struct {
	want
	entries [1]Entry
	answer  Answer
	held    bool
}

func (h *hold) reset() {
	h.want.reset()
	h.entries[0], h.held = Entry{}, false
}

// holdShare takes from the local shares what the store is about to be asked for. If they do not admit it, neither does
// the decision: the verdict is left in d.
//
// Long after an outage this concerns only counters of which the store was not told all: a moment ago it did not answer
// some requests, and the share did.
func (d *decision) holdShare() bool {
	guarding := d.e.guarding()
	if d.peek || !guarding && (d.e.pusher == nil || !d.e.options.Local.Dirty()) {
		return true
	}
	h := &d.hold
	d.shares = d.shares[:0]
	for i := range d.want.origins[:d.want.enforced] {
		o, c := d.want.origins[i], &d.want.counters[i]
		if o.rule.onFailure == policy.OnStoreFailureLocalShare && (guarding || d.e.options.Local.Owes(c)) {
			share := d.e.shareOf(o, c.Identity)
			if o.rule.rounding != policy.RoundingNeverExceed { // a new replica has its part of what the store admits
				share.Requests, share.EmptyAt = share.Limit.Requests, 0
			}
			h.add(*c, o)
			d.shares = append(d.shares, share)
		}
	}
	if len(h.counters) == 0 {
		return true
	}
	h.enforced = len(h.counters)
	h.entries[0] = Entry{Counters: h.counters, Enforced: h.enforced, N: 1}
	h.answer = Answer{Results: h.answer.Results[:0], Shadow: h.answer.Shadow[:0]}
	d.e.options.Local.Hold(d.e.clock.store(d.e.clock.monotonic()), &h.entries[0], d.shares, &h.answer)
	if h.answer.Granted > 0 {
		h.held = true
		return true
	}
	d.share.reset()
	for i := range h.counters {
		d.share.add(h.counters[i], h.origins[i])
	}
	d.share.enforced = h.enforced
	d.shareVerdict(&h.answer, false, guardCause)
	return false
}

func (d *decision) releaseShare() {
	if h := &d.hold; h.held {
		h.held = false
		d.e.options.Local.Release(d.e.clock.store(d.e.clock.monotonic()), &h.entries[0], &h.answer)
	}
}

// LimitShare is one limit that applies to a request, and what this replica would admit of it on its own.
type LimitShare struct {
	Policy, Rule string
	Limit        policy.RowLimit
	Rounding     policy.Rounding
	Share        Share
}

// Shares tells what this replica would admit of a request's limits if the store were away.
func (e *Enforcer) Shares(r Request) []LimitShare {
	s := e.snapshot.Load()
	if s == nil {
		return nil
	}
	d := e.decision()
	defer e.done(d)
	d.s, d.request, d.peek = s, r, true
	if !d.collect() {
		return nil
	}
	var shares []LimitShare
	for i, o := range d.want.origins[:d.want.enforced] {
		if d.onFailure(o.rule) == policy.OnStoreFailureLocalShare {
			shares = append(shares, LimitShare{
				Policy: o.rule.policy, Rule: o.rule.name, Limit: o.limit.row, Rounding: o.rule.rounding,
				Share: e.shareOf(o, d.want.counters[i].Identity),
			})
		}
	}
	return shares
}
