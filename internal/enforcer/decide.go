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
	last    repeat
	odd     bool // a part of a rule's key is missing
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
	verdict Decision // what was decided
	charge  *Charge  // of those who settle, else nil
	// throttledBy denied the identity throttled; nil: nobody is to be told of.
	throttledBy *rule
	throttled   Identity
}

func (d *decision) release() {
	d.s, d.request, d.unlimited = nil, Request{}, nil
	d.known, d.odd = 0, false
	if d.last.s == nil {
		d.want.reset()
	}
	d.shadow.reset()
	d.share.reset()
	d.hold.reset()
	clear(d.shadows)
	d.shadows = d.shadows[:0]
}

// newDecision returns one that belongs to e, as its parts do to it.
func newDecision(e *Enforcer) *decision {
	d := &decision{e: e}
	d.subject = subject{
		request: &d.request, walk: &d.walk, trusted: e.options.TrustedProxies, memo: &d.memo, hasher: e.hasher(),
		doubt: e.notBelieved,
	}
	return d
}

// decide leaves what it decides in verdict, where it is not copied from hand to hand. It returns a caller instead if a
// batch is to be waited for and the decision's memory is not needed for that.
func (d *decision) decide(ctx context.Context, s *snapshot, r *Request, peek bool) (c *caller, since time.Duration) {
	d.s, d.request, d.peek = s, *r, peek
	if !d.collect() {
		return nil, 0
	}
	if len(d.want.counters) == 0 {
		d.verdict = d.withoutLimits()
		return nil, 0
	}
	if d.e.split {
		d.fallBack("")
		return nil, 0
	}
	if d.e.options.InProcess {
		d.takeHere(ctx)
		return nil, 0
	}
	// Who settles has to know what the store charged for this one request.
	if d.charge == nil && d.leased() || !peek && d.denied() {
		return nil, 0
	}
	if d.e.breaker.open.Load() {
		d.e.probe()
		d.fallBack(d.e.breaker.why())
		return nil, 0
	}
	if d.filtered() || !d.holdShare() {
		return nil, 0
	}
	return d.ask(ctx)
}

// ask asks the store, together with others.
func (d *decision) ask(ctx context.Context) (c *caller, since time.Duration) {
	b := d.e.batcher
	since = d.e.options.Runtime.Elapsed()
	c, era, how := b.join(ctx, &d.want, since)
	switch {
	case how == joinFull:
		d.e.counts.fail(ReasonFull)
		d.take(ctx, answer{err: errFull})
	case how == joinAlone:
		d.take(ctx, b.alone(ctx, d, era, since))
	case d.plain():
		return c, since
	default:
		late := func() (bool, int64) { return d.fallBack(timeoutCause) }
		d.take(ctx, b.outcome(c, b.await(ctx, c, since, late)))
	}
	return nil, 0
}

// plain says that a batch holds all that is needed to answer.
func (d *decision) plain() bool {
	return d.charge == nil && !d.peek && d.want.enforced > 0 && len(d.shadows) == 0 && !d.hold.held
}

// take takes over what became of the question.
func (d *decision) take(ctx context.Context, a answer) {
	d.releaseShare()
	switch {
	case a.gone:
		d.verdict = d.general(Canceled, context.Cause(ctx).Error())
	case a.local: // it fell back
	case a.err != nil:
		d.fallBack(a.err.Error())
	default:
		d.noteCharge(a.Answer, a.granted, a.place)
		d.answer(a.Answer, a.granted, a.place)
	}
}

// collect fills want with the counters of all rules that apply. It returns false when the policies alone refuse.
func (d *decision) collect() bool {
	if d.repeats() {
		return true
	}
	if d.last.s != nil {
		d.last.s = nil
		d.want.reset()
	}
	r := &d.request
	d.s.matcher.Start(&d.walk, r)
	d.subject.addrKnown = false
	for i, ok := d.walk.Next(); ok; i, ok = d.walk.Next() {
		rule := &d.s.rules[i]
		rule.seen(d.peek)
		id, outcome := d.identify(rule)
		if outcome != keyFound {
			d.missing(rule)
		}
		switch outcome {
		case keySkipped:
			d.walk.Pass(i)
			continue
		case keyDenied:
			if !rule.shadow {
				d.verdict = d.refuse(rule, KeyMissingDenied, Decision{
					Status: http.StatusBadRequest, Source: SourceKeyMissing, Cause: "a part of the rule's key is missing",
				})
				return false
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
				d.throttle(rule, id)
				d.verdict = d.refuse(rule, CacheDenied, Decision{
					Status: http.StatusTooManyRequests, Source: SourceDenyCache, Cause: "no wait makes room for this request",
					Limit: never.row.Requests, Window: microseconds(never.row.Window),
				})
				return false
			}
			d.count(rule, ShadowDenied)
			continue
		}
		into := &d.want
		switch {
		case rule.shadow:
			into = &d.shadow
			d.shadows = append(d.shadows, rule)
		case len(into.counters) == 0:
			into.lease = rule.ahead.lease
		default:
			into.lease = min(into.lease, rule.ahead.lease)
		}
		for j := range limits {
			into.add(Counter{Identity: id, ID: limits[j].row.ID, Limit: limits[j].exact, Cost: cost}, origin{rule, &limits[j]})
		}
		if rule.shadow {
			into.shadow = append(into.shadow, len(into.counters))
		}
	}
	d.join()
	d.remember()
	return true
}

