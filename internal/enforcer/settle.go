package enforcer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// settleDelay is for how long what is charged afterwards gathers, before the store is told of all of it at once.
const settleDelay = 50 * time.Millisecond

// Charge is what a request was charged. It is settled at most once, when it is known what the request really cost.
type Charge struct {
	e     *Enforcer
	parts []charged
	// alone says that the store was not asked, and has to be told anyway.
	alone   bool
	settled atomic.Bool
}

// charged is one counter of a charge.
type charged struct {
	counter Counter
	taken   int64 // the store's time in µs
	most    int64 // that the rule lets a request cost; 0 if it counts requests
	shadow  bool
}

// Reserve decides about a request and charges it. If it was admitted, the charge can be settled.
func (e *Enforcer) Reserve(ctx context.Context, r Request) (Decision, *Charge) {
	c := &Charge{e: e}
	s := e.snapshot.Load()
	if s == nil {
		return e.withoutPolicy(false), c
	}
	d := e.decision()
	d.charge = c
	d.decide(ctx, s, &r, false)
	out := d.verdict
	if out.Allowed && len(c.parts) == 0 { // by what the store was not asked for
		c.alone = true
		d.note(0, d.want.enforced, nil, false)
	}
	d.charge = nil
	e.done(d)
	return out, c
}

// noteCharge remembers what a store charged, for those who settle.
func (d *decision) noteCharge(a *Answer, granted bool, place int64) {
	if d.charge == nil || !granted {
		return
	}
	d.note(0, d.want.enforced, a.Results, false)
	start := d.want.enforced
	for i, end := range d.want.shadow {
		if i < len(a.Shadow) && place < a.Shadow[i] {
			d.note(start, end, a.Results, true)
		}
		start = end
	}
}

func (d *decision) note(start, end int, results []algorithm.Result, shadow bool) {
	for i := start; i < end; i++ {
		part := charged{counter: d.want.counters[i], shadow: shadow}
		if results != nil {
			part.taken = results[i].At
		}
		if d.want.origins[i].rule.cost != nil {
			part.most = d.want.origins[i].rule.cost.Max
		}
		d.charge.parts = append(d.charge.parts, part)
	}
}

// Settle charges what the request really cost, by all rules that read a cost. It says whether this is the first time.
//
// What was charged too little is charged even if the limit has no room for it, and too much is given back as far as it
// still weighs. Both reach the store behind the decisions. What was decided without the store is never given back: the
// store may have been told of it already.
func (c *Charge) Settle(actual int64) bool {
	return c.settle(func(p *charged) int64 {
		if p.most == 0 {
			return p.counter.Cost
		}
		return min(actual, p.most)
	})
}

// Refund gives back everything, for a request that was not carried out.
func (c *Charge) Refund() bool {
	return c.settle(func(*charged) int64 { return 0 })
}

func (c *Charge) settle(cost func(*charged) int64) bool {
	if c.settled.Swap(true) {
		return false
	}
	var refunds []Refund
	var more []charged
	for i := range c.parts {
		p := c.parts[i]
		difference := cost(&p) - p.counter.Cost
		switch {
		case difference > 0:
			p.counter.Cost = difference
			more = append(more, p)
		case difference < 0 && !c.alone:
			p.counter.Cost = -difference
			refunds = append(refunds, Refund{Counters: []Counter{p.counter}, N: 1, Taken: p.taken})
			c.e.returned(&p)
		}
	}
	if len(refunds) > 0 {
		c.e.giveBack(refunds)
	}
	if len(more) > 0 {
		c.e.chargeMore(more)
	}
	return true
}

// returned takes back what this replica remembers of its own use.
func (e *Enforcer) returned(p *charged) {
	if !p.shadow && !e.options.InProcess {
		now := e.clock.store(e.clock.monotonic())
		e.options.Local.Return(now, &p.counter, p.taken, p.counter.Cost, int64(e.place().N))
	}
}

// giveBack has the store give back, at once if it is in this process.
func (e *Enforcer) giveBack(refunds []Refund) {
	if !e.options.InProcess && !e.options.SettleAtOnce {
		e.batcher.refund(refunds)
		return
	}
	e.denials.owe(refunds)
	ctx, cancel := e.options.Runtime.WithTimeout(patience)
	defer cancel()
	if err := e.options.Store.Refund(ctx, refunds); err != nil {
		e.counts.fail(reasonOf(err))
	}
	e.denials.paid(e.clock.monotonic())
}

// chargeMore charges whatever the limits say, the way in which a store is told what was admitted without it.
func (e *Enforcer) chargeMore(parts []charged) {
	now := e.clock.store(e.clock.monotonic())
	if e.options.InProcess {
		e.pushHere(now, parts)
		return
	}
	for i := range parts {
		e.options.Local.Admit(now, &parts[i].counter, int64(e.place().N))
	}
	if e.options.SettleAtOnce {
		e.tick()
		return
	}
	if !e.settling.Swap(true) {
		e.options.Runtime.AfterFunc(settleDelay, func() {
			e.settling.Store(false)
			e.tick()
		})
	}
}

// pushHere tells a store in this process, which does not fail.
func (e *Enforcer) pushHere(now int64, parts []charged) {
	if e.pusher == nil {
		return
	}
	pushes := make([]Push, 0, len(parts))
	for i := range parts {
		c := &parts[i].counter
		pushes = append(pushes, Push{
			Identity: c.Identity, ID: c.ID, Limit: c.Limit, Member: e.member, Seq: e.settles.Add(1), Since: parts[i].taken,
			Untold: c.Limit.Charge(algorithm.State{}, now, c.Cost),
		})
	}
	ctx, cancel := e.options.Runtime.WithTimeout(patience)
	defer cancel()
	if _, err := e.pusher.Push(ctx, pushes, make([]Pushed, len(pushes))); err != nil {
		e.counts.fail(reasonOf(err))
	}
}

// Fingerprint is equal for requests that are counted alike: by the same counters, at the same cost.
func (e *Enforcer) Fingerprint(r Request) uint64 {
	s := e.snapshot.Load()
	if s == nil {
		return 0
	}
	d := e.decision()
	defer e.done(d)
	d.s, d.request, d.peek = s, r, true
	if !d.collect() {
		return 0
	}
	return d.want.fingerprint()
}

// Reset makes one identity of a rule full again, for all limits of the rule. It is false when no such rule is in force, or
// the rule's key finds nothing in the request.
func (e *Enforcer) Reset(ctx context.Context, policyName, ruleName string, r Request) (bool, error) {
	held, ok := e.Held(policyName, ruleName, r)
	if !ok {
		return false, nil
	}
	counters := make([]Counter, 0, len(held))
	for i := range held {
		counters = append(counters, held[i].Counter)
	}
	if err := e.options.Store.Reset(ctx, counters); err != nil {
		return true, err
	}
	e.Forget(counters)
	// What this replica used before is not told any more, and its share is whole.
	return true, e.options.Local.Reset(ctx, counters)
}

// StoreTime is the time by the store's clock, as the last answer told it.
func (e *Enforcer) StoreTime() time.Time { return time.UnixMicro(e.clock.store(e.clock.monotonic())) }

// Tell has the store hear now of what it was not told, as it does by itself from time to time: first, as they were, the
// pushes that were not answered, and then what has come since.
func (e *Enforcer) Tell() {
	e.tick()
	e.tick()
}
