// Package enforcer owns the decision: which rules apply to a request, who it is counted for, what the store says of
// it, and who answers when the store cannot.
package enforcer

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// Identity is the hash of the parts that a rule counts by. No part of a request appears in it.
type Identity [16]byte

// turn is what turns the ranks of replicas for this identity, so that not the same replica is the richer one for all.
func (id Identity) turn() uint64 { return binary.BigEndian.Uint64(id[:8]) }

// Counter names one (rule, limit, identity) and how it counts. The numbers travel with every take, so that a store
// needs to know no policy.
type Counter struct {
	Identity Identity
	// ID is policy.RowLimit.ID.
	ID    string
	Limit algorithm.Limit
	// Cost of one request, at least 1. It stands with the counter because rules that apply to the same request may
	// read their costs from different attributes.
	Cost int64
}

// Entry is a take by N equal callers: each of them wants every counter's Cost.
type Entry struct {
	// Counters holds the enforced counters first; they are charged all or none. Those behind Enforced belong to
	// shadow rules, which end at the indices that Shadow lists: Counters[Enforced:Shadow[0]] is the first. An entry
	// may have no enforced counters: then all N are granted.
	Counters []Counter
	Enforced int
	Shadow   []int
	// N is the number of callers, 0 for a peek: nothing is charged, and the results say what one caller would meet.
	N int64
}

// Answer is what the store said to an Entry. Granted of its N callers are admitted, first come first served. Results
// has one item for each of the entry's counters, as it stands after the charges; Allowed says whether one more caller
// would be admitted by it, and RetryAfter when.
//
// Caller i < Granted has Remaining + (Granted-1-i)*Cost left; the others Remaining and the longest RetryAfter.
type Answer struct {
	Granted int64
	// Shadow has one item for each of the entry's shadow rules: how many of the Granted callers it charged, which are
	// the first ones. The rest of them it would have denied.
	Shadow  []int64
	Results []algorithm.Result
	// Err is set when this entry could not be answered although the batch was: a slot of a cluster that failed.
	Err error
}

// Refund gives back the Cost of each counter for N callers who got nothing for it. Taken is the store's time of the
// charge in µs: only what still weighs is given back.
type Refund struct {
	Counters []Counter
	N        int64
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

// Prompt is a Store whose Take returns when its context's deadline has passed, whatever its server does. It is asked by
// a caller himself when no other is under way, which saves what it takes to hand over to another goroutine and back.
type Prompt interface {
	Store
	Prompt() bool
}

// GivesBack is a Store that gives back by itself what it charged too much, so that a counter may have room again before
// the time that it told.
type GivesBack interface {
	Store
	GivesBack() bool
}

// StoreError is a failure of a store whose kind is known. Stores return it, wrapped or not; any other error counts as
// ReasonOther, a deadline as ReasonTimeout.
type StoreError struct {
	Reason Reason
	Err    error
}

func (e *StoreError) Error() string { return string(e.Reason) + ": " + e.Err.Error() }
func (e *StoreError) Unwrap() error { return e.Err }

// Reason is the kind of a store's failure, as metrics name it.
type Reason string

// The reasons of failures.
const (
	ReasonRefused   Reason = "refused"   // nobody listens, or the host is unreachable
	ReasonReset     Reason = "reset"     // the connection ended before the answer came
	ReasonTimeout   Reason = "timeout"   // no answer in time
	ReasonDNS       Reason = "dns"       // the name does not resolve
	ReasonTLS       Reason = "tls"       // the certificate or the handshake
	ReasonAuth      Reason = "auth"      // credentials or permissions: NOAUTH, WRONGPASS, NOPERM
	ReasonReadOnly  Reason = "readonly"  // a replica answered
	ReasonLoading   Reason = "loading"   // the server is not ready: LOADING, MASTERDOWN, BUSY
	ReasonMoved     Reason = "moved"     // MOVED, ASK, TRYAGAIN, CLUSTERDOWN
	ReasonCrossSlot Reason = "crossslot" // keys of more than one slot in one script
	ReasonMemory    Reason = "memory"    // OOM: the server takes no writes
	ReasonNoScript  Reason = "noscript"  // the script is not there, even after it was loaded
	ReasonScript    Reason = "script"    // the script failed
	ReasonReply     Reason = "reply"     // an answer of the wrong shape, or none
	ReasonState     Reason = "state"     // a counter of a newer format
	ReasonClients   Reason = "clients"   // no connection to be had: the server's limit or the pool's
	ReasonFull      Reason = "full"      // too many requests were waiting already: this one was never sent
	ReasonOther     Reason = "other"
)

var reasons = [...]Reason{
	ReasonRefused, ReasonReset, ReasonTimeout, ReasonDNS, ReasonTLS, ReasonAuth, ReasonReadOnly, ReasonLoading,
	ReasonMoved, ReasonCrossSlot, ReasonMemory, ReasonNoScript, ReasonScript, ReasonReply, ReasonState, ReasonClients,
	ReasonFull, ReasonOther,
}

// reasonOf tells the kind of a store's failure.
func reasonOf(err error) Reason {
	var known *StoreError
	switch {
	case errors.As(err, &known):
		return known.Reason
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ReasonTimeout
	}
	return ReasonOther
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
	// New says that the store did not know this member before.
	New bool
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

// DenialTable is a Table that also keeps whom an enforcer denied most of late, for people who look.
type DenialTable interface {
	Table
	// ReportDenied replaces what the member reported before. It is forgotten when the member has not been heard for three
	// polls.
	ReportDenied(ctx context.Context, member string, report policy.DeniedReport, poll time.Duration) error
}
