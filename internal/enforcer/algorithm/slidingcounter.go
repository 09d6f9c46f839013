package algorithm

// SlidingWindowCounter adds up the count of this window and that of the one
// before, weighed by how much of it a window ending now would still cover:
//
//	before·left/Window + current + cost ≤ Requests
//
// It assumes that the requests of the window before came evenly. At worst, when
// they all came at its end, it admits 2·Requests − 1 in a time of one Window: for
// 60 in 60 s, 60 at 59 s, 30 more until 90 s, 29 more until 119 s. In each aligned
// window it admits at most Requests, and Requests − 1 if the one before was full:
// the last of them fits only when the window before has lost all its weight.
//
// Two counters for any number of requests, and no edge that everybody waits for.
//
// Source: J. Desgats, "How we built rate limiting capable of scaling to millions
// of domains", Cloudflare, 2017.
const SlidingWindowCounter Algorithm = 2

// ageSliding moves the counts to the window in which t lies. A later window was
// written before the clock was set back, and its counts move to t's window.
func (l *Limit) ageSliding(s *State, t int64) {
	window := t / l.Window
	switch {
	case s.At < window-1:
		s.Used, s.Carry = 0, 0
	case s.At == window-1:
		s.Used, s.Carry = 0, s.Used
	}
	s.At = window
}

// roomSliding rounds the weight of the window before up: only whole requests fit,
// so this loses nothing.
func (l *Limit) roomSliding(aged *State, t int64) int64 {
	weight, rest := MulDiv(aged.Carry, left(t, l.Window), l.Window)
	if rest > 0 {
		weight++
	}
	return l.Requests - aged.Used - weight
}

// waitSliding: while the cost fits beside this window's count, the window before
// has to lose weight, Carry·left ≤ free·Window. Otherwise this window has to end,
// and then itself to lose weight beside the cost alone.
func (l *Limit) waitSliding(aged *State, t, cost int64) int64 {
	free := l.Requests - aged.Used - cost
	if free >= 0 {
		fits, _ := MulDiv(free, l.Window, aged.Carry)
		return left(t, l.Window) - fits
	}
	fits, _ := MulDiv(l.Requests-cost, l.Window, aged.Used)
	return left(t, l.Window) + l.Window - fits
}

func (l *Limit) resetSliding(aged *State, t int64) int64 {
	switch {
	case aged.Used > 0:
		return left(t, l.Window) + l.Window
	case aged.Carry > 0:
		return left(t, l.Window)
	default:
		return 0
	}
}

// refundSliding gives back to the window that was charged while that is this one
// or the one before. What it takes away is exactly what the charge weighs.
func (l *Limit) refundSliding(s *State, taken, cost int64) {
	switch taken / l.Window {
	case s.At:
		s.Used = max(0, s.Used-cost)
	case s.At - 1:
		s.Carry = max(0, s.Carry-cost)
	}
}
