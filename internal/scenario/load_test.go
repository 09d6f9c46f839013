package scenario

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/manifest"
)

// good is a whole scenario; tests change one thing of it.
const good = `scenario: one export client
policies:
  - apiVersion: ratelimit.weir.dev/v1alpha1
    kind: RateLimitPolicy
    metadata: {name: checkout, namespace: shop}
    spec:
      targetRef: {group: apps, kind: Deployment, name: checkout}
      rules:
        - name: exports
          key: [{header: X-Api-Key}]
          limits: [{requests: 6, window: 1m, algorithm: FixedWindow}]
workload: {namespace: shop, kind: Deployment, name: checkout, replicas: 3}
stores: [memory, redis]
start: "2026-01-01T00:00:00Z"
trustedProxies: [10.0.0.0/8]
snapshot: {delay: 60s}
options: {storeTimeout: 10ms, whenNoPolicy: Open}
routes: [POST /exports]
propagation: Settled
steps:
  - at: 0s
    send: {count: 4, replica: 2, method: POST, path: /exports, headers: {X-Api-Key: alice}, every: 1s}
    expect: {admitted: 4}
  - at: 4s
    send: {count: 4, replica: {random: 7}, headers: {X-Api-Key: [alice, bob]}}
    expect:
      decisions: AADD
      last: {allowed: false, status: 429, rule: shop/checkout/exports, remaining: 0, retryAfter: 56s, source: Store, headers: {Retry-After: "56"}}
      sources: {Store: {atLeast: 3}}
      charged: {exports: 2}
  - at: 5s
    event: {store: {loseWrites: 2s}}
  - at: 5s
    event: {scale: {desired: 5, ready: 2, terminating: 1}}
  - at: 5s
    event: {reset: {rule: checkout/exports, key: alice}}
  - at: 6s
    expect: {status: {replicas: {counted: 5}}, share: {replica: 2, rule: exports, requests: 1}}
`

func parse(t *testing.T, text string, files map[string]string) ([]*Scenario, manifest.Faults) {
	t.Helper()
	return load(manifest.Parse("test/s.yaml", []byte(text)), func(name string) (*manifest.File, error) {
		text, ok := files[filepath.ToSlash(name)]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return manifest.Parse(name, []byte(text)), nil
	})
}

func TestAGoodScenarioLoads(t *testing.T) {
	scenarios, faults := parse(t, good, nil)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	if len(scenarios) != 1 || len(scenarios[0].Steps) != 6 {
		t.Fatalf("loaded %+v", scenarios)
	}
}

