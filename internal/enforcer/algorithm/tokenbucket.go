package algorithm

// TokenBucket is a bucket of Burst tokens that is full at first, earns Requests
// tokens per Window continuously, and pays the cost of each request.
//
// It is kept as debt: what is missing from a full bucket. A full bucket is then
// the same state for every capacity, a raised limit helps at once, and a charge
// that may not be refused can exceed the capacity. In that form it is the leaky
// bucket as a meter, or the generic cell rate algorithm with an exact rational in
// place of the cell time: the debt drains by Requests/Window tokens per µs, and
// its part below one token is counted in 1/Window tokens, so nothing is ever
// rounded. One request per day is exactly that: 365 in a year, and the burst.
//
// At worst it admits, in any time d, Burst + ⌊Requests·d/Window⌋: for 60 in 60 s,
// 60 at once, 61 in 1 s, 120 in 60 s. The long run is the rate.
//
// Sources: J. Turner, "New Directions in Communications (or Which Way to the
// Information Age?)", IEEE Communications Magazine 24(10), 1986; ITU-T I.371 for
// the generic cell rate algorithm.
const TokenBucket Algorithm = 0

// ageBucket drains the debt up to t. A state dated after t has been overtaken by
// a clock that was set back; it keeps its debt.
func (l *Limit) ageBucket(s *State, t int64) {
	d := t - s.At
	s.At = t
	if d <= 0 || s.Used == 0 && s.Carry == 0 {
		return
	}
	whole, parts, more := l.earned(d, s.Used)
	if more {
		s.Used, s.Carry = 0, 0
		return
	}
	s.Used -= whole
	s.Carry -= parts
	if s.Carry < 0 {
		s.Carry += l.Window
		s.Used--
	}
	if s.Used < 0 {
		s.Used, s.Carry = 0, 0
	}
}

// earned is what a bucket earns in the time d: whole tokens and 1/Window tokens.
// If the full windows in d alone earn more than most, it says only that. So no
// product has more than 53 bits outside of MulDiv, and MulDiv is never asked for
// more than one window, which a script can do in doubles.
func (l *Limit) earned(d, most int64) (whole, parts int64, more bool) {
	if l.Requests <= 0 {
		return 0, 0, false
	}
	var windows int64
	if d >= l.Window {
		if windows = d / l.Window; windows > most/l.Requests {
			return 0, 0, true
		}
		d -= windows * l.Window
	}
	whole, parts = MulDiv(l.Requests, d, l.Window)
	return windows*l.Requests + whole, parts, false
}

// roomBucket counts a started token as missing: it cannot be spent yet.
func (l *Limit) roomBucket(aged *State) int64 {
	room := l.Capacity() - aged.Used
	if aged.Carry > 0 {
		room--
	}
	return room
}

func (l *Limit) waitBucket(aged *State, cost int64) int64 {
	return l.drains(aged.Used+cost-l.Capacity(), aged.Carry)
}

func (l *Limit) resetBucket(aged *State) int64 {
	return l.drains(aged.Used, aged.Carry)
}

// drains is the time in which a debt of whole + parts/Window tokens is gone:
// ⌈(whole·Window + parts)/Requests⌉.
func (l *Limit) drains(whole, parts int64) int64 {
	if whole == 0 && parts == 0 {
		return 0
	}
	if l.Requests <= 0 {
		return MaxWait
	}
	q, r := MulDiv(whole, l.Window, l.Requests)
	return min(q+(r+parts+l.Requests-1)/l.Requests, MaxWait)
}

func (l *Limit) addBucket(aged *State, cost int64) {
	aged.Used += min(cost, MaxDebit)
	if aged.Used >= MaxDebit {
		aged.Used, aged.Carry = MaxDebit, 0
	}
}

// refundBucket gives back what of the cost has not drained since. The debt drains
// as a whole, and it cannot be told whose part drained; that all of it was this
// one is the only answer that never gives too much. Giving back the whole cost,
// held at no debt, admits more than the limit: the bucket would have been full
// for part of that time, and a full bucket earns nothing.
func (l *Limit) refundBucket(aged *State, t, taken, cost int64) {
	whole, parts, more := l.earned(max(0, t-taken), cost)
	if more || whole >= cost {
		return
	}
	aged.Used -= cost - whole
	aged.Carry += parts
	if aged.Carry >= l.Window {
		aged.Carry -= l.Window
		aged.Used++
	}
	if aged.Used < 0 {
		aged.Used, aged.Carry = 0, 0
	}
}
