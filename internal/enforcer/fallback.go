package enforcer

import (
	"net/http"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// failClosedRetry is what a request that failed closed is told to wait: about as long as it takes to find the store
// back.
const failClosedRetry = time.Second

// onFailure is who decides about a rule without the store.
func (d *decision) onFailure(r *rule) policy.OnStoreFailure {
	if d.e.split { // there is none that could fail
		return policy.OnStoreFailureLocalShare
	}
	return r.onFailure
}

// fallBack decides without the store, by each rule's own onStoreFailure, and says whether and when it admitted. One rule that
// fails closed denies; then the local shares of the others decide, all or none; what remains fails open. The verdict
// is left in d.
func (d *decision) fallBack(cause string) (admitted bool, at int64) {
	d.releaseShare()
	d.e.decidesAlone()
	d.share.reset()
	d.shares = d.shares[:0]
	var open *rule
	for i := range d.want.origins[:d.want.enforced] {
		o := d.want.origins[i]
		switch d.onFailure(o.rule) {
		case policy.OnStoreFailureFailClosed:
			d.verdict = d.refuse(o.rule, FailClosedDenied, Decision{
				Status: http.StatusServiceUnavailable, RetryAfter: failClosedRetry, Source: SourceFailClosed, Cause: cause,
			})
			return false, 0
		case policy.OnStoreFailureFailOpen:
			if open == nil {
				open = o.rule
			}
		default:
			d.addShare(i)
		}
	}
	d.share.enforced, d.share.peek = len(d.share.counters), d.peek
	d.shareShadows()

	a := &d.answers[0]
	*a = Answer{Results: a.Results[:0], Shadow: a.Shadow[:0]}
	granted := true
	at = d.e.clock.store(d.e.clock.monotonic())
	if len(d.share.counters) > 0 {
		d.enter(&d.share)
		d.e.options.Local.TakeShare(at, &d.entries[0], d.shares, a)
		granted = a.Granted > 0
		if d.peek {
			granted = allowAll(a.Results[:d.share.enforced])
		}
	}
	switch {
	case d.share.enforced > 0:
		d.shareVerdict(a, granted, cause)
	case open != nil:
		d.count(open, FailOpenAdmitted)
		d.verdict = Decision{
			Allowed: true, Status: http.StatusOK, Policy: open.policy, Rule: open.name, Source: SourceFailOpen, Cause: cause,
		}
	default: // only shadow rules
		d.verdict = d.withoutLimits()
	}
	if d.verdict.Allowed {
		d.noteOpen(at)
		d.countShadowShares(a)
	}
	return d.verdict.Allowed, at
}

// fallBackAgain is fallBack for a decision whose memory was given away.
func (d *decision) fallBackAgain(s *snapshot, r *Request, cause string) (admitted bool, at int64) {
	d.again(s, r)
	return d.fallBack(cause)
}

func (d *decision) addShare(i int) {
	o, c := d.want.origins[i], d.want.counters[i]
	d.share.add(c, o)
	d.shares = append(d.shares, d.e.shareOf(o, c.Identity))
}

// noteOpen remembers what rules admit that fail open, so that the store is told of it when it is back.
func (d *decision) noteOpen(now int64) {
	if d.peek {
		return
	}
	for i := range d.want.origins[:d.want.enforced] {
		if d.onFailure(d.want.origins[i].rule) == policy.OnStoreFailureFailOpen {
			d.e.options.Local.Admit(now, &d.want.counters[i], int64(d.e.place().N))
		}
	}
}

// shareShadows adds the shadow rules that would decide by their local share.
func (d *decision) shareShadows() {
	start := d.want.enforced
	for i, end := range d.want.shadow[:len(d.shadows)] {
		if d.onFailure(d.shadows[i]) == policy.OnStoreFailureLocalShare {
			for j := start; j < end; j++ {
				d.addShare(j)
			}
			d.share.shadow = append(d.share.shadow, len(d.share.counters))
		}
		start = end
	}
}

func (d *decision) countShadowShares(a *Answer) {
	share := 0
	for _, rule := range d.shadows {
		outcome := ShadowAdmitted
		switch d.onFailure(rule) {
		case policy.OnStoreFailureFailClosed:
			outcome = ShadowDenied
		case policy.OnStoreFailureLocalShare:
			if share >= len(a.Shadow) || a.Shadow[share] < 1 {
				outcome = ShadowDenied
			}
			share++
		case policy.OnStoreFailureFailOpen:
		}
		d.count(rule, outcome)
	}
}

func (d *decision) shareVerdict(a *Answer, granted bool, cause string) {
	i := binding(d.share.counters[:d.share.enforced], a.Results, granted, 0)
	o := d.share.origins[i]
	d.verdict.describe(&o, d.share.counters[i].Cost, &a.Results[i], 0)
	v := &d.verdict
	v.Allowed, v.Source, v.Cause = granted, SourceLocalShare, cause
	if granted {
		v.Status, v.RetryAfter = http.StatusOK, 0
		d.count(o.rule, ShareAdmitted)
		return
	}
	v.Status = http.StatusTooManyRequests
	if !a.Results[i].Satisfiable { // by the share of this moment, which grows, or by that of another replica
		v.RetryAfter = failClosedRetry
	}
	d.throttle(o.rule, d.share.counters[i].Identity)
	d.count(o.rule, ShareDenied)
}