func (d *decision) missing(r *rule) {
	d.odd = true
	if !d.peek {
		r.tally.missing.Add(1)
	}
}

// again collects what was collected before, and has been counted then.
func (d *decision) again(s *snapshot, r *Request) {
	d.s, d.request, d.peek = s, *r, true
	d.subject.doubt = nil
	d.collect()
	d.subject.doubt = d.e.notBelieved
	d.peek, d.want.peek = false, false
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
func (d *decision) takeHere(ctx context.Context) {
	d.enter(&d.want)
	if _, err := d.e.options.Store.Take(ctx, d.entries[:], d.answers[:]); err != nil {
		d.fallBack(err.Error())
		return
	}
	d.noteCharge(&d.answers[0], d.answers[0].Granted > 0, 0)
	d.answer(&d.answers[0], d.answers[0].Granted > 0, 0)
}

// enter makes the want of this one caller an entry.
func (d *decision) enter(w *want) {
	d.entries[0] = Entry{Counters: w.counters, Enforced: w.enforced, Shadow: w.shadow, N: 1}
	if w.peek {
		d.entries[0].N = 0
	}
}

// answer takes over what the store decided. place is the caller's among those granted.
func (d *decision) answer(a *Answer, granted bool, place int64) {
	if d.want.enforced == 0 {
		d.countShadows(a, place)
		d.verdict = d.withoutLimits()
		return
	}
	if d.peek {
		granted = allowAll(a.Results[:d.want.enforced])
	}
	if granted {
		after := max(0, a.Granted-1-place) // granted behind this one, and charged already
		if d.peek {
			after = 0
		}
		d.admit(a, place, after, StoreAdmitted)
		return
	}
	i := d.verdict.deniedBy(d.want.counters[:d.want.enforced], d.want.origins, a)
	d.throttle(d.want.origins[i].rule, d.want.counters[i].Identity)
	d.count(d.want.origins[i].rule, StoreDenied)
}

// admit describes an admission by what a store answered. The caller's place is among those granted, and after is how
// many of them are charged already and come behind him.
func (d *decision) admit(a *Answer, place, after int64, by Outcome) {
	rule := d.verdict.admittedBy(d.want.counters[:d.want.enforced], d.want.origins, a, after)
	_, d.verdict.Source = by.Names()
	d.countShadows(a, place)
	d.count(rule, by)
}

// deniedBy describes a denial by a store, and returns which counter it shows.
func (v *Decision) deniedBy(enforced []Counter, origins []origin, a *Answer) int {
	i := binding(enforced, a.Results, false, 0)
	v.describe(&origins[i], enforced[i].Cost, &a.Results[i], 0)
	v.Status, v.Source = http.StatusTooManyRequests, SourceStore
	return i
}

// admittedBy describes an admission by a store, and returns the rule that shows.
func (v *Decision) admittedBy(enforced []Counter, origins []origin, a *Answer, after int64) *rule {
	i := binding(enforced, a.Results, true, after)
	v.describe(&origins[i], enforced[i].Cost, &a.Results[i], after)
	v.Allowed, v.Status, v.Source, v.RetryAfter = true, http.StatusOK, SourceStore, 0
	v.MoreAfter = microseconds(enforced[i].Limit.MoreAfter(&a.Results[i]))
	return origins[i].rule
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
	if len(counters) == 1 {
		return 0
	}
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

// describe fills in the numbers of one limit, of a denial without a source.
func (v *Decision) describe(o *origin, cost int64, r *algorithm.Result, after int64) {
	v.Allowed, v.Status, v.Source, v.Cause = false, 0, "", ""
	v.Policy, v.Rule = o.rule.policy, o.rule.name
	v.Limit, v.Window = o.limit.row.Requests, microseconds(o.limit.row.Window)
	v.Remaining = r.Remaining + after*cost
	v.RetryAfter, v.ResetAfter, v.MoreAfter = 0, microseconds(r.ResetAfter), 0
	if r.Satisfiable {
		v.RetryAfter = microseconds(r.RetryAfter)
	}
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
		r.tally.add(o)
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
