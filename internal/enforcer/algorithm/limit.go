// Package algorithm owns the arithmetic of the four rate limit algorithms: pure
// functions from a limit, a state, a time and a cost to a result and the next
// state. It reads no clock, keeps nothing and knows no keys.
//
// The memory store calls these functions; the Redis script and the SQL statement
// of the other stores must equal them on every input. For that reason every
// number here is an integer of at most 53 bits, except inside [MulDiv].
//
// # Time
//
// All times are µs since an epoch that the caller chooses (Unix, or the start of
// the process), 0 ≤ now < 2^53. Windows are aligned to that epoch.
//
// A clock can go back. A state that is dated up to one window ahead of now is
// judged at its own date, so that time which was already counted is not counted
// twice; the waits in a [Result] count from the true now all the same. A state
// that is dated further ahead was written before the clock was set: it is judged
// as if it were dated now and keeps what was used. See [Limit.Rebase] for who has
// to write that down.
//
// The date of a state is the time of its last charge (TokenBucket,
// SlidingWindowLog) or the start of its window (FixedWindow,
// SlidingWindowCounter). Those two hold no other time: a clock that goes back
// inside a window is not noticed, and does no harm to what they promise. Nothing
// weighs in the zero value, and it has no date.
//
// # Several limits
//
// A decision over several limits calls [Limit.Look] for each, and [Limit.Charge]
// for each only if all allowed it. Remaining is exactly what can be taken at this
// instant, in one piece or in many, so n equal requests of cost c can be decided
// at once: the first min(n, ⌊Remaining/c⌋) are admitted by one charge.
package algorithm

import "fmt"

const (
	// MaxWait (µs) is the longest wait that is told, 2^53 − 1 µs or 285 years.
	// Longer waits are told as MaxWait, and so is "never".
	MaxWait = 1<<53 - 1

	// Unlimited is the Remaining of a decision that no limit bounds; no limit has
	// as much.
	Unlimited = 1<<53 - 1

	// MaxDebit bounds what a state can hold. [Limit.Charge] charges without asking
	// and may go above the capacity, but never above MaxDebit.
	MaxDebit = 1 << 31

	// MaxLogEntries bounds the entries of a SlidingWindowLog, and is the highest
	// number of requests that such a limit may have.
	MaxLogEntries = 10_000
)

// Algorithm names a way to count. The zero value is TokenBucket. What they admit
// at worst, for 60 requests in 60 s:
//
//	TokenBucket           60 at once; 120 in 60 s, 180 in 120 s
//	FixedWindow           120 at once around the end of a window; 120 in 60 s
//	SlidingWindowCounter  60 at once; 119 in 60 s
//	SlidingWindowLog      60 at once; 60 in 60 s
type Algorithm uint8

var names = [...]string{
	TokenBucket:          "TokenBucket",
	FixedWindow:          "FixedWindow",
	SlidingWindowCounter: "SlidingWindowCounter",
	SlidingWindowLog:     "SlidingWindowLog",
}

