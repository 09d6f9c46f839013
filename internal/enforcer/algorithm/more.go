package algorithm

// MoreAfter is the shortest wait (µs), or 1 µs more, after which more than r.Remaining fits, if nobody takes anything. It
// is 0 where nothing is missing, and for the algorithms that slide, whose results do not tell it.
//
// A bucket that was full again after r.ResetAfter has earned all but one of the missing requests before: what it earns
// first takes the rest of that time. Both times are whole µs, so their difference may be one too many.
func (l Limit) MoreAfter(r *Result) int64 {
	missing := l.Capacity() - r.Remaining
	switch {
	case missing <= 0 || l.Requests == 0:
		return 0
	case l.Algorithm == FixedWindow:
		return r.ResetAfter
	case l.Algorithm != TokenBucket:
		return 0
	}
	later, _ := MulDiv(missing-1, l.Window, l.Requests)
	return max(0, r.ResetAfter-later)
}
