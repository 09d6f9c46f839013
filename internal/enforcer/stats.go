package enforcer

import (
	"sync"
	"sync/atomic"

	"github.com/weir-dev/weir/internal/policy"
)

// Outcome is what a decision was, and by whom, as metrics count it.
type Outcome uint8

// The outcomes of a rule's decisions.
const (
	StoreAdmitted Outcome = iota
	StoreDenied
	LeaseAdmitted   // no store was asked: it had charged the request before
	PrefilterDenied // no store was asked: this replica has let pass as much as it may
	CacheDenied     // no store was asked: it had denied before, the limit is 0, or the cost is above the capacity
	ShareAdmitted
	ShareDenied
	FailOpenAdmitted
	FailClosedDenied
	KeyMissingDenied
	UnlimitedAdmitted
	ShadowAdmitted // what a shadow rule would have done
	ShadowDenied
	outcomes
)

// Outcomes lists all outcomes of a rule.
func Outcomes() []Outcome {
	all := make([]Outcome, outcomes)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

// Names gives the outcome's result and source.
func (o Outcome) Names() (result, source string) {
	switch o {
	case StoreAdmitted:
		return "admitted", SourceStore
	case StoreDenied:
		return "denied", SourceStore
	case LeaseAdmitted:
		return "admitted", SourceLease
	case PrefilterDenied:
		return "denied", SourcePrefilter
	case CacheDenied:
		return "denied", SourceDenyCache
	case ShareAdmitted:
		return "admitted", SourceLocalShare
	case ShareDenied:
		return "denied", SourceLocalShare
	case FailOpenAdmitted:
		return "admitted", SourceFailOpen
	case FailClosedDenied:
		return "denied", SourceFailClosed
	case KeyMissingDenied:
		return "denied", SourceKeyMissing
	case UnlimitedAdmitted:
		return "admitted", SourceExempt
	case ShadowAdmitted:
		return "admitted", "Shadow"
	default:
		return "denied", "Shadow"
	}
}

// tallies keeps the counts of rules over revisions. Rules that are no longer in force are dropped.
type tallies struct {
	mu     sync.Mutex
	rules  map[ruleName]*tally
	gone   uint64 // decisions of rules that were dropped
	serial uint64
}

// next numbers snapshots.
func (t *tallies) next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial++
	return t.serial
}

type ruleName struct{ policy, rule string }

func (t *tallies) of(policy, name string) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := ruleName{policy, name}
	found, ok := t.rules[key]
	if !ok {
		if t.rules == nil {
			t.rules = make(map[ruleName]*tally)
		}
		found = new(tally)
		t.rules[key] = found
	}
	return found
}

// keep drops the counts of rules that are not in s.
func (t *tallies) keep(s *snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live := make(map[ruleName]bool, len(s.rules))
	for i := range s.rules {
		live[ruleName{s.rules[i].policy, s.rules[i].name}] = true
	}
	for name := range t.rules {
		if !live[name] {
			t.gone += t.rules[name].enforced()
			delete(t.rules, name)
		}
	}
}

// decided counts the requests that rules decided.
func (t *tallies) decided() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.gone
	for _, rule := range t.rules {
		sum += rule.enforced()
	}
	return sum
}

// General is the outcome of a decision without a rule.
type General uint8

// The outcomes of decisions without a rule.
const (
	NoRule General = iota
	Exempt
	NoPolicyOpen
	NoPolicyClosed
	Canceled
	generals
)

// Generals lists all outcomes without a rule.
func Generals() []General {
	all := make([]General, generals)
	for i := range all {
		all[i] = General(i)
	}
	return all
}

// Names gives the outcome's result and source.
func (g General) Names() (result, source string) {
	switch g {
	case NoRule:
		return "admitted", SourceNoRule
	case Exempt:
		return "admitted", SourceExempt
	case NoPolicyOpen:
		return "admitted", SourceFailOpen
	case NoPolicyClosed:
		return "denied", SourceFailClosed
	default:
		return "denied", SourceCanceled
	}
}

// Late is what became of a caller who had been answered, or was gone, before the store's answer came.
type Late uint8

// What becomes of late answers.
const (
	LateUsed     Late = iota // admitted locally, and the store granted it
	LateRefunded             // denied locally or gone, and the store granted it
	LateDenied               // the store denied it
	LateLost                 // the store's answer never came, or the batch failed
	lates
)

// Lates lists all kinds of late replies.
func Lates() []Late { return []Late{LateUsed, LateRefunded, LateDenied, LateLost} }

func (l Late) String() string {
	return [...]string{LateUsed: "used", LateRefunded: "refunded", LateDenied: "denied", LateLost: "lost"}[l]
}

// LeaseEnd is what became of requests that the store charged before anybody made them.
type LeaseEnd uint8

// What becomes of leased requests. Those that are neither returned nor dropped are decisions of the source Lease, or
// still held.
const (
	LeaseTaken    LeaseEnd = iota
	LeaseReturned          // not used in time, and given back to the store
	LeaseDropped           // not used, and not given back: the store may have lost what it charged, or was reset
	leaseEnds
)

// LeaseEnds lists all of them.
func LeaseEnds() []LeaseEnd { return []LeaseEnd{LeaseTaken, LeaseReturned, LeaseDropped} }

func (l LeaseEnd) String() string {
	return [...]string{LeaseTaken: "taken", LeaseReturned: "returned", LeaseDropped: "dropped"}[l]
}

// RowProblem is why a read of the table changed nothing.
type RowProblem uint8

// The problems of rows.
const (
	RowCorrupt RowProblem = iota
	RowNewer              // a version of the encoding that this library does not know
	RowOlder              // a lower revision than the one in force
	RowMissing
	rowProblems
)

