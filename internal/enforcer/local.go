package enforcer

import (
	"context"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Share is what this replica admits on its own of one counter at one moment.
type Share struct {
	// Limit is the part of the counter's limit that is this replica's; its algorithm and its window may differ.
	Limit algorithm.Limit
	// Requests is how many of the Limit's requests count now: fewer while the replica is new.
	Requests int64
	// Informed says that all of them count, and a bucket need not begin empty, once the store has told this replica what
	// remains: then its part of that is known to be unspent.
	Informed bool
	// Version grows whenever the replica's place changes.
	Version int64
	// Steps is what a bucket went through, oldest first, Limit last; nil when nothing of it matters any more.
	Steps []ShareStep
	// EmptyAt is when (µs) a bucket that was never used was empty, 0 when it is full.
	EmptyAt int64
	// N is how many replicas share the limit. What a replica used of a bucket drains at its part of the rate.
	N int64
}

// ShareStep is a share that was in force from a time on (µs).
type ShareStep struct {
	From  int64
	Limit algorithm.Limit
}

// Local holds what this replica knows of each counter by itself: its own share, what it admitted, and what of that the
// store was never told. All times are the store's, in µs. memstore.Store is one.
type Local interface {
	// TakeShare answers an entry, whose counters have their whole limits, from the shares of its counters, one for
	// each. What it grants of the enforced counters the store has not been told.
	TakeShare(now int64, e *Entry, shares []Share, a *Answer)
	// Hold takes from the shares alone what a store is about to be asked for, all or nothing, and Release gives it
	// back. Note charges what the store then says.
	Hold(now int64, e *Entry, shares []Share, a *Answer)
	Release(now int64, e *Entry, a *Answer)
	// Note takes over what the store said of a counter, and says whether that proves that the store has lost charges. It
	// keeps nothing of the Note.
	Note(c *Counter, n *Note) (lost bool)
	// Admit notes a request that was admitted without the store and without a share.
	Admit(now int64, c *Counter, replicas int64)
	// Granted says that the store has charged now what TakeShare granted at the time taken.
	Granted(now int64, c *Counter, taken int64)

	// Return takes back an amount that Note charged at the time taken, for requests that were never made.
	Return(now int64, c *Counter, taken, amount, replicas int64)

	// Reset forgets counters: nothing was used of them.
	Reset(ctx context.Context, counters []Counter) error

	// Suspect has all counters told anew, Follow each charge told to the rounds that are joined, both until Trust.
	Suspect()
	Follow()
	Trust()
	// Untold appends up to limit pushes of what the store has not been told, beginning behind the counter where the
	// last call stopped; at the end there are none. A push that was made and not answered is the same again.
	Untold(now int64, cursor *Cursor, limit int, into []Push) []Push
	// Told takes over what the store answered to a push.
	Told(now int64, p *Push, r Pushed)
	// Dirty is true while there may be something untold, and Owes while something of a counter is that was used without
	// the store.
	Dirty() bool
	Owes(c *Counter) bool
}

// Cursor is a place among the counters of a Local. The zero value is the beginning.
type Cursor struct{ Shard, Slot int }

// Note is what the store said of one counter.
type Note struct {
	Share *Share // nil without a local share
	// Result is the store's after the charge, and Admitted what of the charge callers got.
	Result   algorithm.Result
	Admitted int64
	// Part is this replica's of what remains.
	Part int64
	// N is how many replicas share the limit.
	N int64
}

// OwnUse is the limit by which a replica's own use of a limit weighs. Of a bucket that n replicas share each drains its
// part of what is owed, so that together they owe no less than the bucket itself.
func OwnUse(l algorithm.Limit, n int64) algorithm.Limit {
	if l.Algorithm == algorithm.TokenBucket {
		l.Window *= max(n, 1)
	}
	return l
}
