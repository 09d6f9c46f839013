package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// book is what was really admitted.
type book struct {
	world    *world
	began    int64
	last     string // what happened last
	admitted []admission
	faults   []int64 // when something went wrong or came back
	states   []bool  // whether the store answered from then on
	cut      bool    // a replica was cut off at some time
	checked  int64   // windows before this one are closed
}

type admission struct {
	at  int64
	key int
	pod *pod
}

func newBook(w *world) *book { return &book{world: w, began: w.clock.now} }

func (b *book) faulty() {
	b.faults = append(b.faults, b.world.clock.now)
	b.states = append(b.states, b.world.server.up)
}

func (b *book) decided(p *pod, key int, d enforcer.Decision) {
	r := &b.world.report
	if d.Source == enforcer.SourceLease {
		r.Leased++
	}
	if d.Source == enforcer.SourceLocalShare {
		r.Local++
		if p.enforcer.Figures().Guarded {
			r.Guarded++
		}
	}
	if !d.Allowed {
		r.Denied++
		return
	}
	r.Admitted++
	b.admitted = append(b.admitted, admission{b.world.clock.now, key, p})
}

// check is called after every step.
func (b *book) check() error {
	if err := b.revisions(); err != nil {
		return err
	}
	if err := b.shares(); err != nil {
		return err
	}
	return b.windows()
}

// revisions never go back.
func (b *book) revisions() error {
	for _, p := range b.world.fleet.serving() {
		now := p.enforcer.Figures().Revision
		if now.Compare(p.revision) < 0 {
			return fmt.Errorf("%s: revision %v after %v", p.name, now, p.revision)
		}
		p.revision = now
	}
	return nil
}

// shares of all replicas add up to no more than the limit, at every moment, if all of them hear of each other.
func (b *book) shares() error {
	s := &b.world.schedule
	if s.rounding != policy.RoundingNeverExceed || s.cuts || s.lossy || s.slow {
		return nil
	}
	for key := range keys {
		var requests, capacity int64
		for _, p := range b.world.fleet.serving() {
			for _, share := range p.enforcer.Shares(request(key)) {
				requests += share.Share.Requests
				if share.Share.Limit.Algorithm == algorithm.TokenBucket && share.Share.Requests > 0 {
					capacity += share.Share.Limit.Capacity()
				}
			}
		}
		b.world.report.SharesAdded++
		if requests > s.requests || capacity > s.requests {
			return fmt.Errorf("shares of key %d add up to %d (capacity %d), the limit is %d", key, requests, capacity, s.requests)
		}
	}
	return nil
}

// windows that have ended hold no more than what is promised for what happened in them.
func (b *book) windows() error {
	s := &b.world.schedule
	if s.algorithm == policy.TokenBucket {
		return b.bucket()
	}
	window := b.world.clock.now / s.window
	for ; b.checked < window; b.checked++ {
		if b.checked == 0 {
			b.checked = window - 1
		}
		from, to := b.checked*s.window, (b.checked+1)*s.window
		if from < b.began {
			continue
		}
		for key := range keys {
			n := int64(0)
			for _, a := range b.admitted {
				if a.key == key && a.at >= from && a.at < to {
					n++
				}
			}
			b.world.report.Windows++
			if most, why := b.most(from, to); n > most {
				return fmt.Errorf("%d of key %d admitted in a window of %s, want at most %d", n, key, why, most)
			}
		}
	}
	return nil
}

// most is what a window may hold at most.
func (b *book) most(from, to int64) (most int64, why string) {
	s := &b.world.schedule
	switch {
	case b.cut, s.lossy, s.slow:
		// Each replica that does not reach the store has its share beside it, one request at least under NeverZero.
		most := 3 * s.requests
		if s.rounding != policy.RoundingNeverExceed {
			most += 10
		}
		return most, "replicas that cannot reach the store"
	case b.calm(from, to) && s.rounding == policy.RoundingNeverExceed:
		return s.requests, "no change"
	case b.calm(from-s.window-20_000_000, to) && !b.up(from):
		// 1.6 times the limit while replicas come and go, and one request of each replica where shares are below one.
		b.world.report.Alone++
		most := (s.requests*16 + 9) / 10
		if s.requests < maxReplicas {
			most += maxReplicas
		}
		return most, "an outage that lasts, with shares that are never zero"
	case s.rounding == policy.RoundingNeverExceed:
		return 2 * s.requests, "a change: what the store admitted, and the shares"
	case b.calm(from-2*s.window-20_000_000, to) && b.up(from):
		return s.requests, "no change for long"
	}
	// Beside them new processes, and as many as there are replicas where shares are below one.
	return 2*s.requests + (s.requests*6+9)/10 + 5, "a change, with shares that are never zero"
}

