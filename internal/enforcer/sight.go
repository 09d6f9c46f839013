package enforcer

import (
	"reflect"
	"sync/atomic"

	"github.com/weir-dev/weir/internal/policy"
)

// sight is whether requests match one rule, for as long as the rule has the same match.
type sight struct {
	matched atomic.Bool
	from    uint64 // how many requests had been decided when the rule came
}

// see notes that a request matches. It is on the way of every request, and writes once.
func (s *sight) see() {
	if !s.matched.Load() {
		s.matched.Store(true)
	}
}

// seen notes that a request matches, unless it is one that only asks.
func (r *rule) seen(peek bool) {
	if !peek {
		r.sight.see()
	}
}

// inherit takes over what was seen of the rules that have not changed. The others begin after so many requests.
func (s *snapshot) inherit(from *snapshot, decided uint64) {
	for i := range s.rules {
		r := &s.rules[i]
		r.sight = &sight{from: decided}
		if from == nil {
			continue
		}
		for j := range from.rules {
			old := &from.rules[j]
			if old.policy == r.policy && old.name == r.name && reflect.DeepEqual(old.match, r.match) {
				r.sight = old.sight
			}
		}
	}
}

// unmatched is how many requests were decided since the rule came, 0 if one of them matched it.
func (r *rule) unmatched(decided uint64) uint64 {
	if r.sight.matched.Load() {
		return 0
	}
	return decided - r.sight.from
}

// matched is what a report says of the rules.
func (s *snapshot) matched(decided uint64) string {
	letters := make([]byte, len(s.rules))
	for i := range s.rules {
		r := &s.rules[i]
		switch {
		case r.sight.matched.Load():
			letters[i] = policy.Matched
		case r.unmatched(decided) >= policy.UnmatchedAfter:
			letters[i] = policy.Unmatched
		default:
			letters[i] = policy.MatchUnknown
		}
	}
	return string(letters)
}

// served counts the requests that were decided, other than those that a policy exempts and those before any policy.
func (e *Enforcer) served() uint64 { return e.tallies.decided() + e.counts.general[NoRule].Load() }
