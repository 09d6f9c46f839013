// Package model is a reference for package algorithm: the four algorithms as
// their definitions say them, in exact rationals. It is for tests, of the pure
// functions and of the stores; it is a thousand times slower than what it checks.
//
// It shares no arithmetic with package algorithm, only the types of its
// questions and answers. A counter here is not a few integers but the charges
// themselves, and what they weigh is summed anew at every question. A wait is not
// computed at all: it is the first instant at which the answer would be another
// one, found by bisection or, in [Model.Check], proved from both sides.
package model

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Model is one counter. Times are µs, as in package algorithm. It is not safe for
// concurrent use.
type Model struct {
	limit   algorithm.Limit
	charges []charge // all algorithms but TokenBucket, oldest first
	debt    *big.Rat // TokenBucket: tokens missing at the time last
	last    int64    // the date of the state
}

type charge struct{ at, cost int64 }

// New returns an untouched counter.
func New(limit algorithm.Limit) *Model {
	return &Model{limit: limit, debt: new(big.Rat)}
}

// SetLimit changes the numbers of the limit. Algorithm and window must stay.
func (m *Model) SetLimit(limit algorithm.Limit) { m.limit = limit }

// Admits reports whether the cost fits at now.
func (m *Model) Admits(now, cost int64) bool {
	return m.rebased(now).admits(now, cost)
}

// Take charges the cost if it fits, and reports whether it did.
func (m *Model) Take(now, cost int64) bool {
	if !m.Admits(now, cost) {
		return false
	}
	m.Charge(now, cost)
	return true
}

// Charge charges the cost without asking.
func (m *Model) Charge(now, cost int64) {
	if cost == 0 {
		return
	}
	m.age(now)
	t := m.judgedAt(now)
	most := big.NewRat(algorithm.MaxDebit, 1)
	if m.limit.Algorithm == algorithm.TokenBucket {
		m.debt = least(new(big.Rat).Add(m.used(t), integer(cost)), most)
		m.last = t
		return
	}
	counted := new(big.Rat) // what counts towards the most that a state can hold
	for _, c := range m.charges {
		if m.limit.Algorithm == algorithm.SlidingWindowLog || m.window(c.at) == m.window(t) {
			counted.Add(counted, integer(c.cost))
		}
	}
	cost = floor(least(integer(cost), counted.Sub(most, counted)))
	if cost == 0 {
		return
	}
	m.charges = append(m.charges, charge{at: t, cost: cost})
	m.last = m.date(t)
}

// Refund gives back what still weighs of a cost charged at the time taken: of a
// bucket, as if everything drained since had been drained from this charge.
func (m *Model) Refund(now, taken, cost int64) {
	if cost == 0 {
		return
	}
	cost = min(cost, algorithm.MaxDebit) // no charge weighs more
	if m.limit.Algorithm == algorithm.TokenBucket {
		m.age(now)
		t := m.judgedAt(now)
		weighs := integer(cost)
		if t > taken {
			weighs.Sub(weighs, m.rate(t-taken))
		}
		m.debt = positive(new(big.Rat).Sub(m.used(t), positive(weighs)))
		m.last = t
		m.age(now)
		return
	}
	for i := range m.charges {
		same := m.charges[i].at == taken
		if m.limit.Algorithm != algorithm.SlidingWindowLog {
			same = m.window(m.charges[i].at) == m.window(taken)
		}
		if same {
			back := min(cost, m.charges[i].cost)
			m.charges[i].cost -= back
			cost -= back
		}
	}
	m.charges = slices.DeleteFunc(m.charges, func(c charge) bool { return c.cost == 0 })
	n := len(m.charges)
	if n > 0 && m.limit.Algorithm == algorithm.SlidingWindowLog {
		m.last = m.charges[n-1].at // a log is dated by what is left of it
	}
	m.age(now)
	if len(m.charges) > 0 && m.limit.Algorithm != algorithm.SlidingWindowLog {
		m.last = m.date(m.judgedAt(now))
	}
}

// Rebase dates a state that is more than one window ahead of now to now.
func (m *Model) Rebase(now int64) {
	if m.last-now > m.limit.Window {
		m.age(now)
	}
}

// Remaining is the highest cost that fits at now.
func (m *Model) Remaining(now int64) int64 {
	r := m.rebased(now)
	if m.limit.Requests == 0 {
		return 0
	}
	room := integer(r.capacity())
	return floor(positive(room.Sub(room, r.used(r.judgedAt(now)))))
}

// RetryAfter is the first d at which the cost would fit at now + d, by bisection.
func (m *Model) RetryAfter(now, cost int64) int64 {
	if cost > m.capacity() || m.limit.Requests == 0 && cost > 0 {
		return algorithm.MaxWait
	}
	r := m.rebased(now)
	return first(func(d int64) bool { return r.admits(now+d, cost) })
}

// ResetAfter is the first d at which nothing would weigh at now + d, by bisection.
func (m *Model) ResetAfter(now int64) int64 {
	r := m.rebased(now)
	return first(func(d int64) bool { return r.full(now + d) })
}

// Look answers as [algorithm.Limit.Look] has to.
func (m *Model) Look(now, cost int64) algorithm.Result {
	allowed := m.Admits(now, cost)
	return algorithm.Result{
		Allowed:     allowed,
		Satisfiable: allowed || m.limit.Requests > 0 && cost <= m.capacity(),
		Remaining:   m.Remaining(now),
		RetryAfter:  m.RetryAfter(now, cost),
		ResetAfter:  m.ResetAfter(now),
		At:          m.rebased(now).judgedAt(now),
	}
}

