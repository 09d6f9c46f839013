package algorithm

// What the algorithms have in common. A state is first aged: reduced to what still
// weighs at the time t at which it is judged. All else asks an aged state, which
// is the function's own copy and is changed in place.

// judge answers for an aged state, all but ResetAfter, which is that of the state
// in the end. It fills in an empty result in place, because copying one whose
// flags were just set costs as much as the arithmetic.
func (l *Limit) judge(result *Result, aged *State, t, now, cost int64) {
	ahead, room := t-now, l.room(aged, t)
	result.At = t
	result.Remaining = max(0, room)
	switch {
	case cost <= 0 || cost <= room:
		result.Allowed, result.Satisfiable = true, true
	case cost > l.Capacity():
		result.RetryAfter = MaxWait
	default:
		result.Satisfiable = true
		result.RetryAfter = later(l.wait(aged, t, cost), ahead)
	}
}

// dated returns the time that the state holds.
func (l *Limit) dated(s *State) int64 {
	switch l.Algorithm {
	case FixedWindow, SlidingWindowCounter:
		return s.At * l.Window
	case SlidingWindowLog:
		if len(s.Log) == 0 {
			return 0
		}
		return s.Log[len(s.Log)-1].At
	default:
		return s.At
	}
}

// judgedAt returns the time t at which a state of that date is judged.
func (l *Limit) judgedAt(dated, now int64) int64 {
	if ahead := dated - now; 0 < ahead && ahead <= l.Window {
		return dated
	}
	return now
}

// age dates the state to the time t at which it is judged, and returns t.
func (l *Limit) age(s *State, now int64) (t int64) {
	t = l.judgedAt(l.dated(s), now)
	switch l.Algorithm {
	case FixedWindow:
		l.ageFixed(s, t)
	case SlidingWindowCounter:
		l.ageSliding(s, t)
	case SlidingWindowLog:
		l.ageLog(s, t)
	default:
		l.ageBucket(s, t)
	}
	return t
}

// room is the highest cost that fits at t; negative if more than the capacity is
// in use.
func (l *Limit) room(aged *State, t int64) int64 {
	switch l.Algorithm {
	case FixedWindow, SlidingWindowLog:
		return l.Requests - aged.Used
	case SlidingWindowCounter:
		return l.roomSliding(aged, t)
	default:
		return l.roomBucket(aged)
	}
}

// wait is the shortest time after t until a cost that does not fit now fits. The
// cost is at most the capacity.
func (l *Limit) wait(aged *State, t, cost int64) int64 {
	switch l.Algorithm {
	case FixedWindow:
		return left(t, l.Window)
	case SlidingWindowCounter:
		return l.waitSliding(aged, t, cost)
	case SlidingWindowLog:
		return l.waitLog(aged, t, cost)
	default:
		return l.waitBucket(aged, cost)
	}
}

// reset is the shortest time after t until nothing weighs any more.
func (l *Limit) reset(aged *State, t int64) int64 {
	switch l.Algorithm {
	case FixedWindow:
		return l.resetFixed(aged, t)
	case SlidingWindowCounter:
		return l.resetSliding(aged, t)
	case SlidingWindowLog:
		return l.resetLog(aged, t)
	default:
		return l.resetBucket(aged)
	}
}

// add charges the cost, which is at least 1.
func (l *Limit) add(aged *State, t, cost int64) {
	switch l.Algorithm {
	case FixedWindow, SlidingWindowCounter:
		aged.Used = min(aged.Used+min(cost, MaxDebit), MaxDebit)
	case SlidingWindowLog:
		l.addLog(aged, t, cost)
	default:
		l.addBucket(aged, cost)
	}
}

// settled returns an aged state in which nothing weighs as the zero value, which
// holds no date.
func settled(aged State) State {
	if aged.Used == 0 && aged.Carry == 0 {
		return State{}
	}
	return aged
}

// left is the time from t to the end of its window, 1 to window.
func left(t, window int64) int64 {
	return window - t%window
}

// later adds the time that a state is ahead to a wait, unless there is none.
func later(wait, ahead int64) int64 {
	if wait == 0 {
		return 0
	}
	return min(wait+ahead, MaxWait)
}
