package algorithm

import "slices"

// SlidingWindowLog remembers every charge for one Window, and lets them add up to
// at most Requests. A charge aged exactly Window no longer counts.
//
// At worst it admits Requests in any time of one Window: for 60 in 60 s, 60 at
// 59 s and nothing until 119 s. It is the only one of the four that never admits
// more, and the only one whose state grows: one entry for each admitted request
// (16 bytes here), which is why its Requests are bounded by MaxLogEntries.
//
// Source: folklore; N. Mahdi, "An alternative approach to rate limiting", Figma,
// 2017, compares it with the sliding counter.
const SlidingWindowLog Algorithm = 3

// ageLog drops the entries that no longer count at t. A log dated after t has been
// overtaken by a clock that was set back: all of it becomes one entry at t.
func (l *Limit) ageLog(s *State, t int64) {
	for len(s.Log) > 0 && t-s.Log[0].At >= l.Window {
		s.Used -= s.Log[0].Cost
		s.Log = s.Log[1:]
	}
	switch {
	case len(s.Log) == 0:
		s.Log = nil
	case l.dated(s) > t:
		s.Log = []LogEntry{{At: t, Cost: s.Used}}
	}
}

// waitLog: the oldest entries have to go until the cost fits.
func (l *Limit) waitLog(aged *State, t, cost int64) int64 {
	over := aged.Used + cost - l.Requests
	for _, entry := range aged.Log {
		if over -= entry.Cost; over <= 0 {
			return entry.At + l.Window - t
		}
	}
	return 0 // not reached: the cost fits beside no entry at all
}

func (l *Limit) resetLog(aged *State, t int64) int64 {
	if len(aged.Log) == 0 {
		return 0
	}
	return aged.Log[len(aged.Log)-1].At + l.Window - t
}

// addLog appends an entry, or adds to the newest one if that has the same time or
// the log is full. Only charges that were not asked for find a full log; moving
// the newest entry to their time makes it count for longer, never for less.
func (l *Limit) addLog(aged *State, t, cost int64) {
	cost = min(cost, MaxDebit-aged.Used)
	if cost == 0 {
		return
	}
	entry := LogEntry{At: t, Cost: cost}
	entries := aged.Log
	if n := len(entries); n > 0 && (entries[n-1].At == t || n >= MaxLogEntries) {
		entry.Cost += entries[n-1].Cost
		entries = entries[: n-1 : n-1] // append then copies, and the given state keeps its entry
	}
	aged.Used += cost
	aged.Log = append(entries, entry)
}

// refundLog gives back to the entry of that time.
func (l *Limit) refundLog(s *State, taken, cost int64) {
	i := slices.IndexFunc(s.Log, func(e LogEntry) bool { return e.At == taken })
	if i < 0 {
		return
	}
	cost = min(cost, s.Log[i].Cost)
	s.Used -= cost
	s.Log = slices.Clone(s.Log)
	if s.Log[i].Cost -= cost; s.Log[i].Cost == 0 {
		s.Log = slices.Delete(s.Log, i, i+1)
	}
}