// RowProblems lists all kinds.
func RowProblems() []RowProblem { return []RowProblem{RowCorrupt, RowNewer, RowOlder, RowMissing} }

func (p RowProblem) String() string {
	return [...]string{RowCorrupt: "corrupt", RowNewer: "newer_version", RowOlder: "lower_revision", RowMissing: "missing"}[p]
}

// counts is everything that an Enforcer counts beside its rules.
type counts struct {
	general  [generals]atomic.Uint64
	late     [lates]atomic.Uint64
	leased   [leaseEnds]atomic.Uint64
	problems [rowProblems]atomic.Uint64
	files    [rowSources][snapshotProblems]atomic.Uint64
	failures [len(reasons)]atomic.Uint64
	opened   atomic.Uint64
	// suspicions of a store that lost charges, and counters that it was told of.
	suspicions atomic.Uint64
	pushed     atomic.Uint64
	polls      atomic.Uint64 // failed reads of the table
	// disbelieved counts the requests whose peer may have been a proxy that nobody named.
	disbelieved atomic.Uint64
}

func (c *counts) fail(reason Reason) {
	for i, known := range reasons {
		if known == reason {
			c.failures[i].Add(1)
			return
		}
	}
	c.failures[len(reasons)-1].Add(1)
}

// Figures is what an Enforcer counted since it was made, and how it stands.
type Figures struct {
	Rules        []RuleFigures
	General      [generals]uint64
	Late         [lates]uint64
	Leased       [leaseEnds]uint64
	Problems     [rowProblems]uint64
	Files        [rowSources][snapshotProblems]uint64
	Failures     map[Reason]uint64
	FailedPolls  uint64
	Revision     policy.Revision // zero while no row is in force
	Source       RowSource       // of the row in force
	Skipped      int
	BreakerOpen  bool
	BreakerTrips uint64
	// Fallback is the time in seconds for which the breaker was open.
	Fallback float64
	// Suspicions counts how often the store may have lost charges, and Pushed the counters that it was told of since.
	Suspicions, Pushed uint64
	// Disbelieved counts the requests whose X-Forwarded-For was not read, although their peer's address is a private one.
	Disbelieved uint64
	// Guarded says that store and local share must both admit, because requests were decided without the store a moment ago.
	Guarded bool
	// TableAge is the time since the table was last read, in seconds; since the start when it never was.
	TableAge float64
	// Owned is false when the last read found a table that no controller ever wrote to.
	Owned    bool
	Replicas int
}

// RuleFigures is what one rule in force decided.
type RuleFigures struct {
	Policy, Rule string
	Decisions    [outcomes]uint64
	KeyMissing   uint64
	// Unmatched counts the requests that were decided since the rule has the match that it has, while none matched it.
	Unmatched uint64
	Limits    []LimitFigures
}

// LimitFigures is one limit in force.
type LimitFigures struct {
	Limit policy.RowLimit
	// Share is what this replica would admit of it in its window now if the store were away, by one key; 0 unless the
	// rule falls back to local shares. Shares of other keys may be one more or less.
	Share float64
}

// Figures reads all counts.
func (e *Enforcer) Figures() Figures {
	f := Figures{Failures: make(map[Reason]uint64, len(reasons))}
	if s := e.snapshot.Load(); s != nil {
		f.Revision, f.Source, f.Skipped = s.revision, s.source, s.skipped
		decided := e.served()
		for i := range s.rules {
			r := &s.rules[i]
			figures := RuleFigures{Policy: r.policy, Rule: r.name, KeyMissing: r.tally.missing.Load(), Unmatched: r.unmatched(decided)}
			for o := range figures.Decisions {
				figures.Decisions[o] = r.tally.count(Outcome(o))
			}
			for j := range r.limits {
				figures.Limits = append(figures.Limits, e.limitFigures(r, &r.limits[j]))
			}
			f.Rules = append(f.Rules, figures)
		}
	}
	for i := range f.General {
		f.General[i] = e.counts.general[i].Load()
	}
	for i := range f.Late {
		f.Late[i] = e.counts.late[i].Load()
	}
	for i := range f.Leased {
		f.Leased[i] = e.counts.leased[i].Load()
	}
	for i := range f.Problems {
		f.Problems[i] = e.counts.problems[i].Load()
	}
	for i := range f.Files {
		for j := range f.Files[i] {
			f.Files[i][j] = e.counts.files[i][j].Load()
		}
	}
	for i, reason := range reasons {
		f.Failures[reason] = e.counts.failures[i].Load()
	}
	f.FailedPolls = e.counts.polls.Load()
	f.BreakerOpen, f.BreakerTrips = e.breaker.open.Load(), e.counts.opened.Load()
	f.Fallback = float64(e.breaker.openFor(e.clock.monotonic())) / 1e6
	f.Suspicions, f.Pushed = e.counts.suspicions.Load(), e.counts.pushed.Load()
	f.Disbelieved = e.counts.disbelieved.Load()
	f.Guarded = e.guarding()
	f.Owned = e.owned.Load()
	f.Replicas = max(1, e.place().N)
	f.TableAge = float64(e.clock.monotonic()-e.lastRead.Load()) / 1e6
	return f
}

func (e *Enforcer) limitFigures(r *rule, l *limit) LimitFigures {
	f := LimitFigures{Limit: l.row}
	if r.onFailure == policy.OnStoreFailureLocalShare {
		share := e.shareOf(origin{r, l}, Identity{})
		f.Share = float64(share.Requests) * float64(l.row.Window) / float64(share.Limit.Window)
	}
	return f
}
