package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	// claimEvery is how often the owner of the table says that it lives; another installation may take the table after
	// five minutes of silence.
	claimEvery = time.Minute
	// askEvery is how often somebody else's table is asked for its owner.
	askEvery = 10 * time.Second
	// restAfterFailure keeps a table that just failed from being asked by every pass anew.
	restAfterFailure = 2 * time.Second
)

// tableState says what can be done with the table.
type tableState int

const (
	// tableUnreachable: nothing is known of it now.
	tableUnreachable tableState = iota
	// tableOurs: it can be read and written.
	tableOurs
	// tableElsewhere: another installation owns it.
	tableElsewhere
	// tableNone: the controller runs without one.
	tableNone
)

// tableView is what one pass sees of the table. The zero value is an unreachable table.
type tableView struct {
	state     tableState
	published policy.Published
	// row is the row in the table; nil when there is none or when it cannot be read.
	row *policy.Row
	// newer says that the row is of a version, or has rules with needs, that this code does not know: it must not be
	// replaced.
	newer bool
	// evicts names the eviction policy of a store that may drop rows; empty when it drops none.
	evicts string
	// outage is how long the table has been unreachable.
	outage time.Duration
	// fault is why nothing is known of this workload while the table answers; nil in an outage of the whole table.
	fault error
}

// warning is what the owner of the store should change, as the end of a message.
func (t tableView) warning() string {
	if t.evicts == "" {
		return ""
	}
	return "; the store may drop rows to make room: its maxmemory-policy is " + t.evicts
}

// unreachable is what a status says of a table of which nothing is known, and what follows from it.
func (t tableView) unreachable(consequence string) (reason v1alpha1.ConditionReason, message string) {
	if t.fault == nil {
		return v1alpha1.ReasonStoreUnreachable, "The policy table does not answer" + consequence
	}
	message = fmt.Sprintf("The policy table fails over the keys of this workload%s: %v", consequence, t.fault)
	return v1alpha1.ReasonTableFault, firstBytes(message, maxFailure)
}

// hasTombstone says that the table tells enforcers that there are no limits.
func (t tableView) hasTombstone() bool { return t.row != nil && len(t.row.Rules) == 0 }

// ownership remembers who owns the table and whether it answers, so that passes need not ask each time. Its methods may
// be called concurrently.
type ownership struct {
	table        Table
	installation string
	metrics      *metrics
	log          logr.Logger
	clock        func() time.Time

	mu     sync.Mutex
	owner  string
	evicts string
	asked  time.Time // when owner was last learnt
	failed time.Time // when the table last failed; zero when it answered since
	down   time.Time // when it first failed; zero when it answered since
}

// check says what can be done with the table. When the table is ours, it says so to others about once a minute.
func (o *ownership) check(ctx context.Context, epoch string) (tableState, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock()
	if !o.failed.IsZero() && now.Before(o.failed.Add(restAfterFailure)) {
		return tableUnreachable, now.Sub(o.down)
	}
	every := claimEvery
	if o.owner != o.installation {
		every = askEvery
	}
	if o.asked.IsZero() || !now.Before(o.asked.Add(every)) {
		owner, err := o.table.Claim(ctx, epoch)
		if err != nil {
			return tableUnreachable, o.failLocked(fmt.Errorf("claiming the table: %w", err))
		}
		o.answeredLocked()
		if owner != o.owner {
			o.log.Info("Policy table has an owner", "owner", owner, "installation", o.installation)
		}
		o.owner, o.asked = owner, now
		owned := 0.0
		if owner == o.installation {
			owned = 1
		}
		o.metrics.tableOwned.Set(owned)
		o.askEviction(ctx)
	}
	if o.owner != o.installation {
		return tableElsewhere, 0
	}
	return tableOurs, 0
}

// askEviction learns whether the store may drop rows. One that does not say has not failed.
func (o *ownership) askEviction(ctx context.Context) {
	evicts, err := o.table.Evicts(ctx)
	if err != nil {
		o.log.V(1).Info("Store does not say whether it evicts", "error", err.Error())
	}
	if evicts != o.evicts && evicts != "" {
		o.log.Info("Store may drop rows to make room; set maxmemory-policy to noeviction", "maxmemory-policy", evicts)
	}
	o.evicts = evicts
	may := 0.0
	if evicts != "" {
		may = 1
	}
	o.metrics.tableEvicts.Set(may)
}

// eviction is the eviction policy that may drop rows, as it was learnt last.
func (o *ownership) eviction() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.evicts
}

// fail notes that the table did not answer, and says for how long it has not.
func (o *ownership) fail(err error) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failLocked(err)
}

func (o *ownership) failLocked(err error) time.Duration {
	if errors.Is(err, context.Canceled) {
		return 0 // this process ends
	}
	o.metrics.tableFailures.Inc()
	now := o.clock()
	if o.down.IsZero() {
		o.down = now
		o.log.Error(err, "Policy table does not answer")
		o.metrics.tableUp.Set(0)
	}
	o.failed = now
	return now.Sub(o.down)
}

// answered notes that the table answers.
func (o *ownership) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answeredLocked()
}

func (o *ownership) answeredLocked() {
	if !o.down.IsZero() {
		o.log.Info("Policy table answers again")
	}
	o.failed, o.down = time.Time{}, time.Time{}
	o.metrics.tableUp.Set(1)
}

// doubt makes the next check ask.
func (o *ownership) doubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = time.Time{}
}

// back ends the rest after a failure: the connection came back.
func (o *ownership) back() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed, o.asked = time.Time{}, time.Time{}
}
