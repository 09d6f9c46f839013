package enforcer

import (
	"context"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Pusher is a Store that can be told what was admitted without it, and what it has lost.
//
// A store that came back may have lost nothing, something or everything, and cannot tell. So each replica tells, for
// each of its counters, what it admitted itself and what still weighs of that. The sum over all replicas, which a round
// collects beside the counter, is what was really admitted. The counter holds the higher of the two: of what it
// remembered, with what it was not told, and of the sum.
type Pusher interface {
	// Push answers each push, in any order among them, and returns the store's time in µs. After an error nothing is
	// known of what was taken over; the same pushes may be sent again.
	Push(ctx context.Context, pushes []Push, answers []Pushed) (now int64, err error)
}

// Push is what one replica tells of one counter.
type Push struct {
	Identity Identity
	ID       string
	Limit    algorithm.Limit
	// Member is the replica, and Seq grows with every new push of it for this counter, so that a repeated one changes
	// nothing.
	Member string
	Seq    int64
	// Since is from when on (the store's time) the replica's use is counted. A reset after it voids the push.
	Since int64
	// Suspect says that the store may have lost charges since Round, the last round that the replica joined: it joins
	// a later one, or begins one.
	Suspect bool
	Round   int64
	// Untold was never charged to the store. Fresh is what the replica used since it last told the round, and Used all
	// of its own use that still weighs. States of buckets are whole debts as of the time of the push.
	Untold, Fresh, Used algorithm.State
}

// Pushed is the answer to a Push.
type Pushed struct {
	// Round is the one that the replica has joined, 0 if there is none.
	Round int64
	// Reset is when the counter was last reset, if that was after Since; then nothing of the push was taken over.
	Reset int64
	Err   error
}

// RoundLife (µs) is for how long replicas tell a round of what they use. A replica that comes back later begins a new
// one.
const RoundLife = 60_000_000

// AltID names the sum of what the replicas have told of a counter while a round is young: one more counter beside it.
func AltID(id string) string { return id + ".alt" }

// ToldID names what a store keeps beside a counter of who told it.
func ToldID(id string) string { return id + ".told" }

// Ledger is what a store keeps beside a counter: the open round, the last reset, and what was heard of each replica.
type Ledger struct {
	Round, Reset int64
	Seen         map[string]Seen
}

// Seen is the last push of a replica and the round that it joined.
type Seen struct{ Seq, Round int64 }

// Apply takes a push into a counter's state and the sum of the round, at the time now. It is the reference of what
// every Pusher does.
func (l *Ledger) Apply(p *Push, state, alt algorithm.State, now int64) (nextState, nextAlt algorithm.State, answer Pushed) {
	seen, known := l.Seen[p.Member]
	switch {
	case l.Reset > p.Since:
		return state, alt, Pushed{Reset: l.Reset}
	case known && seen.Seq >= p.Seq:
		return state, alt, Pushed{Round: seen.Round}
	}
	limit := p.Limit
	stale := l.Round > 0 && now-l.Round > 2*RoundLife
	if p.Suspect && (l.Round <= p.Round || stale) {
		l.Round = max(now, l.Round+1, p.Round+1)
		alt = algorithm.State{}
		known = false
	}
	state = limit.Add(state, p.Untold, now)
	if l.Round > 0 {
		if known && seen.Round == l.Round {
			alt = limit.Add(alt, p.Fresh, now)
		} else {
			alt = limit.Add(alt, p.Used, now)
		}
		state = limit.Max(state, alt, now)
	}
	if l.Seen == nil {
		l.Seen = make(map[string]Seen)
	}
	l.Seen[p.Member] = Seen{p.Seq, l.Round}
	return state, alt, Pushed{Round: l.Round}
}
