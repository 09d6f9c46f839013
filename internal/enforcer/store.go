// Package enforcer owns the decision: which rules apply to a request, who it is counted for, what the store says of
// it, and who answers when the store cannot.
package enforcer

import (
	"context"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// Identity is the hash of the parts that a rule counts by. No part of a request appears in it.
type Identity [16]byte

// Counter names one (rule, limit, identity) and how it counts. The numbers travel with every take, so that a store
// needs to know no policy.
type Counter struct {
	Identity Identity
	// ID is policy.RowLimit.ID.
	ID    string
	Limit algorithm.Limit
}

// Entry is a take by N equal callers: all of them want Cost from the same counters.
type Entry struct {
	// Counters holds the enforced counters first; they are charged all or none. Those behind Enforced belong to
	// shadow rules, which end at the indices that Shadow lists: Counters[Enforced:Shadow[0]] is the first.
	Counters []Counter
	Enforced int
	Shadow   []int
	// Cost of each caller, 0 for a peek: nothing is charged.
	Cost int64
	N    int64
}

// Answer is what the store said to an Entry. Granted of its N callers are admitted, first come first served. Results
// has one item for each of the entry's counters, as it stands after the charges; for an enforced counter Allowed says
// whether one more caller of that Cost would be admitted by it.
//
// Caller i < Granted has Remaining + (Granted-1-i)*Cost left; the others Remaining and the longest RetryAfter.
type Answer struct {
	Granted int64
	Results []algorithm.Result
	// Err is set when this entry could not be answered although the batch was: a slot of a cluster that failed.
	Err error
}

// Refund gives back what was charged to counters for a caller who got nothing for it. Taken is the store's time of the
// charge in µs: only what still weighs is given back.
type Refund struct {
	Counters []Counter
	Cost     int64
	Taken    int64
}

// Store holds counters. Implementations: memory, Redis, Postgres; storetest holds what they must satisfy.
type Store interface {
	// Take answers the entries in order, as if one after the other, and returns the store's time in µs. Each answer is
	// written to answers[i], reusing its Results. After an error nothing is known of what was charged.
	Take(ctx context.Context, entries []Entry, answers []Answer) (now int64, err error)
	// Refund is best effort and at most once.
	Refund(ctx context.Context, refunds []Refund) error
	// Reset forgets counters: their identities are full again.
	Reset(ctx context.Context, counters []Counter) error
}

// TableState is one read of what the controller published for this workload.
type TableState struct {
	// Row is the encoded row, nil when there is none.
	Row []byte
	// Replicas is the encoded policy.Replicas, nil when there is none.
	Replicas []byte
	// Owner is the installation that owns the table, empty when no controller ever wrote to it.
	Owner string
}

// Standing is this enforcer's place among the live members of its workload.
type Standing struct {
	Rank    int   // from 0, stable while nobody joins or leaves
	Count   int   // live members, this one included
	Version int64 // grows whenever the set of members changes
	Now     int64 // the store's time in µs
}

// Table is what an enforcer reads of the policy table and says to it. The poll is the truth, a message a hint.
type Table interface {
	Read(ctx context.Context) (TableState, error)
	// Heartbeat joins or stays; a member that has not been heard for three polls is no longer live.
	Heartbeat(ctx context.Context, report policy.Report, poll time.Duration) (Standing, error)
	Leave(ctx context.Context, member string) error
	// Listen calls hint whenever the workload's row or replicas changed, and when it reconnected, until ctx ends.
	Listen(ctx context.Context, hint func()) error
	// AskForRow tells the controller that this workload's row is missing.
	AskForRow(ctx context.Context) error
}
