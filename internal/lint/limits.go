package lint

import (
	"fmt"
	"reflect"

	"github.com/weir-dev/weir/internal/policy"
)

// idle finds limits that never deny, because another one of the same list always denies before.
func idle(warn func(string, string, ...any), at string, limits []policy.Limit) {
	for i, l := range limits {
		for j, other := range limits {
			if i == j {
				continue
			}
			if most, never := neverDenies(l, other); never {
				warn(fmt.Sprintf("%s[%d]", at, i), "never denies: limits[%d], %d per %s, admits at most %d in %s", j, *other.Requests, other.Window, most, l.Window)
				break
			}
		}
	}
}

// beside finds limits that never deny, because of a rule that applies to all that theirs does, and counts by the same.
func beside(warn func(string, string, ...any), spec policy.Spec, i int) {
	r := spec.Rules[i]
	if spec.Evaluation == policy.EvaluationFirstMatch || shadowed(spec, r) {
		return // only one of them applies; or it is there to be watched
	}
	for j, l := range r.Limits {
		for k, other := range spec.Rules {
			if i == k || !applies(spec, other, r) || !sameKey(other, r) || !reflect.DeepEqual(other.Cost, r.Cost) {
				continue
			}
			if n, most := denier(l, other.Limits); n >= 0 {
				warn(fmt.Sprintf("rules[%d].limits[%d]", i, j), "never denies: rule %s applies to the same requests and counts by the same key, and its limits[%d] admits at most %d in %s", other.Name, n, most, l.Window)
				break
			}
		}
	}
}

// denier returns the first of the others by which l never denies, -1 if there is none.
func denier(l policy.Limit, others []policy.Limit) (i int, most int64) {
	for i, other := range others {
		if most, never := neverDenies(l, other); never {
			return i, most
		}
	}
	return -1, 0
}

// neverDenies says whether l surely never denies where other does, and what other admits at most in l's window.
func neverDenies(l, other policy.Limit) (most int64, never bool) {
	window, err := policy.ParseDuration(l.Window)
	otherWindow, otherErr := policy.ParseDuration(other.Window)
	if err != nil || otherErr != nil || otherWindow > window || *l.Requests == 0 {
		return 0, false // Validated before; and a limit of nothing has a warning of its own.
	}
	most = admits(other, otherWindow, window, l.Algorithm == policy.FixedWindow)
	if l.Algorithm == policy.SlidingWindowCounter {
		return most, 2*most <= *l.Requests // its estimate may hold all of the window before and of this one
	}
	return most, most <= min(*l.Requests, capacity(l))
}

// admits is what a limit of a window (µs) admits at most in a span (µs). One that is aligned begins with a window and has the length of whole
// ones, if its length is a multiple of theirs.
func admits(l policy.Limit, window, span int64, aligned bool) int64 {
	whole := span / window
	parts := whole
	if span%window != 0 {
		parts++
	}
	switch l.Algorithm {
	case policy.SlidingWindowLog:
		return *l.Requests * parts
	case policy.FixedWindow:
		if aligned && span%window == 0 {
			return *l.Requests * whole
		}
		return *l.Requests * (parts + 1)
	case policy.SlidingWindowCounter:
		return *l.Requests * (parts + 1)
	default: // a bucket: what it holds, and what it earns
		return capacity(l) + int64(float64(*l.Requests)*(float64(span)/float64(window)))
	}
}

// leases finds leases that are never taken.
func leases(warn func(string, string, ...any), spec policy.Spec, i int) {
	r := spec.Rules[i]
	if r.Lease == nil {
		return
	}
	at := fmt.Sprintf("rules[%d].lease", i)
	if shadowed(spec, r) {
		warn(at, "has no effect: the rule is in Shadow mode, and leases are taken for rules that deny")
		return
	}
	for j, l := range r.Limits {
		// A replica leases at most half of what is left, and at least two requests.
		if c := capacity(l); c < leastLeased {
			warn(at, "is never taken: limits[%d] never has more than %d left, and a replica leases at most half of what is left", j, c)
			return
		}
	}
	if spec.Evaluation == policy.EvaluationFirstMatch {
		return
	}
	for k, other := range spec.Rules {
		if i != k && other.Lease == nil && applies(spec, other, r) {
			warn(at, "is never taken: rule %s applies to the same requests, and has no lease", other.Name)
			return
		}
	}
}

const leastLeased = 4

func shadowed(spec policy.Spec, r policy.Rule) bool {
	return r.Mode == policy.ModeShadow || r.Mode == "" && spec.Mode == policy.ModeShadow
}

// applies says whether wide surely limits, by its own limits, all that narrow matches.
func applies(spec policy.Spec, wide, narrow policy.Rule) bool {
	if shadowed(spec, wide) || len(wide.Overrides) > 0 || wide.WhenKeyMissing == policy.WhenKeyMissingSkip {
		return false
	}
	if wide.Match == nil {
		return true
	}
	if narrow.Match == nil {
		return false
	}
	for _, m := range narrow.Match {
		covered := false
		for _, other := range wide.Match {
			covered = covered || covers(other, m)
		}
		if !covered {
			return false
		}
	}
	return true
}