// String returns the name as policies write it, such as "FixedWindow".
func (a Algorithm) String() string {
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// Parse returns the algorithm of that name, which must be spelled as String
// spells it. The empty name is refused: defaults are the policy's matter.
func Parse(name string) (Algorithm, error) {
	for a, known := range names {
		if name == known {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("unknown algorithm %q", name)
}

// Limit says how much is admitted. The zero value admits nothing.
//
// A changed Requests or Burst applies to an existing state at once, in both
// directions; a state must not be used with another Algorithm or Window.
type Limit struct {
	Algorithm Algorithm

	// Requests are admitted per Window: 0 to 1e9, for SlidingWindowLog at most
	// MaxLogEntries. 0 refuses everything.
	Requests int64

	// Window in µs, at least 1. Policies allow 1e5 (100 ms) to 2.6784e12 (31 days),
	// which the scripts of the stores rely on. Local shares stretch the window by
	// the number of replicas; here it may have up to 52 bits.
	Window int64

	// Burst is the capacity of a TokenBucket, 1 to 1e9; 0 means Requests. The other
	// algorithms ignore it.
	Burst int64
}

// Capacity is the highest cost that can ever be admitted at once.
func (l Limit) Capacity() int64 {
	if l.Algorithm == TokenBucket && l.Burst > 0 && l.Requests > 0 {
		return l.Burst
	}
	return l.Requests
}

// State is what one counter remembers. The zero value is an untouched counter,
// which has its whole capacity left; a store drops the key of such a state.
//
//	algorithm             At                Used                   Carry
//	TokenBucket           last charge, µs   whole tokens of debt   debt below one token, in 1/Window tokens
//	FixedWindow           window index      charged in the window  0
//	SlidingWindowCounter  window index      charged in the window  charged in the window before
//	SlidingWindowLog      0                 charged in all of Log  0
//
// Window index i is the time from i·Window up to, not including, (i+1)·Window.
//
// States are values, and no function writes to one that it is given. Like append,
// however, [Limit.Charge] and [Limit.Take] may write behind the end of Log: of the
// SlidingWindowLog states made from one state, only the last made may be used, and
// they must not be made concurrently.
type State struct {
	At    int64
	Used  int64
	Carry int64

	// Log is for SlidingWindowLog only: oldest first, no two of the same time.
	Log []LogEntry
}

// LogEntry is what was charged at one time.
type LogEntry struct {
	At   int64 // µs
	Cost int64 // at least 1
}

// Result is the answer to one request. The examples are for TokenBucket with 6
// requests in 60 s, six of which were taken 100 ms ago.
type Result struct {
	// Allowed: the cost fits.
	Allowed bool

	// Satisfiable is false if no wait helps: the cost is above the capacity, or the
	// limit is 0. Always true if Allowed.
	Satisfiable bool

	// Remaining is the highest total cost that can still be admitted at this
	// instant, such as 0.
	Remaining int64

	// RetryAfter (µs) is the shortest wait after which the same cost fits, if
	// nobody else takes anything, such as 9,900,000. 1 µs earlier it does not fit.
	// 0 if Allowed; MaxWait if not Satisfiable.
	RetryAfter int64

	// ResetAfter (µs) is the shortest wait after which nothing weighs any more, if
	// nobody takes anything, such as 59,900,000. 0 if that is so now.
	ResetAfter int64

	// At (µs) is the time at which the request was judged and a charge is dated.
	// Refund wants it. It is now, unless the state is dated ahead of now.
	At int64
}

// Look answers what Take would answer, and charges nothing; Remaining and
// ResetAfter are those before the charge. Cost 0 is a peek and always allowed. So
// is a negative cost, which callers are expected to refuse.
func (l Limit) Look(s State, now, cost int64) (result Result) {
	t := l.age(&s, now)
	l.judge(&result, &s, t, now, cost)
	result.ResetAfter = later(l.reset(&s, t), t-now)
	return result
}

// Take admits the cost or denies it. If admitted, the result is that after the
// charge. If denied, or if the cost is 0, the state is returned unchanged.
func (l Limit) Take(s State, now, cost int64) (next State, result Result) {
	next = s
	t := l.age(&next, now)
	l.judge(&result, &next, t, now, cost)
	charge := result.Allowed && cost > 0
	if charge {
		l.add(&next, t, cost)
		result.Remaining -= cost
	}
	result.ResetAfter = later(l.reset(&next, t), t-now)
	if !charge {
		return s, result
	}
	return next, result
}

// Charge charges the cost without asking: for costs that Look has allowed, and
// for debts that are known only afterwards. Those may exceed the capacity, up to
// MaxDebit. Cost 0 returns the state unchanged.
func (l Limit) Charge(s State, now, cost int64) State {
	if cost <= 0 {
		return s
	}
	t := l.age(&s, now)
	l.add(&s, t, cost)
	return s
}

// Refund gives back a cost that was charged at the time taken (Result.At of the
// charge), as far as it still weighs. It never gives back more, so that a take
// and its refund together never make room that would not have been there without
// them; it can give back less, and then the rest weighs until it has aged out.
// Refunding the same charge twice is the caller's fault.
func (l Limit) Refund(s State, now, taken, cost int64) State {
	if cost <= 0 {
		return s
	}
	cost = min(cost, MaxDebit)
	switch l.Algorithm {
	case FixedWindow:
		l.refundFixed(&s, taken, cost)
		l.age(&s, now)
	case SlidingWindowCounter:
		l.refundSliding(&s, taken, cost)
		l.age(&s, now)
	case SlidingWindowLog:
		l.refundLog(&s, taken, cost)
		l.age(&s, now)
	default:
		t := l.age(&s, now)
		l.refundBucket(&s, t, taken, cost)
	}
	return settled(s)
}

// TTL is how long (ms) a store keeps the state: until nothing weighs any more,
// rounded up, and 1 ms longer. 0 means that nothing weighs now, so the key can go.
// It belongs in the same step as the write of the state.
func (l Limit) TTL(s State, now int64) int64 {
	t := l.age(&s, now)
	wait := later(l.reset(&s, t), t-now)
	if wait == 0 {
		return 0
	}
	return (wait+999)/1000 + 1
}

// Rebase returns the state dated now, and true, if it is dated more than one
// window ahead of now; otherwise the state as it is, and false.
//
// Look, Take, Charge and Refund judge such a state as if it had been rebased, but
// a denied Take writes nothing: the counter would be rebased again at each request
// and stay denied until the clock has caught up. A store that reads its own clock
// therefore rebases what it has read, and writes it if that was true, denied or
// not. A caller that is given the times of several clocks must not: one of them
// being behind would give time to the others.
func (l Limit) Rebase(s State, now int64) (State, bool) {
	if l.dated(&s)-now <= l.Window {
		return s, false
	}
	l.age(&s, now)
	return settled(s), true
}
