package enforcer

import (
	"context"
	"net/http"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// decision is the scratch memory of one decision, and its course: match, identify, ask, answer.
type decision struct {
	e       *Enforcer
	s       *snapshot
	request Request
	peek    bool

	walk    policy.Walk
	subject subject
	memo    memo // of this and former decisions
	buf     []byte
	// identities of the snapshot's keys, those in known.
	known      uint64
	identities [policy.MaxRules]Identity
	outcomes   [policy.MaxRules]keyOutcome

	want      want
	shadow    want // of shadow rules, until all rules are known
	shadows   []*rule
	unlimited *rule

	share   want    // what the local share is asked
	shares  []Share // of each of its counters
	hold    hold
	entries [1]Entry
	answers [1]Answer
	group   group    // of that one entry, if the caller asked alone
	verdict Decision // of what fell back, or was denied without asking
	charge  *Charge  // of those who settle, else nil
}

func (d *decision) release() {
	d.s, d.request, d.unlimited = nil, Request{}, nil
	d.known = 0
	d.want.reset()
	d.shadow.reset()
	d.share.reset()
	d.hold.reset()
	clear(d.shadows)
	d.shadows = d.shadows[:0]
}

// newDecision returns one that belongs to e, as its parts do to it.
func newDecision(e *Enforcer) *decision {
	d := &decision{e: e}
	d.subject = subject{request: &d.request, walk: &d.walk, trusted: e.options.TrustedProxies, memo: &d.memo}
	return d
}

func (d *decision) decide(ctx context.Context, s *snapshot, r Request, peek bool) Decision {
	d.s, d.request, d.peek = s, r, peek
	if refused, ok := d.collect(); ok {
		return refused
	}
	if len(d.want.counters) == 0 {
		return d.withoutLimits()
	}
	if d.e.split {
		d.fallBack("")
		return d.verdict
	}
	if d.e.options.InProcess {
		return d.takeHere(ctx)
	}
	if !peek && d.denied() {
		return d.verdict
	}
	if d.e.breaker.open.Load() {
		d.e.probe()
		d.fallBack(d.e.breaker.why())
		return d.verdict
	}
	if !d.holdShare() {
		return d.verdict
	}
	a := d.e.batcher.take(ctx, &d.want, d)
	d.releaseShare()
	switch {
	case a.gone:
		return d.general(Canceled, context.Cause(ctx).Error())
	case a.local:
		return d.verdict
	case a.err != nil:
		d.fallBack(a.err.Error())
		return d.verdict
	}
	d.noteCharge(a.Answer, a.granted, a.place)
	return d.answer(a.Answer, a.granted, a.place)
}

// collect fills want with the counters of all rules that apply. It returns a refusal when the policies alone decide.
func (d *decision) collect() (Decision, bool) {
	r := &d.request
	d.walk = d.s.matcher.Walk(r)
	d.subject.addrKnown = false
	for i, ok := d.walk.Next(); ok; i, ok = d.walk.Next() {
		rule := &d.s.rules[i]
		id, outcome := d.identify(rule)
		if outcome != keyFound && !d.peek {
			rule.tally.missing.Add(1)
		}
		switch outcome {
		case keySkipped:
			d.walk.Pass(i)
			continue
		case keyDenied:
			if !rule.shadow {
				return d.refuse(rule, KeyMissingDenied, Decision{
					Status: http.StatusBadRequest, Source: SourceKeyMissing, Cause: "a part of the rule's key is missing",
				}), true
			}
			d.count(rule, ShadowDenied)
			continue
		case keyFound, keyAbsent:
		}
		limits := rule.limitsFor(r.Attributes)
		if len(limits) == 0 {
			if !rule.shadow && d.unlimited == nil {
				d.unlimited = rule
			}
			continue
		}
		cost := rule.costOf(r.Attributes)
		if never := hopeless(limits, cost); never != nil {
			if !rule.shadow {
				return d.refuse(rule, CacheDenied, Decision{
					Status: http.StatusTooManyRequests, Source: SourceDenyCache, Cause: "no wait makes room for this request",
					Limit: never.row.Requests, Window: microseconds(never.row.Window),
				}), true
			}
			d.count(rule, ShadowDenied)
			continue
		}
		into := &d.want
		if rule.shadow {
			into = &d.shadow
			d.shadows = append(d.shadows, rule)
		}
		for j := range limits {
			into.add(Counter{Identity: id, ID: limits[j].row.ID, Limit: limits[j].exact, Cost: cost}, origin{rule, &limits[j]})
		}
		if rule.shadow {
			into.shadow = append(into.shadow, len(into.counters))
		}
	}
	d.join()
	return Decision{}, false
}

// join puts the counters of shadow rules behind the enforced ones.
func (d *decision) join() {
	d.want.peek = d.peek
	d.want.enforced = len(d.want.counters)
	for _, end := range d.shadow.shadow {
		d.want.shadow = append(d.want.shadow, d.want.enforced+end)
	}
	d.want.counters = append(d.want.counters, d.shadow.counters...)
	d.want.origins = append(d.want.origins, d.shadow.origins...)
}

// hopeless returns a limit that no wait makes this cost fit in.
func hopeless(limits []limit, cost int64) *limit {
	for i := range limits {
		if cost > limits[i].exact.Capacity() {
			return &limits[i]
		}
	}
	return nil
}

func (d *decision) identify(r *rule) (Identity, keyOutcome) {
	bit := uint64(1) << r.key.index
	if d.known&bit != 0 && !r.key.route {
		return d.identities[r.key.index], d.outcomes[r.key.index]
	}
	var id Identity
	var outcome keyOutcome
	id, outcome, d.buf = r.key.identify(&d.subject, d.buf)
	d.known |= bit
	d.identities[r.key.index], d.outcomes[r.key.index] = id, outcome
	return id, outcome
}

// takeHere asks a store in this process.
func (d *decision) takeHere(ctx context.Context) Decision {
	d.enter(&d.want)
	if _, err := d.e.options.Store.Take(ctx, d.entries[:], d.answers[:]); err != nil {
		d.fallBack(err.Error())
		return d.verdict
	}
	d.noteCharge(&d.answers[0], d.answers[0].Granted > 0, 0)
	return d.answer(&d.answers[0], d.answers[0].Granted > 0, 0)
}

// enter makes the want of this one caller an entry.
func (d *decision) enter(w *want) {
	d.entries[0] = Entry{Counters: w.counters, Enforced: w.enforced, Shadow: w.shadow, N: 1}
	if w.peek {
		d.entries[0].N = 0
	}
}

// answer says what the store decided. place is the caller's among those granted.
func (d *decision) answer(a *Answer, granted bool, place int64) Decision {
	if d.want.enforced == 0 {
		d.countShadows(a, place)
		return d.withoutLimits()
	}
	if d.peek {
		granted = allowAll(a.Results[:d.want.enforced])
	}
	after := max(0, a.Granted-1-place) // granted behind this one, and charged already
	if d.peek || !granted {
		after = 0
	}
	i := binding(d.want.counters[:d.want.enforced], a.Results, granted, after)
	out := d.describe(d.want.origins[i], d.want.counters[i].Cost, a.Results[i], after)
	out.Allowed, out.Source = granted, SourceStore
	if granted {
		out.Status, out.RetryAfter = http.StatusOK, 0
		d.countShadows(a, place)
		d.count(d.want.origins[i].rule, StoreAdmitted)
	} else {
		out.Status = http.StatusTooManyRequests
		d.count(d.want.origins[i].rule, StoreDenied)
	}
	return out
}

func allowAll(results []algorithm.Result) bool {
	for i := range results {
		if !results[i].Allowed {
			return false
		}
	}
	return true
}

// binding picks the limit that a decision shows. Of a denial it is the one that denies for longest: when it admits, all
// do. Of an admission it is the one with room for the fewest more such requests, and among those the one that takes
// longest to be full again.
func binding(counters []Counter, results []algorithm.Result, granted bool, after int64) int {
	best := -1
	for i := range counters {
		r := &results[i]
		if !granted && r.Allowed {
			continue
		}
		if best < 0 || tighter(&counters[i], r, &counters[best], &results[best], granted, after) {
			best = i
		}
	}
	return max(0, best)
}

func tighter(c *Counter, r *algorithm.Result, than *Counter, best *algorithm.Result, granted bool, after int64) bool {
	if !granted {
		return r.RetryAfter > best.RetryAfter
	}
	left, least := r.Remaining/c.Cost+after, best.Remaining/than.Cost+after
	return left < least || left == least && r.ResetAfter > best.ResetAfter
}

// describe fills in the numbers of one limit.
func (d *decision) describe(o origin, cost int64, r algorithm.Result, after int64) Decision {
	out := Decision{
		Policy:     o.rule.policy,
		Rule:       o.rule.name,
		Limit:      o.limit.row.Requests,
		Window:     microseconds(o.limit.row.Window),
		Remaining:  r.Remaining + after*cost,
		ResetAfter: microseconds(r.ResetAfter),
	}
	if r.Satisfiable {
		out.RetryAfter = microseconds(r.RetryAfter)
	}
	return out
}

// withoutLimits decides when no enforced rule has a limit for the request.
func (d *decision) withoutLimits() Decision {
	switch {
	case d.unlimited != nil:
		d.count(d.unlimited, UnlimitedAdmitted)
		return Decision{
			Allowed: true, Status: http.StatusOK, Policy: d.unlimited.policy, Rule: d.unlimited.name, Source: SourceExempt,
		}
	case d.walk.Exempt():
		return d.general(Exempt, "")
	}
	return d.general(NoRule, "")
}

func (d *decision) general(g General, cause string) Decision {
	if !d.peek {
		d.e.counts.general[g].Add(1)
	}
	return generalDecision(g, cause)
}

func generalDecision(g General, cause string) Decision {
	result, source := g.Names()
	out := Decision{Allowed: result == "admitted", Status: http.StatusOK, Source: source, Cause: cause}
	if !out.Allowed {
		out.Status, out.RetryAfter = http.StatusServiceUnavailable, failClosedRetry
	}
	return out
}

func (d *decision) refuse(r *rule, o Outcome, out Decision) Decision {
	d.count(r, o)
	out.Policy, out.Rule = r.policy, r.name
	return out
}

func (d *decision) count(r *rule, o Outcome) {
	if !d.peek {
		r.tally.decisions[o].Add(1)
	}
}

// countShadows counts what the shadow rules would have done with an admitted request.
func (d *decision) countShadows(a *Answer, place int64) {
	for i, rule := range d.shadows {
		if i < len(a.Shadow) && place < a.Shadow[i] {
			d.count(rule, ShadowAdmitted)
		} else {
			d.count(rule, ShadowDenied)
		}
	}
}

// microseconds reads µs; the longest wait that algorithms tell, 2^53-1 µs, is below the longest Duration.
func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
