package scenario

import (
	"context"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// table is the policy table in the store: what the controller wrote, and who reports to it.
type table struct {
	world    *world
	row      []byte
	replicas []byte
	members  []member // in the order in which they joined
	version  int64
	// askedForRow says that an enforcer missed its row.
	askedForRow bool
}

type member struct {
	report policy.Report
	heard  int64
	stale  int64 // when it is no longer live
}

// empty loses all of it. The version goes on, as it does from the clock of a real store.
func (t *table) empty() {
	t.row, t.replicas, t.members = nil, nil, nil
	t.version++
}

// expire drops members that have not been heard of.
func (t *table) expire() {
	before := len(t.members)
	t.members = slices.DeleteFunc(t.members, func(m member) bool { return t.world.now > m.stale })
	if len(t.members) != before {
		t.version++
	}
}

// reports are those of the live members.
func (t *table) reports() []policy.Report {
	t.expire()
	reports := make([]policy.Report, len(t.members))
	for i, m := range t.members {
		reports[i] = m.report
	}
	return reports
}

func (t *table) heartbeat(report policy.Report, poll time.Duration) enforcer.Standing {
	t.expire()
	now := t.world.now
	m := member{report: report, heard: now, stale: now + 3*poll.Microseconds()}
	rank := slices.IndexFunc(t.members, func(m member) bool { return m.report.Member == report.Member })
	joins := rank < 0
	if joins {
		rank = len(t.members)
		t.members = append(t.members, m)
		t.version++
	} else {
		t.members[rank] = m
	}
	return enforcer.Standing{Rank: rank, Count: len(t.members), Version: t.version, Now: now, New: joins}
}

func (t *table) leave(name string) {
	before := len(t.members)
	t.members = slices.DeleteFunc(t.members, func(m member) bool { return m.report.Member == name })
	if len(t.members) != before {
		t.version++
	}
}

// tableView is the policy table as one replica sees it: through the faults of the store, and where the scenario has a
// snapshot, by the mounted file when the store does not answer.
type tableView struct {
	cluster *cluster
	state   func() *condition
}

var _ enforcer.Table = (*tableView)(nil)

// Read reads the table, or the mounted file.
func (v *tableView) Read(context.Context) (enforcer.TableState, error) {
	if v.state().down {
		if state, ok := v.cluster.mountedState(); ok {
			return state, nil
		}
		return enforcer.TableState{}, errDown
	}
	t := v.cluster.table
	return enforcer.TableState{Row: t.row, Replicas: t.replicas, Owner: owner}, nil
}

// Heartbeat is a write.
func (v *tableView) Heartbeat(_ context.Context, report policy.Report, poll time.Duration) (enforcer.Standing, error) {
	if err := v.state().refuses(); err != nil {
		return enforcer.Standing{}, err
	}
	data, err := policy.EncodeReport(report)
	if err != nil {
		return enforcer.Standing{}, err
	}
	if report, err = policy.DecodeReport(report.Member, data); err != nil {
		return enforcer.Standing{}, err
	}
	return v.cluster.table.heartbeat(report, poll), nil
}

// Leave is a write.
func (v *tableView) Leave(_ context.Context, name string) error {
	if err := v.state().refuses(); err != nil {
		return err
	}
	v.cluster.table.leave(name)
	return nil
}

// Listen brings no hints: the run polls when there is something to hear.
func (v *tableView) Listen(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// AskForRow tells the controller.
func (v *tableView) AskForRow(context.Context) error {
	if err := v.state().refuses(); err != nil {
		return err
	}
	v.cluster.table.askedForRow = true
	return nil
}
