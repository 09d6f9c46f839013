package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
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

// backend is the store behind the faults, with a journal of what was written to it: with that any store can lose its
// last writes, although others may keep their counters in the same server.
type backend struct {
	world *world
	// open gives an empty store.
	open  func() (Store, error)
	store Store
	// playback is the time of the entry of the journal that is being written again; nil otherwise.
	playback *int64
	journal  []entry
	keep     bool             // the journal, for a scenario that loses writes
	charged  map[string]int64 // by limit ID
}

// entry is one write: a take, a refund or a push.
type entry struct {
	at      int64
	entries []enforcer.Entry
	refunds []enforcer.Refund
	pushes  []enforcer.Push
}

func newBackend(w *world, keep bool) *backend {
	return &backend{world: w, keep: keep, charged: make(map[string]int64)}
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
	b.note(entry{entries: entries})
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
	b.note(entry{refunds: refunds})
	return nil
}

func (b *backend) push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	now, err := b.store.Push(ctx, pushes, answers)
	if err == nil {
		b.note(entry{pushes: pushes})
	}
	return now, err
}

func (b *backend) note(e entry) {
	if !b.keep {
		return
	}
	e.at = b.clock()
	e.entries, e.refunds, e.pushes = cloneEntries(e.entries), slices.Clone(e.refunds), slices.Clone(e.pushes) // they are used again
	b.journal = append(b.journal, e)
}

// empty forgets everything that was written.
func (b *backend) empty() error {
	store, err := b.open()
	if err != nil {
		return fmt.Errorf("emptying the store: %w", err)
	}
	b.store, b.journal = store, nil
	return nil
}

// loseWrites forgets what was written after a time: the store begins anew, and what came before is written again.
func (b *backend) loseWrites(ctx context.Context, after int64) error {
	journal := b.journal
	if err := b.empty(); err != nil {
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
		switch {
		case e.refunds != nil:
			err = b.refund(ctx, e.refunds)
		case e.pushes != nil:
			_, err = b.push(ctx, e.pushes, make([]enforcer.Pushed, len(e.pushes)))
		default:
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

var (
	_ enforcer.Prompt = (*faultyStore)(nil)
	_ enforcer.Pusher = (*faultyStore)(nil)
)

// Prompt says that callers may ask on their own, as they ask a Redis: Take ends with its context.
func (s *faultyStore) Prompt() bool { return true }

// Take charges when the request arrives; a slow store answers later.
func (s *faultyStore) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	var now int64
	err := s.call(ctx, writes(entries), func() (err error) {
		now, err = s.backend.take(ctx, entries, answers)
		return err
	})
	return now, err
}

// Refund is lost where a take would be.
func (s *faultyStore) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	return s.call(ctx, false, func() error { return s.backend.refund(ctx, refunds) })
}

// Reset forgets counters.
func (s *faultyStore) Reset(ctx context.Context, counters []enforcer.Counter) error {
	return s.call(ctx, false, func() error { return s.backend.store.Reset(ctx, counters) })
}

// call does something to the store under its present condition. A call that counts may be one whose reply is lost.
func (s *faultyStore) call(ctx context.Context, counts bool, do func() error) error {
	state := s.state()
	if err := state.refuses(); err != nil {
		return err
	}
	lost := counts && state.loseReplies > 0
	if lost {
		state.loseReplies--
	}
	slow := state.slow
	err := do()
	if slow > 0 {
		if late := s.world.sleep(ctx, slow); late != nil {
			return late
		}
	}
	if lost {
		return errReset
	}
	return err
}

// Push is a write like a take.
func (s *faultyStore) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	var now int64
	err := s.call(ctx, true, func() (err error) {
		now, err = s.backend.push(ctx, pushes, answers)
		return err
	})
	return now, err
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