func TestFaultsOfScenariosNameFileLineAndPath(t *testing.T) {
	tests := map[string]struct {
		old, new string // what is changed in good
		want     string
	}{
		"a misspelled field": {
			"expect: {admitted: 4}", "expect: {admittd: 4}",
			"test/s.yaml:23: steps[0].expect.admittd: unknown field: did you mean admitted?",
		},
		"a broken policy": {
			"window: 1m,", "window: 1d,",
			`test/s.yaml:11: policies[0].spec.rules[0].limits[0].window: Invalid value: "1d": must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m`,
		},
		"time that goes back": {
			"at: 4s", "at: 2s",
			"test/s.yaml:22: steps[0].send.every: the last request would come at 3s, after the next step at 2s",
		},
		"a step before the one before it": {
			"at: 6s", "at: 4s500ms",
			"test/s.yaml:37: steps[5].at: must not be before the step before it, 5s",
		},
		"a step without a time": {
			"  - at: 6s\n    expect", "  - expect",
			"test/s.yaml:37: steps[5].at: Required value",
		},
		"a duration that is none": {
			"at: 6s", "at: 6",
			`test/s.yaml:37: steps[5].at: must be text: write "6"`,
		},
		"a duration with a fraction": {
			"at: 6s", "at: 6.5s",
			`test/s.yaml:37: steps[5].at: Invalid value: "6.5s": must be a duration such as 0s, 500ms, 90s or 1h30m`,
		},
		"a store that there is not": {
			"[memory, redis]", "[memory, mysql]",
			`test/s.yaml:13: stores[1]: Unsupported value: "mysql": supported values: "memory", "redis", "postgres"`,
		},
		"a state that there is not": {
			"{loseWrites: 2s}", "Gone",
			`test/s.yaml:32: steps[2].event.store: Unsupported value: "Gone": supported values: "Down", "Up", "Empty", "ReadOnly"`,
		},
		"two things in one event": {
			"{scale: {desired: 5, ready: 2, terminating: 1}}", "{scale: 3, restart: 0}",
			"test/s.yaml:34: steps[3].event: exactly one of store, scale, policy, deletePolicy, clock, restart, reset must be set",
		},
		"a step of nothing": {
			"event: {store: {loseWrites: 2s}}", "event: {}",
			"test/s.yaml:32: steps[2].event: exactly one of store, scale, policy, deletePolicy, clock, restart, reset must be set",
		},
		"a replica that there is not": {
			"replica: 2, method", "replica: 3, method",
			"test/s.yaml:22: steps[0].send.replica: there are 3 replicas at this time, and they count from 0",
		},
		"a replica that there is no more": {
			"share: {replica: 2", "share: {replica: 3",
			"test/s.yaml:38: steps[5].expect.share.replica: there are 3 replicas at this time, and they count from 0",
		},
		"more decisions than requests": {
			"AADD", "AADDD",
			"test/s.yaml:27: steps[1].expect.decisions: has 5 decisions of 4 requests",
		},
		"a decision that is none": {
			"AADD", "AABD",
			`test/s.yaml:27: steps[1].expect.decisions: Invalid value: "AABD": must be A and D only`,
		},
		"more admitted than sent": {
			"{admitted: 4}", "{admitted: 5}",
			"test/s.yaml:23: steps[0].expect.admitted: Invalid value: 5: must be from 0 to 4",
		},
		"bounds that hold nothing": {
			"{admitted: 4}", "{admitted: {atLeast: 3, atMost: 2}}",
			"test/s.yaml:23: steps[0].expect.admitted: no number is at least 3 and at most 2",
		},
		"a source that there is not": {
			"{Store: {atLeast: 3}}", "{Redis: 4}",
			"test/s.yaml:29: steps[1].expect.sources.Redis: no decision comes from there: known are Store, Lease, DenyCache, Prefilter, LocalShare, FailOpen, FailClosed, Exempt, NoRule, KeyMissing",
		},
		"a rule that there is not": {
			"{exports: 2}", "{export: 2}",
			`test/s.yaml:30: steps[1].expect.charged.export: there is no rule "export": known are checkout/exports`,
		},
		"a key of another length": {
			"key: alice}}", "key: [alice, bob]}}",
			"test/s.yaml:36: steps[4].event.reset.key: must have 1 values, one for each part of the rule's key",
		},
		"a status beside a send": {
			"expect: {admitted: 4}", "expect: {status: {replicas: {counted: 1}}}",
			"test/s.yaml:23: steps[0].expect.status: stands in a step of its own\ntest/s.yaml:23: steps[0].expect: expects nothing",
		},
		"an expectation of nothing": {
			"{admitted: 4}", "{}",
			"test/s.yaml:23: steps[0].expect: expects nothing",
		},
		"a cost where no rule has one": {
			"count: 4, replica: 2", "count: 4, cost: 3, replica: 2",
			"test/s.yaml:22: steps[0].send.cost: no rule of the scenario has a cost",
		},
		"a path that is none": {
			"path: /exports", "path: exports",
			"test/s.yaml:22: steps[0].send.path: must be an escaped path that starts with /",
		},
		"a proxy that is no prefix": {
			"[10.0.0.0/8]", "[10.0.0.0]",
			`test/s.yaml:15: trustedProxies[0]: Invalid value: "10.0.0.0": netip.ParsePrefix("10.0.0.0"): no '/'`,
		},
		"a start that is no time": {
			`"2026-01-01T00:00:00Z"`, "yesterday",
			`test/s.yaml:14: start: Invalid value: "yesterday": must be a time like 2026-01-31T12:00:00Z`,
		},
		"a policy for another workload": {
			"name: checkout, replicas: 3", "name: cart, replicas: 3",
			"test/s.yaml:3: policies: no policy targets shop/apps/Deployment/cart\n" +
				"test/s.yaml:7: policies[0].spec.targetRef.name: targets shop/apps/Deployment/checkout, but the scenario is about shop/apps/Deployment/cart",
		},
		"a policy file that there is not": {
			"policies:\n", "policies:\n  - gone.yaml\n",
			"test/s.yaml:3: policies[0]: there is no file test/gone.yaml",
		},
		"a broken policy file": {
			"policies:\n", "policies:\n  - ../config/broken.yaml\n",
			"config/broken.yaml:4: spec.rules: Required value",
		},
		"a policy file without policies": {
			"policies:\n", "policies:\n  - ../config/other.yaml\n",
			"test/s.yaml:3: policies[0]: config/other.yaml holds no policy",
		},
		"a pattern that ServeMux refuses": {
			"[POST /exports]", `["POST /a/{x}/{x}"]`,
			`test/s.yaml:18: routes: parsing "POST /a/{x}/{x}": at offset 12: duplicate wildcard name "x"`,
		},
		"a count of nothing": {
			"count: 4, replica: 2", "count: 0, replica: 2",
			"test/s.yaml:22: steps[0].send.count: must be from 1 to 1000000\ntest/s.yaml:23: steps[0].expect.admitted: Invalid value: 4: must be from 0 to 0",
		},
		"a snapshot that there is not": {
			"snapshot: {delay: 60s}", "snapshot: soon",
			`test/s.yaml:16: snapshot: Unsupported value: "soon": must be mounted or {delay: 60s}`,
		},
	}
	files := map[string]string{
		"config/broken.yaml": "apiVersion: ratelimit.weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: x}\nspec: {targetRef: {group: apps, kind: Deployment, name: checkout}}\n",
		"config/other.yaml":  "apiVersion: v1\nkind: Service\n",
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if strings.Count(good, tc.old) != 1 {
				t.Fatalf("%q is in the scenario %d times, want once", tc.old, strings.Count(good, tc.old))
			}
			scenarios, faults := parse(t, strings.Replace(good, tc.old, tc.new, 1), files)
			if scenarios != nil {
				t.Error("the scenario was loaded all the same")
			}
			if diff := cmp.Diff(tc.want, faults.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	scenarios, faults := parse(t, `
scenario: defaults
policies: [p.yaml]
steps: [{at: 0s, send: {}, expect: {admitted: 1}}]
`, map[string]string{"test/p.yaml": `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: all}
spec: {targetRef: {group: apps, kind: Deployment, name: web}, rules: [{name: all, limits: [{requests: 1, window: 1s}]}]}
`})
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	s := scenarios[0]
	got := fmt.Sprintf("%v %d %v %v %v %v %v %s %s", s.target(), *s.Workload.Replicas, s.Stores, s.Start, s.Options,
		s.Propagation, *s.Steps[0].Send.Count, s.Steps[0].Send.Method, s.Steps[0].Send.Path)
	want := "default/apps/Deployment/web 1 [memory] 1970-01-01 00:00:00 +0000 UTC {10ms Open} Settled 1 GET /"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzLoad: whatever a file holds, loading it ends, and gives scenarios or faults.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(good))
	files, err := filepath.Glob("../../test/scenarios/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		scenarios, faults := load(manifest.Parse("f.yaml", data), func(name string) (*manifest.File, error) {
			return nil, fs.ErrNotExist
		})
		if (scenarios == nil) == (faults == nil) {
			t.Errorf("%d scenarios and %d faults", len(scenarios), len(faults))
		}
		for _, fault := range faults {
			if fault.Line == 0 && fault.Path != "" {
				t.Errorf("no line for %v", fault)
			}
		}
	})
}
