package scenario

import (
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/ratelimit"
)

// failures judges all steps, in their order.
func (r *run) failures() []Failure {
	var all []Failure
	for _, out := range r.steps {
		step := &r.scenario.Steps[out.step]
		j := judge{scenario: r.scenario, failures: out.found}
		if out.sent != nil {
			j.sent(step, out.sent)
		}
		node := r.scenario.stepNode(out.step)
		for _, f := range j.failures {
			f.Step, f.At, f.Line = out.step, step.At, node.Find(f.Path).Line()
			all = append(all, f)
		}
	}
	return all
}

// sends are the results of all steps that send.
func (r *run) sends() []SendResult {
	var all []SendResult
	j := judge{scenario: r.scenario}
	for _, out := range r.steps {
		if out.sent == nil {
			continue
		}
		s := out.sent
		result := SendResult{Step: out.step, Decisions: string(s.decisions), Sources: s.sources, Charged: make(map[string]int64)}
		for _, rule := range r.scenario.rules() {
			name := rule.policy + "/" + rule.rule.Name
			result.Charged[name] = j.charged(name, s)
		}
		result.Last = fmt.Sprintf("%d %s, %s/%s: %d of %d left, retry after %v, reset after %v",
			s.last.Status, s.last.Source, s.last.Policy, s.last.Rule, s.last.Remaining, s.last.Limit,
			Duration(s.last.RetryAfter), Duration(s.last.ResetAfter))
		all = append(all, result)
	}
	return all
}

// judge compares what came with what was expected.
type judge struct {
	scenario *Scenario
	failures []Failure
}

func (j *judge) fail(path, expected, got string) {
	j.failures = append(j.failures, Failure{Path: path, Expected: expected, Got: got})
}

func (j *judge) sent(step *Step, s *sent) {
	if s.waiting > 0 {
		j.fail("send", "an answer to each request", fmt.Sprintf("none to %d", s.waiting))
		return
	}
	e := step.Expect
	if e == nil {
		return
	}
	j.number("expect.admitted", e.Admitted, s.count("A"))
	j.number("expect.denied", e.Denied, s.count("D"))
	if expected := e.decisions(); expected != "" && expected != string(s.decisions) {
		j.fail("expect.decisions", expected, s.shown())
	}
	j.decision("expect.first", e.First, s.first)
	j.decision("expect.last", e.Last, s.last)
	for _, source := range sortedKeys(e.Sources) {
		number := e.Sources[source]
		if got := s.sources[string(source)]; !number.holds(got) {
			j.fail("expect.sources."+string(source), number.String(), fmt.Sprintf("%d of %v", got, shownSources(s.sources)))
		}
	}
	for _, name := range sortedKeys(e.Charged) {
		number := e.Charged[name]
		if got := j.charged(name, s); !number.holds(got) {
			j.fail("expect.charged."+name, number.String(), fmt.Sprint(got))
		}
	}
}

// charged is what the store was charged for a rule. An override may have fewer limits than the rule: the one that was
// charged most tells.
func (j *judge) charged(name string, s *sent) int64 {
	rules := j.scenario.rules()
	rule, err := rules.find(name)
	if err != nil {
		return 0 // Load refuses it
	}
	var most int64
	for _, id := range rules.limitIDs(j.scenario.target(), rule) {
		charged := s.chargedAfter[id] - s.chargedBefore[id]
		if charged > most || most == 0 {
			most = charged
		}
	}
	return most
}

func (j *judge) number(path string, n *Number, got int64) {
	if n != nil && !n.holds(got) {
		j.fail(path, n.String(), fmt.Sprint(got))
	}
}

func (n Number) holds(got int64) bool {
	return (n.Exactly == nil || got == *n.Exactly) && (n.AtLeast == nil || got >= *n.AtLeast) && (n.AtMost == nil || got <= *n.AtMost)
}

// String tells the number in words.
func (n Number) String() string {
	if n.Exactly != nil {
		return fmt.Sprint(*n.Exactly)
	}
	var words []string
	if n.AtLeast != nil {
		words = append(words, fmt.Sprintf("at least %d", *n.AtLeast))
	}
	if n.AtMost != nil {
		words = append(words, fmt.Sprintf("at most %d", *n.AtMost))
	}
	return strings.Join(words, " and ")
}

func (j *judge) decision(path string, e *DecisionFields, got enforcer.Decision) {
	if e == nil {
		return
	}
	same(j, path+".allowed", e.Allowed, got.Allowed)
	same(j, path+".status", e.Status, got.Status)
	same(j, path+".limit", e.Limit, got.Limit)
	same(j, path+".remaining", e.Remaining, got.Remaining)
	same(j, path+".retryAfter", e.RetryAfter, Duration(got.RetryAfter))
	same(j, path+".resetAfter", e.ResetAfter, Duration(got.ResetAfter))
	same(j, path+".source", e.Source, Source(got.Source))
	if e.Rule != nil {
		j.rule(path+".rule", *e.Rule, got)
	}
	header := make(http.Header)
	decision := ratelimit.Decision(got)
	decision.SetHeader(header)
	for _, name := range sortedKeys(e.Headers) {
		if value := header.Get(name); value != e.Headers[name] {
			j.fail(path+".headers."+name, strconv.Quote(e.Headers[name]), strconv.Quote(value))
		}
	}
}

func (j *judge) rule(path, expected string, got enforcer.Decision) {
	name := ""
	if got.Rule != "" {
		name = j.scenario.Workload.Namespace + "/" + got.Policy + "/" + got.Rule
	}
	if name != expected && (expected == "" || !strings.HasSuffix(name, "/"+expected)) {
		j.fail(path, strconv.Quote(expected), strconv.Quote(name))
	}
}

// same compares a field that may be absent.
func same[T comparable](j *judge, path string, expected *T, got T) {
	if expected != nil && *expected != got {
		j.fail(path, fmt.Sprint(*expected), fmt.Sprint(got))
	}
}

func shownSources(sources map[string]int64) string {
	var shown []string
	for _, source := range sortedKeys(sources) {
		shown = append(shown, fmt.Sprintf("%s %d", source, sources[source]))
	}
	return "{" + strings.Join(shown, ", ") + "}"
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
	return keys
}

// look judges an expectation that stands alone, at its time.
func (r *run) look(out *outcome, e *Expect) error {
	j := judge{scenario: r.scenario}
	if e.Share != nil {
		r.lookAtShare(&j, e.Share)
	}
	if e.Status != nil {
		if err := r.lookAtStatus(&j, e.Status); err != nil {
			return err
		}
	}
	out.found = append(out.found, j.failures...)
	return nil
}

func (r *run) lookAtShare(j *judge, e *ShareFields) {
	if e.Replica >= len(r.cluster.pods) {
		j.fail("expect.share.replica", "a replica that serves", fmt.Sprintf("replica %d does not serve at this time", e.Replica))
		return
	}
	rule, err := r.scenario.rules().find(e.Rule)
	if err != nil {
		return // Load refuses it
	}
	share, ok := r.cluster.share(r.cluster.pods[e.Replica], rule, e.Key)
	if !ok {
		j.fail("expect.share.rule", "a rule in force", fmt.Sprintf("replica %d does not enforce %s", e.Replica, e.Rule))
		return
	}
	same(j, "expect.share.requests", e.Requests, share.Requests)
	same(j, "expect.share.burst", e.Burst, share.Burst)
	same(j, "expect.share.window", e.Window, Duration(time.Duration(share.Window)*time.Microsecond))
}
