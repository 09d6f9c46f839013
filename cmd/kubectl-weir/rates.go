package main

import (
	"cmp"
	"slices"
)

// rates are what happens in a second, over all replicas.
type rates struct {
	rules []ruleRates
	// read is how many replicas were, open how many of them do without Redis.
	read, open int
}

type ruleRates struct {
	name             string // empty: no rule decided
	admitted, denied float64
	shadowed         float64 // would have been denied
	sources          map[string]float64
}

// ratesOf compares two readings. A replica that was not there before, or whose counts began anew, begins at 0.
func ratesOf(before, now map[string]reading) rates {
	var out rates
	byName := map[string]*ruleRates{}
	for name, read := range now {
		out.read++
		if read.open {
			out.open++
		}
		last, known := before[name]
		if !known {
			continue
		}
		seconds := read.at.Sub(last.at).Seconds()
		if seconds <= 0 {
			continue
		}
		for key, count := range read.decisions {
			grown := count - last.decisions[key]
			if grown < 0 {
				grown = count
			}
			r := byName[key.rule]
			if r == nil {
				r = &ruleRates{name: key.rule, sources: map[string]float64{}}
				byName[key.rule] = r
			}
			r.add(key, grown/seconds)
		}
	}
	for _, r := range byName {
		out.rules = append(out.rules, *r)
	}
	slices.SortFunc(out.rules, func(a, b ruleRates) int {
		return cmp.Or(cmp.Compare(b.denied+b.shadowed, a.denied+a.shadowed), cmp.Compare(b.admitted, a.admitted), cmp.Compare(a.name, b.name))
	})
	return out
}

func (r *ruleRates) add(key decisionKey, rate float64) {
	switch {
	case key.source == "Shadow" && key.denied:
		r.shadowed += rate
		return
	case key.source == "Shadow":
		return // counted by the rule that decided
	case key.denied:
		r.denied += rate
	default:
		r.admitted += rate
	}
	r.sources[key.source] += rate
}
