package policy

import (
	"slices"
	"unicode/utf8"
)

// Bounds of numbers; the schema has the same.
const (
	// MaxRequests bounds requests and burst: above it the arithmetic of the algorithms is no longer exact.
	MaxRequests = 1_000_000_000
	// MaxLogRequests bounds requests under SlidingWindowLog, which keeps an entry for each.
	MaxLogRequests = 10_000
	// MaxCost bounds the cost of one request.
	MaxCost = 1_000_000
	// MaxLease bounds the tokens of a lease, and MaxMultiple what of its share a replica's prefilter lets pass.
	MaxLease    = 10_000
	MaxMultiple = 1_000
)

// counter is what makes two limits of one rule count in the same place.
type counter struct {
	algorithm Algorithm
	window    int64 // µs
}

// counter is not ok where the window is no window.
func (l Limit) counter() (c counter, ok bool) {
	window, ok := parseWindow(l.Window)
	return counter{l.algorithm(), window}, ok
}

// algorithm applies the default.
func (l Limit) algorithm() Algorithm {
	if l.Algorithm == "" {
		return TokenBucket
	}
	return l.Algorithm
}

func (f *faults) limits(path string, limits []Limit) {
	seen := make(map[counter]bool, len(limits))
	twice := false
	for i, l := range limits {
		f.limit(index(path, i), l)
		c, ok := l.counter()
		twice = twice || ok && seen[c]
		seen[c] = true
	}
	if twice {
		f.add(path, "limits must differ in algorithm or window; 60s and 1m are the same window")
	}
}

func (f *faults) limit(path string, l Limit) {
	switch {
	case l.Requests == nil:
		f.add(path+".requests", "Required value")
	case l.algorithm() == SlidingWindowLog && *l.Requests > MaxLogRequests:
		f.add(path+".requests", "must be at most %d with algorithm SlidingWindowLog, which keeps one entry for each request", MaxLogRequests)
	default:
		f.number(path+".requests", *l.Requests, 0, MaxRequests)
	}
	if l.Window == "" {
		f.add(path+".window", "Required value")
	} else if _, ok := parseWindow(l.Window); !ok {
		f.add(path+".window", "Invalid value: %q: must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m", l.Window)
	}
	oneOf(f, path+".algorithm", l.Algorithm, optional, TokenBucket, FixedWindow, SlidingWindowCounter, SlidingWindowLog)
	if l.Burst == nil {
		return
	}
	f.number(path+".burst", *l.Burst, 1, MaxRequests)
	if l.algorithm() != TokenBucket {
		f.add(path+".burst", "only with algorithm TokenBucket")
	}
}

// overrides checks the overrides of a rule with these limits.
func (f *faults) overrides(path string, overrides []Override, limits []Limit) {
	f.items(path, len(overrides), overrides == nil, optional, maxOverrides)
	counters := make(map[counter]bool, len(limits))
	readable := true
	for _, l := range limits {
		c, ok := l.counter()
		counters[c] = true
		readable = readable && ok
	}
	for i, o := range overrides {
		at := index(path, i)
		f.attributeMatch(at+".when", o.When)
		if (o.Limits != nil) == o.Unlimited {
			f.add(at, "exactly one of limits and unlimited: true must be set")
		}
		f.items(at+".limits", len(o.Limits), o.Limits == nil, optional, maxLimits)
		f.limits(at+".limits", o.Limits)
		for j, l := range o.Limits {
			if c, ok := l.counter(); ok && readable && !counters[c] {
				f.add(path, "each limit of an override must have the algorithm and window of a limit of the rule: an override changes numbers, not counters (overrides[%d].limits[%d])", i, j)
			}
		}
	}
}

func (f *faults) attributeMatch(path string, m AttributeMatch) {
	if m.Attribute == "" && m.Values == nil {
		f.add(path, "Required value")
		return
	}
	f.name(path+".attribute", m.Attribute, attributeRegexp, attributePattern, maxAttribute)
	f.items(path+".values", len(m.Values), m.Values == nil, required, maxValues)
	for i, v := range m.Values {
		if v == "" {
			f.add(index(path+".values", i), "should be at least 1 chars long")
		} else if utf8.RuneCountInString(v) > maxValue {
			f.add(index(path+".values", i), "Too long: may not be more than %d bytes", maxValue)
		}
	}
	f.unique(path+".values", m.Values)
}

func (f *faults) cost(path string, c *Cost) {
	if c == nil {
		return
	}
	f.name(path+".attribute", c.Attribute, attributeRegexp, attributePattern, maxAttribute)
	f.number(path+".max", c.Max, 1, MaxCost)
}

// lease is refused with a log, which holds in every window: what was taken at one time would be used at another.
func (f *faults) lease(path string, l *Lease, limits []Limit) {
	if l == nil {
		return
	}
	f.number(path+".tokens", l.Tokens, 2, MaxLease)
	if slices.ContainsFunc(limits, func(l Limit) bool { return l.algorithm() == SlidingWindowLog }) {
		f.add(path, "not with algorithm SlidingWindowLog, whose limit would no longer hold in every window")
	}
}

func (f *faults) prefilter(path string, p *Prefilter) {
	if p != nil {
		f.number(path+".multiple", p.Multiple, 1, MaxMultiple)
	}
}
