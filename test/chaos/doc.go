// Package chaos breaks what Weir depends on, one thing after the other, under five real processes and load, and compares
// what they admitted with the bounds of docs/outages.md. `make chaos` prints the table and writes results.json.
package chaos

// Record is one decision of a replica, as its process tells of it.
type Record struct {
	Key string
	// Began is when it was asked for, in µs since 1970 by the machine's clock, and Took how long it took, in ns.
	Began, Took int64
	Allowed     bool
	Source      string
	// Guarded says that the local share denied beside a store that came back a moment ago.
	Guarded bool
	// Limit, Remaining and Resets (µs) are the decision's; 0 when no limit decided.
	Limit, Remaining, Resets int64
}

// KeyNoise is the key of records that are none of decisions: Took is by how much a goroutine that did nothing but wait
// was woken too late.
const KeyNoise = "noise"

// Ended is when the decision was there, in µs since 1970.
func (r *Record) Ended() int64 { return r.Began + r.Took/1000 }

// State is who answers at a replica now.
type State struct {
	// Asks says that the store made the last decision that was not remembered from before.
	Asks bool
	// Limit is that of the last decision by a limit.
	Limit int64
	// Goroutines is how many the process has.
	Goroutines int
}
