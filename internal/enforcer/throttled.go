package enforcer

import (
	"context"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/sketch"
)

const (
	// throttledRoom is how many identities a sketch holds: 15 KB, of which each rule that denies has two. A count is too
	// high by at most a 128th of all that the rule denied.
	throttledRoom = 128
	// throttledPeriod is how long one sketch counts. What is reported is the last one and the one before.
	throttledPeriod = time.Minute
)

// throttled finds whom one rule denies most. Denials by what is remembered, of which a flood consists, come together
// from time to time: see denial.settle.
type throttled struct {
	mu     sync.Mutex
	now    *sketch.Sketch[Identity, string] // by the names of identities; nil until somebody is denied
	before *sketch.Sketch[Identity, string]
}

// add counts denied requests of an identity, and says whether it has no name yet.
func (t *throttled) add(id Identity, n int64) (nameless bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		t.now = sketch.New[Identity, string](throttledRoom)
		t.before = sketch.New[Identity, string](throttledRoom)
	}
	item, _ := t.now.Add(id, n)
	return item.Value == ""
}

func (t *throttled) name(id Identity, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if item := t.now.Find(id); item != nil {
		item.Value = name
	}
}

// turn begins a period.
func (t *throttled) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now, t.before = t.before, t.now
		t.now.Reset()
	}
}

// rule tells of both periods whom the rule denied; no more than most of them.
func (t *throttled) rule(name ruleName, most int) (policy.DeniedRule, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil || t.now.Total()+t.before.Total() == 0 {
		return policy.DeniedRule{}, false
	}
	merged := policy.MergeDenied([][]policy.DeniedRule{{deniedRule(name, t.before)}, {deniedRule(name, t.now)}}, most)
	return merged[0], true
}

func deniedRule(name ruleName, s *sketch.Sketch[Identity, string]) policy.DeniedRule {
	r := policy.DeniedRule{Policy: name.policy, Rule: name.rule, Total: s.Total(), Floor: s.Floor()}
	for _, item := range s.Items(nil) {
		r.Identities = append(r.Identities, policy.DeniedIdentity{
			ID: hex.EncodeToString(item.Key[:]), Name: item.Value, Denied: item.Count, Over: item.Over,
		})
	}
	return r
}

// throttle counts a request that a rule denied.
func (e *Enforcer) throttle(r *rule, id Identity, request *Request) {
	if e.throttles == nil {
		return
	}
	if t := &r.tally.throttled; t.add(id, 1) && e.options.IdentityName != nil {
		named := *request // the caller's own stays off the heap
		t.name(id, shortName(e.options.IdentityName(&named)))
	}
}

// throttle notes whom a rule denied. It is told when the decision is done, and no lock is held: the application may take
// its time to name somebody.
func (d *decision) throttle(r *rule, id Identity) {
	if !d.peek {
		d.throttledBy, d.throttled = r, id
	}
}

func (d *decision) tellThrottled() {
	if d.throttledBy != nil {
		d.e.throttle(d.throttledBy, d.throttled, &d.request)
		d.throttledBy = nil
	}
}

// shortName is a copy, since names are often parts of larger texts.
func shortName(name string) string {
	return strings.ToValidUTF8(strings.Clone(name[:min(len(name), policy.MaxDeniedName)]), "")
}

// throttledView is what polls know of it; it belongs to Poll.
type throttledView struct {
	started bool
	since   int64 // monotonic µs when this period began
	earlier int64 // and the one before
	failing bool
}

// reportDenied tells the table whom the rules denied, if they denied anybody. That it cannot changes nothing else.
func (e *Enforcer) reportDenied(ctx context.Context, now int64) {
	if e.throttles == nil {
		return
	}
	v := &e.throttledView
	if !v.started {
		v.started, v.since, v.earlier = true, now, now
	}
	e.denials.settleAll()
	if now-v.since >= throttledPeriod.Microseconds() {
		v.earlier, v.since = v.since, now
		e.tallies.turn()
	}
	rules := e.tallies.throttled()
	if len(rules) == 0 {
		return
	}
	report := policy.DeniedReport{
		Pod: e.options.Pod, From: e.clock.store(v.earlier), To: e.clock.store(now), Rules: rules,
	}
	err := e.throttles.ReportDenied(ctx, e.member, report, e.options.PollInterval)
	if err != nil && !v.failing {
		e.log.Warn("Cannot report who is denied most, which only kubectl weir top needs", "error", err)
	}
	v.failing = err != nil
}

// turn begins a period of all rules.
func (t *tallies) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tally := range t.rules {
		tally.throttled.turn()
	}
}

// throttled tells whom the rules denied, those that denied most first.
func (t *tallies) throttled() []policy.DeniedRule {
	t.mu.Lock()
	defer t.mu.Unlock()
	var parts [][]policy.DeniedRule
	for name, tally := range t.rules {
		if r, ok := tally.throttled.rule(name, policy.MaxDeniedOfRule); ok {
			parts = append(parts, []policy.DeniedRule{r})
		}
	}
	return policy.MergeDenied(parts, policy.MaxDeniedIdentities/max(1, len(parts), policy.MaxDeniedIdentities/policy.MaxDeniedOfRule))
}
