package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// The failures that the fault layer makes.
var (
	errDown     = &enforcer.StoreError{Reason: enforcer.ReasonRefused, Err: errors.New("the scenario has the store down")}
	errReadOnly = &enforcer.StoreError{Reason: enforcer.ReasonReadOnly, Err: errors.New("the scenario has the store read-only")}
	errReset    = &enforcer.StoreError{Reason: enforcer.ReasonReset, Err: errors.New("the scenario loses this reply")}
)

// condition is what is wrong with the store for one replica. The zero value is nothing.
type condition struct {
	down, readOnly bool
	slow           time.Duration
	loseReplies    int
}

// backend is the store behind the faults, with a journal of what was written to it: with that any store can be emptied,
// and can lose its last writes, although others may keep their counters in the same server.
type backend struct {
	store enforcer.Store
	world *world
	// time is the store's, in µs. While the journal is played back it is that of the entry.
	playback *int64
	journal  []entry
	keep     bool // the journal, for a scenario that loses writes
	touched  map[counterName]enforcer.Counter
	charged  map[string]int64 // by limit ID
}

// counterName is what makes a counter. The share of a limit may count by another algorithm under the same ID.
type counterName struct {
	identity  enforcer.Identity
	id        string
	algorithm algorithm.Algorithm
}

// entry is one write: a take or a refund.
type entry struct {
	at      int64
	entries []enforcer.Entry
	refunds []enforcer.Refund
}

func newBackend(w *world, keep bool) *backend {
	return &backend{world: w, keep: keep, touched: make(map[counterName]enforcer.Counter), charged: make(map[string]int64)}
}

// clock is the time that the store is given.
func (b *backend) clock() int64 {
	if b.playback != nil {
		return *b.playback
	}
	return b.world.now
}

func (b *backend) take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	now, err := b.store.Take(ctx, entries, answers)
	if err != nil {
		return now, err
	}
	for i := range entries {
		if answers[i].Err == nil {
			b.charge(&entries[i], &answers[i])
		}
	}
	b.note(entry{at: b.clock(), entries: entries})
	return now, nil
}

// charge adds up what an answer charged each limit.
func (b *backend) charge(e *enforcer.Entry, a *enforcer.Answer) {
	for i := range e.Counters {
		granted := a.Granted
		if i >= e.Enforced {
			granted = 0
			for j, end := range e.Shadow {
				if i < end {
					granted = a.Shadow[j]
					break
				}
			}
		}
		b.charged[e.Counters[i].ID] += granted * e.Counters[i].Cost
	}
}

func (b *backend) refund(ctx context.Context, refunds []enforcer.Refund) error {
	if err := b.store.Refund(ctx, refunds); err != nil {
		return err
	}
	for i := range refunds {
		for _, c := range refunds[i].Counters {
			b.charged[c.ID] -= refunds[i].N * c.Cost
		}
	}
	b.note(entry{at: b.clock(), refunds: refunds})
	return nil
}

func (b *backend) note(e entry) {
	for i := range e.entries {
		for _, c := range e.entries[i].Counters {
			b.touched[counterName{c.Identity, c.ID, c.Limit.Algorithm}] = c
		}
	}
	if b.keep { // the enforcer uses its slices again
		e.entries = cloneEntries(e.entries)
		e.refunds = slices.Clone(e.refunds)
		b.journal = append(b.journal, e)
	}
}

// empty forgets everything that this run has written.
func (b *backend) empty(ctx context.Context) error {
	counters := make([]enforcer.Counter, 0, len(b.touched))
	for _, c := range b.touched {
		counters = append(counters, c)
	}
	if err := b.store.Reset(ctx, counters); err != nil {
		return fmt.Errorf("emptying the store: %w", err)
	}
	clear(b.touched)
	b.journal = nil
	return nil
}

// loseWrites forgets what was written after a time: the store begins anew, and what came before is written again.
func (b *backend) loseWrites(ctx context.Context, after int64) error {
	journal := b.journal
	if err := b.empty(ctx); err != nil {
		return err
	}
	charged := b.charged
	b.charged = make(map[string]int64) // what is played back was charged before
	defer func() { b.playback, b.charged = nil, charged }()
	for _, e := range journal {
		if e.at > after {
			break
		}
		b.playback = &e.at
		var err error
		if e.refunds != nil {
			err = b.refund(ctx, e.refunds)
		} else {
			_, err = b.take(ctx, e.entries, make([]enforcer.Answer, len(e.entries)))
		}
		if err != nil {
			return fmt.Errorf("writing again what the store did not lose: %w", err)
		}
	}
	return nil
}

// faultyStore is the store as one replica sees it.
type faultyStore struct {
	backend *backend
	world   *world
	state   func() *condition
}

var _ enforcer.Prompt = (*faultyStore)(nil)

// Prompt says that callers may ask on their own, as they ask a Redis: Take ends with its context.
func (s *faultyStore) Prompt() bool { return true }

// Take charges when the request arrives; a slow store answers later.
func (s *faultyStore) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	state := s.state()
	if err := state.refuses(); err != nil {
		return 0, err
	}
	lost := state.loseReplies > 0 && writes(entries)
	if lost {
		state.loseReplies--
	}
	slow := state.slow
	now, err := s.backend.take(ctx, entries, answers)
	if slow > 0 {
		if late := s.world.sleep(ctx, slow); late != nil {
			return 0, late
		}
	}
	if lost {
		return 0, errReset
	}
	return now, err
}

// Refund is lost where a take would be.
func (s *faultyStore) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	state := s.state()
	if err := state.refuses(); err != nil {
		return err
	}
	slow := state.slow
	err := s.backend.refund(ctx, refunds)
	if slow > 0 {
		if late := s.world.sleep(ctx, slow); late != nil {
			return late
		}
	}
	return err
}

// Reset forgets counters.
func (s *faultyStore) Reset(ctx context.Context, counters []enforcer.Counter) error {
	if err := s.state().refuses(); err != nil {
		return err
	}
	return s.backend.store.Reset(ctx, counters)
}

func (c *condition) refuses() error {
	switch {
	case c.down:
		return errDown
	case c.readOnly:
		return errReadOnly
	}
	return nil
}

// writes says whether a batch is more than looks.
func writes(entries []enforcer.Entry) bool {
	for i := range entries {
		if entries[i].N > 0 {
			return true
		}
	}
	return false
}

func cloneEntries(entries []enforcer.Entry) []enforcer.Entry {
	if entries == nil {
		return nil
	}
	clones := make([]enforcer.Entry, len(entries))
	for i, e := range entries {
		e.Counters, e.Shadow = slices.Clone(e.Counters), slices.Clone(e.Shadow)
		clones[i] = e
	}
	return clones
}

// charges are what was charged until now, by limit ID.
func (b *backend) charges() map[string]int64 { return maps.Clone(b.charged) }