// Check reports how the answer differs from the definition, nil if it does not. It
// says the same as comparing with Look and is many times faster, because it asks
// only on both sides of each wait.
//
// The result of an admitted Take is the answer to a peek after its charge.
func (m *Model) Check(now, cost int64, got algorithm.Result) error {
	r := m.rebased(now)
	allowed := r.admits(now, cost)
	satisfiable := allowed || m.limit.Requests > 0 && cost <= m.capacity()
	switch {
	case got.Allowed != allowed:
		return fmt.Errorf("allowed is %t, want %t", got.Allowed, allowed)
	case got.Satisfiable != satisfiable:
		return fmt.Errorf("satisfiable is %t, want %t", got.Satisfiable, satisfiable)
	case got.Remaining != m.Remaining(now):
		return fmt.Errorf("remaining is %d, want %d", got.Remaining, m.Remaining(now))
	case got.At != r.judgedAt(now):
		return fmt.Errorf("judged at %d, want %d", got.At, r.judgedAt(now))
	}
	admits := func(d int64) bool { return r.admits(now+d, cost) }
	if !satisfiable {
		admits = func(int64) bool { return false }
	}
	if !isFirst(got.RetryAfter, admits) {
		return fmt.Errorf("retry after %d, want %d", got.RetryAfter, m.RetryAfter(now, cost))
	}
	if !isFirst(got.ResetAfter, func(d int64) bool { return r.full(now + d) }) {
		return fmt.Errorf("reset after %d, want %d", got.ResetAfter, m.ResetAfter(now))
	}
	return nil
}

// admits is the definition: what is used and the cost are at most the capacity.
func (m *Model) admits(now, cost int64) bool {
	if cost == 0 {
		return true
	}
	if m.limit.Requests == 0 {
		return false
	}
	sum := m.used(m.judgedAt(now))
	return sum.Add(sum, integer(cost)).Cmp(integer(m.capacity())) <= 0
}

func (m *Model) full(now int64) bool {
	return m.used(m.judgedAt(now)).Sign() == 0
}

func (m *Model) capacity() int64 {
	if m.limit.Algorithm == algorithm.TokenBucket && m.limit.Burst != 0 {
		return m.limit.Burst
	}
	return m.limit.Requests
}

// used is what weighs at t.
func (m *Model) used(t int64) *big.Rat {
	if m.limit.Algorithm == algorithm.TokenBucket {
		return positive(new(big.Rat).Sub(m.debt, m.rate(t-m.last)))
	}
	sum := new(big.Rat)
	for _, c := range m.charges {
		sum.Add(sum, m.weight(c, t))
	}
	return sum
}

// weight is what one charge weighs at t.
func (m *Model) weight(c charge, t int64) *big.Rat {
	age, windows := t-c.at, m.window(t)-m.window(c.at)
	switch {
	case m.limit.Algorithm == algorithm.FixedWindow && windows == 0,
		m.limit.Algorithm == algorithm.SlidingWindowCounter && windows == 0,
		m.limit.Algorithm == algorithm.SlidingWindowLog && age < m.limit.Window:
		return integer(c.cost)
	case m.limit.Algorithm == algorithm.SlidingWindowCounter && windows == 1:
		elapsed := big.NewRat(t-m.window(t)*m.limit.Window, m.limit.Window)
		elapsed.Sub(integer(1), elapsed)
		return elapsed.Mul(elapsed, integer(c.cost))
	default:
		return new(big.Rat)
	}
}

// rate is what a bucket earns in d.
func (m *Model) rate(d int64) *big.Rat {
	if d <= 0 {
		return new(big.Rat)
	}
	earned := big.NewRat(d, m.limit.Window)
	return earned.Mul(earned, integer(m.limit.Requests))
}

// window is the index of the window of t, rounded down below zero as well: a
// rebase can move the window before to one before the epoch.
func (m *Model) window(t int64) int64 {
	index := t / m.limit.Window
	if t%m.limit.Window < 0 {
		index--
	}
	return index
}

// date is the date of a state charged at t: windows know only their start.
func (m *Model) date(t int64) int64 {
	switch m.limit.Algorithm {
	case algorithm.FixedWindow, algorithm.SlidingWindowCounter:
		return m.window(t) * m.limit.Window
	default:
		return t
	}
}

// judgedAt is the time at which a request at now is judged.
func (m *Model) judgedAt(now int64) int64 {
	if m.last > now && m.last <= now+m.limit.Window {
		return m.last
	}
	return now
}

// rebased returns the counter as it is judged at now: itself, unless it is dated
// more than one window ahead.
func (m *Model) rebased(now int64) *Model {
	if m.last <= now+m.limit.Window {
		return m
	}
	r := &Model{limit: m.limit, debt: m.debt, charges: slices.Clone(m.charges), last: m.last}
	r.age(now)
	return r
}

// age rebases a state that is too far ahead, and forgets what no longer weighs.
func (m *Model) age(now int64) {
	if m.last > now+m.limit.Window {
		m.moveTo(now)
	}
	t := m.judgedAt(now)
	if m.used(t).Sign() == 0 {
		m.charges, m.debt, m.last = nil, new(big.Rat), 0
		return
	}
	m.charges = slices.DeleteFunc(m.charges, func(c charge) bool { return m.weight(c, t).Sign() == 0 })
}

// moveTo dates the state to now and keeps what weighed at its own date.
func (m *Model) moveTo(now int64) {
	switch m.limit.Algorithm {
	case algorithm.TokenBucket:
	case algorithm.SlidingWindowLog:
		m.charges = []charge{{at: now, cost: floor(m.used(m.last))}}
	default:
		back := m.last - m.date(now)
		for i := range m.charges {
			m.charges[i].at -= back
		}
	}
	m.last = m.date(now)
}
