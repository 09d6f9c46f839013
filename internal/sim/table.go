package sim

import (
	"context"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// table is the policy table of one workload, as a store holds it.
type table struct {
	clock    *clock
	row      []byte
	replicas []byte
	members  []member // by the time they joined
	version  int64
}

type member struct {
	name string
	dies int64 // when it is no longer live
}

func newTable(c *clock) *table { return &table{clock: c} }

func (t *table) copy() *table {
	to := *t
	to.members = slices.Clone(t.members)
	return &to
}

// expire drops members that were not heard for too long.
func (t *table) expire() {
	before := len(t.members)
	t.members = slices.DeleteFunc(t.members, func(m member) bool { return m.dies < t.clock.now })
	if len(t.members) != before {
		t.raise()
	}
}

func (t *table) raise() { t.version = max(t.version+1, t.clock.now) }

func (t *table) index(name string) int {
	return slices.IndexFunc(t.members, func(m member) bool { return m.name == name })
}

func (t *table) beat(name string, lifetime time.Duration) enforcer.Standing {
	t.expire()
	rank := t.index(name)
	joined := rank < 0
	if joined {
		rank = len(t.members)
		t.members = append(t.members, member{name: name})
		t.raise()
	}
	t.members[rank].dies = t.clock.now + lifetime.Microseconds()
	return enforcer.Standing{Rank: rank, Count: len(t.members), Version: t.version, Now: t.clock.now, New: joined}
}

func (t *table) leave(name string) {
	if i := t.index(name); i >= 0 {
		t.members = slices.Delete(t.members, i, i+1)
		t.raise()
	}
}

// view is a table over a link.
type view struct {
	link *link
	// spoil changes what heartbeats say, to see whether a wrong place is caught.
	spoil func(enforcer.Standing) enforcer.Standing
	asks  func()
}

// tableTimeout is how long a process waits for the table.
const tableTimeout = 2 * time.Second

// call is the link's, with a timeout in virtual time: that of a poll is in real time.
func (v *view) call(do func()) error {
	ctx, cancel := v.link.clock.WithTimeout(tableTimeout)
	defer cancel()
	return v.link.call(ctx, do)
}

func (v *view) Read(context.Context) (state enforcer.TableState, err error) {
	err = v.call(func() {
		t := v.link.server.table
		state = enforcer.TableState{Row: t.row, Replicas: t.replicas, Owner: "sim"}
	})
	return state, err
}

func (v *view) Heartbeat(_ context.Context, r policy.Report, poll time.Duration) (s enforcer.Standing, err error) {
	err = v.call(func() { s = v.link.server.table.beat(r.Member, 3*poll) })
	if err == nil && v.spoil != nil {
		s = v.spoil(s)
	}
	return s, err
}

func (v *view) Leave(_ context.Context, name string) error {
	return v.call(func() { v.link.server.table.leave(name) })
}

func (v *view) Listen(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

func (v *view) AskForRow(context.Context) error { return v.call(v.asks) }
