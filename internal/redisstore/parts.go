package redisstore

import (
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// A Redis Cluster runs a script over keys of one slot only, so a batch becomes one part for each slot. A request is
// admitted only if every part admits it; what a part charged for requests that another one refused is owed back.

// part is what one slot gets of a batch, and what it answered.
type part struct {
	slot    uint16
	entries []enforcer.Entry
	origins []origin
	answers []enforcer.Answer
	now     int64
	err     error // the part's; then nothing is known of what it charged
}

// origin says where an entry of a part comes from.
type origin struct {
	entry  int   // of the batch
	places []int // of each counter, among the counters of that entry
	rules  []int // of each counter: -1 when it is enforced, or the index of its shadow rule
}

// split sorts entries by slot, in the order in which the slots appear.
func split(entries []enforcer.Entry) []*part {
	var parts []*part
	bySlot := map[uint16]*part{}
	for i := range entries {
		entry := &entries[i]
		rule, end := -1, entry.Enforced
		for j := range entry.Counters {
			for j >= end && rule+1 < len(entry.Shadow) {
				rule++
				end = entry.Shadow[rule]
			}
			slot := slotOf(entry.Counters[j].Identity)
			p := bySlot[slot]
			if p == nil {
				p = &part{slot: slot}
				bySlot[slot] = p
				parts = append(parts, p)
			}
			p.add(i, entry, j, rule)
		}
	}
	for _, p := range parts {
		p.answers = make([]enforcer.Answer, len(p.entries))
	}
	return parts
}

// add enters counter j, of a rule, of an entry. The counters of one entry come one after the other and in order.
func (p *part) add(i int, entry *enforcer.Entry, j, rule int) {
	last := len(p.origins) - 1
	if last < 0 || p.origins[last].entry != i {
		p.entries = append(p.entries, enforcer.Entry{N: entry.N})
		p.origins = append(p.origins, origin{entry: i})
		last++
	}
	sub, from := &p.entries[last], &p.origins[last]
	same := len(from.rules) > 0 && from.rules[len(from.rules)-1] == rule
	sub.Counters = append(sub.Counters, entry.Counters[j])
	from.places = append(from.places, j)
	from.rules = append(from.rules, rule)
	switch {
	case rule < 0:
		sub.Enforced++
	case same:
		sub.Shadow[len(sub.Shadow)-1]++
	default:
		sub.Shadow = append(sub.Shadow, len(sub.Counters))
	}
}

// charged calls back with each counter of entry k, and with how many callers it was charged for: for none, and with no
// result, when nothing is known of it.
func (p *part) charged(k int, each func(place, rule int, callers int64, result *algorithm.Result)) {
	sub, from, answer := &p.entries[k], &p.origins[k], &p.answers[k]
	shadow := -1
	for j := range sub.Counters {
		if from.rules[j] >= 0 && (j == sub.Enforced || from.rules[j] != from.rules[j-1]) {
			shadow++
		}
		switch {
		case p.failure(k) != nil:
			each(from.places[j], from.rules[j], 0, nil)
		case from.rules[j] < 0:
			each(from.places[j], from.rules[j], answer.Granted, &answer.Results[j])
		default:
			each(from.places[j], from.rules[j], answer.Shadow[shadow], &answer.Results[j])
		}
	}
}

func (p *part) failure(k int) error {
	if p.err != nil {
		return p.err
	}
	return p.answers[k].Err
}

// merge writes the answers to the entries of a batch, and returns what is owed back. A part of which nothing is known
// fails the entries that it enforces, and is owed nothing: it may not have charged.
func merge(entries []enforcer.Entry, parts []*part, answers []enforcer.Answer) (owed []enforcer.Refund) {
	for i := range entries {
		answers[i].Granted, answers[i].Err = entries[i].N, nil
	}
	for _, p := range parts {
		for k := range p.entries {
			answer := &answers[p.origins[k].entry]
			if p.entries[k].Enforced == 0 {
				continue
			}
			if err := p.failure(k); err != nil {
				answer.Granted, answer.Err = 0, err
			} else {
				answer.Granted = min(answer.Granted, p.answers[k].Granted)
			}
		}
	}

	for i := range entries {
		answer := &answers[i]
		answer.Shadow, answer.Results = answer.Shadow[:0], answer.Results[:0]
		for range entries[i].Shadow {
			answer.Shadow = append(answer.Shadow, answer.Granted)
		}
		for range entries[i].Counters {
			answer.Results = append(answer.Results, algorithm.Result{})
		}
	}
	for _, p := range parts {
		for k := range p.entries {
			answer := &answers[p.origins[k].entry]
			p.charged(k, func(_, rule int, callers int64, _ *algorithm.Result) {
				if rule >= 0 {
					answer.Shadow[rule] = min(answer.Shadow[rule], callers)
				}
			})
		}
	}

	for _, p := range parts {
		for k := range p.entries {
			i := p.origins[k].entry
			p.charged(k, func(place, rule int, callers int64, result *algorithm.Result) {
				if result == nil {
					return
				}
				counter, kept := entries[i].Counters[place], answers[i].Granted
				if rule >= 0 {
					kept = answers[i].Shadow[rule]
				}
				answers[i].Results[place] = *result
				if callers > kept {
					answers[i].Results[place] = given(*result, (callers-kept)*counter.Cost, counter.Cost)
					owed = append(owed, enforcer.Refund{
						Counters: []enforcer.Counter{counter}, N: callers - kept, Taken: result.At,
					})
				}
			})
		}
	}
	return owed
}

// given is the result as it stands when the amount is given back.
func given(r algorithm.Result, amount, cost int64) algorithm.Result {
	r.Remaining += amount
	if r.Satisfiable && r.Remaining >= cost {
		r.Allowed, r.RetryAfter = true, 0
	}
	return r
}
