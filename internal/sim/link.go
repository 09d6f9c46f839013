package sim

import (
	"context"
	"errors"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
)

// server is the shared store: what it holds can be lost.
type server struct {
	clock    *clock
	counters *memstore.Store
	table    *table
	up       bool
	// started counts its lives: connections do not outlive one.
	started int
	saved   *saved // nil before the first
}

// saved is what a server wrote down, or what a replica of it had heard: after a failover it is all that is left.
type saved struct {
	counters *memstore.Store
	table    *table
}

func newServer(c *clock) *server {
	s := &server{clock: c, up: true}
	s.lose()
	return s
}

// lose empties the server.
func (s *server) lose() {
	s.counters = memstore.New(memstore.Options{MaxKeys: 4096, Clock: func() int64 { return s.clock.now }})
	s.table = newTable(s.clock)
}

func (s *server) stop() { s.up = false; s.started++ }

// save keeps what is there now for a start that goes back to it.
func (s *server) save() { s.saved = &saved{s.counters.Copy(), s.table.copy()} }

// memory is what a server that starts remembers.
type memory string

const (
	everything memory = "everything"
	nothing    memory = "nothing"
	older      memory = "what was saved"
)

func (s *server) start(with memory) {
	s.up = true
	switch with {
	case everything:
	case nothing:
		s.lose()
	case older:
		s.counters, s.table = s.saved.counters.Copy(), s.saved.table.copy()
	}
}

// link is one process's way to the server.
type link struct {
	clock  *clock
	server *server
	// cut: nothing comes through, and nobody says so. lossy: some replies are lost. slow: some take long.
	cut, lossy, slow bool
	connected        int // the server's life in which the connection was made
	lost             int // replies
	prompt           bool
}

var _ enforcer.Prompt = (*link)(nil)

func (l *link) Prompt() bool { return l.prompt }

func failure(r enforcer.Reason, text string) error {
	return &enforcer.StoreError{Reason: r, Err: errors.New(text)}
}

// call does something at the server, if it gets there, and says whether its reply came back.
func (l *link) call(ctx context.Context, do func()) error {
	switch {
	case l.cut:
		return l.silence(ctx)
	case !l.server.up:
		return failure(enforcer.ReasonRefused, "connection refused")
	case l.connected != l.server.started:
		l.connected = l.server.started
		return failure(enforcer.ReasonReset, "connection reset")
	}
	life := l.server.started
	if l.slow && l.clock.random.IntN(8) == 0 {
		if err := l.clock.sleep(ctx, time.Duration(l.clock.random.IntN(15))*time.Millisecond); err != nil {
			return err
		}
		if l.server.started != life {
			return failure(enforcer.ReasonReset, "connection reset")
		}
	}
	do()
	if l.lossy && l.clock.random.IntN(10) == 0 {
		l.lost++
		return l.silence(ctx)
	}
	if l.slow && l.clock.random.IntN(8) == 0 {
		if err := l.clock.sleep(ctx, time.Duration(l.clock.random.IntN(15))*time.Millisecond); err != nil {
			l.lost++
			return err
		}
		if l.server.started != life {
			l.lost++
			return failure(enforcer.ReasonReset, "connection reset")
		}
	}
	return nil
}

func (l *link) silence(ctx context.Context) error {
	if err := l.clock.sleep(ctx, time.Hour); err != nil {
		return err
	}
	return failure(enforcer.ReasonTimeout, "nothing came back")
}

// Take is the server's, over the link. So are Refund, Reset and Push.
func (l *link) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (now int64, err error) {
	failed := l.call(ctx, func() { now, err = l.server.counters.Take(ctx, entries, answers) })
	if failed != nil {
		return 0, failed
	}
	return now, err
}

func (l *link) Refund(ctx context.Context, refunds []enforcer.Refund) (err error) {
	if failed := l.call(ctx, func() { err = l.server.counters.Refund(ctx, refunds) }); failed != nil {
		l.lost++ // whatever became of it
		return failed
	}
	return err
}

func (l *link) Reset(ctx context.Context, counters []enforcer.Counter) (err error) {
	if failed := l.call(ctx, func() { err = l.server.counters.Reset(ctx, counters) }); failed != nil {
		return failed
	}
	return err
}

func (l *link) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (now int64, err error) {
	lost := l.lost
	failed := l.call(ctx, func() { now, err = l.server.counters.Push(ctx, pushes, answers) })
	l.lost = lost // it is sent again, and does no harm
	if failed != nil {
		return 0, failed
	}
	return now, err
}