// calm says whether nothing went wrong or came back in a time.
func (b *book) calm(from, to int64) bool {
	for _, at := range b.faults {
		if at >= from && at < to {
			return false
		}
	}
	return true
}

// up says whether the store answered at a time.
func (b *book) up(at int64) bool {
	up := true
	for i, fault := range b.faults {
		if fault <= at {
			up = b.states[i]
		}
	}
	return up
}

// bucket holds what it earns, and once more its capacity for each time that the store went.
func (b *book) bucket() error {
	s := &b.world.schedule
	for key := range keys {
		n := int64(0)
		for _, a := range b.admitted {
			if a.key == key {
				n++
			}
		}
		earned := (b.world.clock.now - b.began) * s.requests / s.window
		most := s.requests + earned + 1 + int64(len(b.faults)+1)*(s.requests+5)
		if n > most {
			return fmt.Errorf("%d of key %d admitted, want at most %d", n, key, most)
		}
	}
	return nil
}

// settled is called when everything has been well for long: all replicas ask the store, and it counts what was really
// admitted.
func (b *book) settled() error {
	w := b.world
	for _, p := range w.fleet.serving() {
		if p.enforcer.Figures().BreakerOpen {
			return fmt.Errorf("%s does not ask the store again", p.name)
		}
	}
	pods := w.fleet.serving()
	if len(pods) == 0 {
		return fmt.Errorf("no replica serves")
	}
	lost := 0
	for _, p := range append(w.fleet.gone, w.fleet.pods...) {
		if p.link != nil {
			lost += p.link.lost
		}
	}
	for key := range keys {
		if err := b.counted(pods[0], key, lost); err != nil {
			return err
		}
	}
	return nil
}

// held is what the store may count because of leases: what replicas took with them that ended, what was not given back
// because the store was suspected, and what went with a lost message.
func (b *book) held(lost int) (held int64) {
	for _, p := range append(b.world.fleet.gone, b.world.fleet.pods...) {
		if p.enforcer == nil {
			continue
		}
		f := p.enforcer.Figures()
		held += int64(f.Leased[enforcer.LeaseDropped]) //nolint:gosec // few
		if p.ended {
			held += b.world.schedule.lease * keys
		}
	}
	return held + int64(lost)*b.world.schedule.lease
}

// counted compares the store's count of a key with what replicas admitted that are still there to tell.
func (b *book) counted(p *pod, key, lost int) error {
	w, s := b.world, &b.world.schedule
	since := w.clock.now/s.window*s.window - 1
	switch s.algorithm {
	case policy.SlidingWindowLog:
		since = w.clock.now - s.window
	case policy.FixedWindow:
	case policy.SlidingWindowCounter, policy.TokenBucket: // weights, not counts
		return nil
	}
	var all, told int64
	for _, a := range b.admitted {
		if a.key != key || a.at <= since {
			continue
		}
		all++
		if !a.pod.ended {
			told++
		}
	}
	var d enforcer.Decision
	w.clock.run(func() { d = p.enforcer.Peek(context.Background(), request(key)) })
	if d.Source != enforcer.SourceStore {
		return fmt.Errorf("a peek is answered by %s: %s", d.Source, d.Cause)
	}
	counted := s.requests - d.Remaining
	w.report.Exact++
	if least := min(told, s.requests); counted < least {
		return fmt.Errorf("the store counts %d of key %d in %v, %d were admitted", counted, key, time.Duration(w.clock.now-since)*time.Microsecond, told)
	}
	held := b.held(lost)
	if counted > all+int64(lost)+held {
		return fmt.Errorf("the store counts %d of key %d, only %d were admitted, %d replies lost, and %d leased", counted, key, all, lost, held)
	}
	return nil
}
