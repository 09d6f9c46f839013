package algorithm

// Used is what weighs of a state at now, rounded up to whole requests. It may exceed the capacity.
func (l Limit) Used(s State, now int64) int64 {
	t := l.age(&s, now)
	switch l.Algorithm {
	case FixedWindow, SlidingWindowLog:
		return s.Used
	case SlidingWindowCounter:
		return l.Requests - l.roomSliding(&s, t)
	default:
		if s.Carry > 0 {
			return s.Used + 1
		}
		return s.Used
	}
}

// Add returns s with all that weighs of other charged to it, each charge as of the time at which it was made. Both are
// states of this limit, apart from its Requests and Burst. The debts of buckets add up.
func (l Limit) Add(s, other State, now int64) State {
	l.age(&s, now)
	l.age(&other, now)
	switch l.Algorithm {
	case FixedWindow, SlidingWindowCounter:
		s.Used = min(s.Used+other.Used, MaxDebit)
		s.Carry = min(s.Carry+other.Carry, MaxDebit)
	case SlidingWindowLog:
		s.Log, s.Used = mergeLogs(s.Log, other.Log, func(a, b int64) int64 { return a + b })
	default:
		s.Used += other.Used
		if s.Carry += other.Carry; s.Carry >= l.Window {
			s.Used, s.Carry = s.Used+1, s.Carry-l.Window
		}
		if s.Used >= MaxDebit {
			s.Used, s.Carry = MaxDebit, 0
		}
	}
	return settled(s)
}

// Max returns what two counts of the same charges, each of which may have missed some, say together: of each window and
// each time the higher count, and the higher debt of a bucket.
func (l Limit) Max(s, other State, now int64) State {
	l.age(&s, now)
	l.age(&other, now)
	switch l.Algorithm {
	case FixedWindow, SlidingWindowCounter:
		s.Used, s.Carry = max(s.Used, other.Used), max(s.Carry, other.Carry)
	case SlidingWindowLog:
		s.Log, s.Used = mergeLogs(s.Log, other.Log, func(a, b int64) int64 { return max(a, b) })
	default:
		if other.Used > s.Used || other.Used == s.Used && other.Carry > s.Carry {
			s = other
		}
	}
	return settled(s)
}

// mergeLogs joins two logs by the times of their entries, and returns the sum of the costs too.
func mergeLogs(a, b []LogEntry, join func(a, b int64) int64) (merged []LogEntry, sum int64) {
	for len(a) > 0 || len(b) > 0 {
		var next LogEntry
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].At < b[0].At:
			next, a = a[0], a[1:]
		case len(a) == 0 || b[0].At < a[0].At:
			next, b = b[0], b[1:]
		default:
			next = LogEntry{At: a[0].At, Cost: join(a[0].Cost, b[0].Cost)}
			a, b = a[1:], b[1:]
		}
		merged = append(merged, next)
		sum += next.Cost
	}
	return merged, sum
}

// Convert returns a state of this limit as one of another. Nothing that weighs gets lighter: what the other algorithm
// cannot date is charged as of now. The windows of two buckets may differ; those of other algorithms must not.
func (l Limit) Convert(s State, to Limit, now int64) State {
	switch {
	case l.Algorithm != to.Algorithm && l.Algorithm == SlidingWindowLog && to.Algorithm == SlidingWindowCounter:
		return to.fromLog(s, now)
	case l.Algorithm != to.Algorithm:
		return to.Charge(State{}, now, l.Used(s, now))
	case l.Algorithm == TokenBucket && l.Window != to.Window:
		return l.rescale(s, to, now)
	}
	return s
}

// fromLog counts the entries of a log by window.
func (l Limit) fromLog(s State, now int64) State {
	window := now / l.Window
	next := State{At: window}
	for _, e := range s.Log {
		switch e.At / l.Window {
		case window - 1:
			next.Carry += e.Cost
		case window:
			next.Used += e.Cost
		}
	}
	return settled(next)
}

// rescale takes a debt to another window: its part below one token is counted in 1/Window tokens.
func (l Limit) rescale(s State, to Limit, now int64) State {
	l.age(&s, now) // drained until now by the old numbers
	carry, rest := MulDiv(s.Carry, to.Window, l.Window)
	if rest > 0 {
		carry++ // a started part of a token is missing whole
	}
	if carry >= to.Window {
		s.Used, carry = s.Used+1, 0
	}
	s.Carry = carry
	return settled(s)
}

// Resize returns the state of a bucket whose capacity changes from this limit's to that of another and whose level
// does not: room that is added is not filled yet, and what no longer fits is gone.
func (l Limit) Resize(s State, to Limit, now int64) State {
	s = l.Convert(s, to, now)
	l.Window = to.Window
	t := l.age(&s, now)
	s.At = t
	if s.Used += to.Capacity() - l.Capacity(); s.Used < 0 {
		s.Used, s.Carry = 0, 0
	}
	return settled(s)
}
