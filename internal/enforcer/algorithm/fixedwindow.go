package algorithm

// FixedWindow admits at most Requests in each window from i·Window to (i+1)·Window.
//
// At worst it admits 2·Requests within moments: Requests at the end of a window
// and Requests at the start of the next. For 60 in 60 s: 60 at 59 s, 60 at 60 s,
// and then nothing until 120 s. In n whole windows, n·Requests. That is the price
// of its one counter, and of an end that everybody can name in advance ("until
// midnight"); choose it for quotas, not for protection.
//
// Source: folklore; the Redis manual shows it under INCR, "Pattern: Rate limiter".
const FixedWindow Algorithm = 1

// ageFixed keeps the count of the window in which t lies. A later window was
// written before the clock was set back, and its count moves to t's window.
func (l *Limit) ageFixed(s *State, t int64) {
	window := t / l.Window
	if s.At < window {
		s.Used = 0
	}
	s.At = window
}

func (l *Limit) resetFixed(aged *State, t int64) int64 {
	if aged.Used == 0 {
		return 0
	}
	return left(t, l.Window)
}

// refundFixed gives back to the window that was charged, and to no other.
func (l *Limit) refundFixed(s *State, taken, cost int64) {
	if taken/l.Window == s.At {
		s.Used = max(0, s.Used-cost)
	}
}
