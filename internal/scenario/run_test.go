package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/controllers"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// head is a scenario of one rule: 5 per minute in fixed windows, on two replicas. Tests add steps.
const head = `scenario: test
policies:
  - apiVersion: ratelimit.weir.dev/v1alpha1
    kind: RateLimitPolicy
    metadata: {name: p, namespace: shop}
    spec:
      targetRef: {group: apps, kind: Deployment, name: web}
      rules: [{name: r, onStoreFailure: MODE, limits: [{requests: 5, window: 1m, algorithm: FixedWindow}]}]
workload: {namespace: shop, name: web, replicas: 2}
steps:
`

func runText(t *testing.T, text string) Result {
	t.Helper()
	scenarios, faults := parse(t, text, nil)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	runner := Runner{Controller: func(w policy.Workload, owner string) Controller { return controllers.NewPreview(w, owner) }}
	result, err := runner.Run(t.Context(), scenarios[0], Memory)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// told is what is told of each send, in a line.
func told(r Result) []string {
	var lines []string
	for _, s := range r.Sends {
		lines = append(lines, s.Decisions+" "+shownSources(s.Sources))
	}
	for _, f := range r.Failures {
		lines = append(lines, f.String())
	}
	return lines
}

func TestFaultsOfTheStore(t *testing.T) {
	tests := map[string]struct {
		mode, steps string
		want        []string
	}{
		"down for one replica only": {"FailClosed", `
  - {at: 0s, event: {store: Down, replicas: [1]}}
  - {at: 0s, send: {count: 4, replica: roundRobin}}
  - {at: 0s, event: {store: Up}}
  - {at: 0s, send: {count: 2, replica: roundRobin}}
`, []string{"ADAD {FailClosed 2, Store 2}", "AA {Store 2}"}},
		"each request of an instant waits for itself": {"FailClosed", `
  - {at: 0s, event: {store: {slow: 15ms}}}
  - {at: 0s, send: {count: 3}}
  - {at: 9ms, send: {}}
`, []string{"DDD {FailClosed 3}", "D {FailClosed 1}"}},
		"slow, but in time": {"FailClosed", `
  - {at: 0s, event: {store: {slow: 9ms}}}
  - {at: 0s, send: {}}
`, []string{"A {Store 1}"}},
		"an answer that came too late is given back": {"FailClosed", `
  - {at: 0s, event: {store: {slow: 100ms}}}
  - {at: 0s, send: {}, expect: {charged: {r: 1}}}
  - {at: 1s, event: {store: Up}}
  - {at: 1s, send: {peek: true}, expect: {last: {remaining: 5}}}
`, []string{"D {FailClosed 1}", "A {Store 1}"}},
		"an answer that never came stays charged": {"FailClosed", `
  - {at: 0s, event: {store: {loseReplies: 2}}}
  - {at: 0s, send: {count: 2}, expect: {charged: {r: 2}}}
  - {at: 1s, send: {count: 4}, expect: {last: {remaining: 0}}}
`, []string{"DD {FailClosed 2}", "AAAD {Store 4}"}},
		"read-only": {"FailOpen", `
  - {at: 0s, event: {store: ReadOnly}}
  - {at: 0s, send: {count: 6}}
  - {at: 0s, event: {store: Up}}
  - {at: 0s, send: {count: 6}}
`, []string{"AAAAAA {FailOpen 6}", "AAAAAD {Store 6}"}},
		"empty": {"FailClosed", `
  - {at: 0s, send: {count: 6}}
  - {at: 0s, event: {store: Empty}}
  - {at: 0s, send: {count: 6}}
`, []string{"AAAAAD {Store 6}", "AAAAAD {Store 6}"}},
		"the last second of writes is lost": {"FailClosed", `
  - {at: 0s, send: {count: 2}}
  - {at: 2s, send: {count: 2}}
  - {at: 3s, event: {store: {loseWrites: 1s1ms}}}
  - {at: 3s, send: {count: 6}}
  - {at: 4s, event: {store: {loseWrites: 1s1ms}}}
  - {at: 4s, send: {count: 6}}
  - {at: 60s, send: {count: 6}}
`, []string{"AA {Store 2}", "AA {Store 2}", "AAADDD {Store 6}", "AAADDD {Store 6}", "AAAAAD {Store 6}"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			result := runText(t, strings.Replace(head, "MODE", tc.mode, 1)+strings.TrimPrefix(tc.steps, "\n"))
			if diff := cmp.Diff(tc.want, told(result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventsOfTheCluster(t *testing.T) {
	tests := map[string]struct {
		steps string
		want  []string
	}{
		"a reset gives an identity its budget back, in the store and in the shares": {`
  - {at: 0s, send: {count: 6}}
  - {at: 0s, event: {reset: {rule: r, key: []}}}
  - {at: 0s, send: {count: 6}}
`, []string{"AAAAAD {Store 6}", "AAAAAD {Store 6}"}},
		"a replica that restarts in an outage knows no policies": {`
  - {at: 0s, event: {store: Down}}
  - {at: 0s, event: {restart: 1}}
  - {at: 0s, send: {count: 2, replica: roundRobin}}
`, []string{"AA {FailOpen 1, LocalShare 1}"}},
		"a deleted policy limits nothing": {`
  - {at: 0s, event: {deletePolicy: p}}
  - {at: 0s, send: {count: 9}}
`, []string{"AAAAAAAAA {NoRule 9}"}},
		"a status tells what the pods do": {`
  - at: 0s
    expect:
      status:
        observedGeneration: 1
        replicas: {counted: 2, ready: 2, desired: 2, terminating: 0}
        enforcers: {reporting: 2, current: 2, summary: 2/2}
        conditions: [{type: Ready, status: "True"}, {type: Enforced, status: "True", reason: Enforced}, {type: Stalled, status: Absent}]
  - {at: 1s, event: {store: Down}}
  - {at: 1s, expect: {status: {conditions: [{type: Programmed, status: "True"}, {type: Enforced, status: "False"}]}}}
`, []string{
			"steps[2] at 1s: status.conditions[1].status: expected False, got Unknown (StoreUnreachable: The policy table does not answer, so nothing is known of the pods)",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			result := runText(t, strings.Replace(head, "MODE", "LocalShare", 1)+strings.TrimPrefix(tc.steps, "\n"))
			if diff := cmp.Diff(tc.want, told(result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The same scenario gives the same result, also where chance is in it.
func TestRunsAreTheSameEveryTime(t *testing.T) {
	text := strings.Replace(head, "MODE", "LocalShare", 1) + `
  - {at: 0s, event: {store: {slow: 100ms}}}
  - {at: 0s, send: {count: 200, replica: {random: 7}, every: 7ms}}
  - {at: 2s, event: {scale: 5}}
  - {at: 2s, send: {count: 200, replica: {random: 8}, every: 7ms}}
  - {at: 4s, event: {store: Up}}
  - {at: 60s, send: {count: 200, replica: {random: 9}, every: 7ms}}
`
	for _, propagation := range []Propagation{Settled, Real} {
		text := strings.Replace(text, "steps:", "propagation: "+string(propagation)+"\nsteps:", 1)
		first := runText(t, text)
		for range 3 {
			if diff := cmp.Diff(told(first), told(runText(t, text))); diff != "" {
				t.Errorf("%s: (-first +again):\n%s", propagation, diff)
			}
		}
	}
}

func TestAStoreThatIsNotThereIsSkippedAndTold(t *testing.T) {
	scenarios, faults := parse(t, strings.Replace(head, "MODE", "FailOpen", 1)+"  - {at: 0s, send: {}}\n", nil)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	result, err := Runner{}.Run(t.Context(), scenarios[0], Redis)
	if err != nil || result.Skipped == "" || result.Passed() {
		t.Errorf("result %+v, error %v, want it skipped", result, err)
	}
}

// What a replica denies again without asking counts as denied by whoever denied first.
func TestFirstSource(t *testing.T) {
	r := &run{deniers: make(map[denial]string)}
	alice, bob := denial{rule: "r", request: "alice"}, denial{rule: "r", request: "bob"}
	repeated := enforcer.Decision{Source: enforcer.SourceDenyCache, RetryAfter: 1}
	var got []string
	for _, d := range []struct {
		by denial
		d  enforcer.Decision
	}{
		{alice, enforcer.Decision{Source: enforcer.SourceStore, RetryAfter: 2}},
		{alice, repeated},
		{bob, repeated},
		{bob, enforcer.Decision{Source: enforcer.SourceLocalShare}},
		{bob, repeated},
		{alice, enforcer.Decision{Source: enforcer.SourceDenyCache}}, // for ever
		{alice, enforcer.Decision{Source: enforcer.SourceStore, Allowed: true}},
	} {
		got = append(got, r.firstSource(d.by, d.d))
	}
	want := []string{"Store", "Store", "DenyCache", "LocalShare", "LocalShare", "DenyCache", "Store"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
