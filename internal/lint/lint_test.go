package lint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/manifest"
)

// policyOf is a policy file with this spec, whose first line is line 5.
func policyOf(name, spec string) string {
	return "apiVersion: ratelimit.weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: " + name +
		"}\nspec:\n" + "  targetRef: {group: apps, kind: Deployment, name: web}\n" + spec
}

func read(t *testing.T, texts ...string) []manifest.Policy {
	t.Helper()
	f := manifest.Parse("p.yaml", []byte(strings.Join(texts, "---\n")))
	policies := f.Policies(manifest.DefaultNamespace)
	if err := f.Faults().Err(); err != nil {
		t.Fatal(err)
	}
	return policies
}

func TestWarnings(t *testing.T) {
	tests := map[string]struct {
		spec string
		want []string
	}{
		"nothing to say": {
			`  rules:
    - {name: all, key: [{header: X-Api-Key}], limits: [{requests: 5, window: 1m}, {requests: 50, window: 24h}]}
`, nil,
		},
		"a rule for all callers together among others": {
			`  rules:
    - {name: each, key: [{header: X-Api-Key}], limits: [{requests: 5, window: 1m}]}
    - {name: all, limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[1]: has no key, so all callers together have its limits, while other rules of this policy count by a key"},
		},
		"a key that every client writes": {
			`  rules:
    - {name: each, key: [{firstOf: [{header: X-Api-Key}, {header: x-forwarded-for}]}], limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:7: spec.rules[0].key[0]: counts by X-Forwarded-For, which every client can write: clientIP reads it behind trusted proxies only"},
		},
		"a limit that another one makes idle": {
			`  rules:
    - {name: all, limits: [{requests: 100, window: 1m}, {requests: 6100, window: 1h}]}
`, []string{"p.yaml:7: spec.rules[0].limits[1]: never denies: limits[0], 100 per 1m, admits at most 6100 in 1h"},
		},
		"a limit that is hit now and then": {
			`  rules:
    - {name: all, limits: [{requests: 100, window: 1m}, {requests: 6099, window: 1h}]}
`, nil,
		},
		"a looser limit beside a stricter one of the same window": {
			`  rules:
    - {name: all, limits: [{requests: 10, window: 1m, algorithm: SlidingWindowLog}, {requests: 20, window: 1m, algorithm: FixedWindow}]}
`, []string{"p.yaml:7: spec.rules[0].limits[1]: never denies: limits[0], 10 per 1m, admits at most 10 in 1m"},
		},
		"two windows that are aligned": {
			`  rules:
    - {name: all, limits: [{requests: 10, window: 1m, algorithm: FixedWindow}, {requests: 600, window: 1h, algorithm: FixedWindow}]}
`, []string{"p.yaml:7: spec.rules[0].limits[1]: never denies: limits[0], 10 per 1m, admits at most 600 in 1h"},
		},
		"a bucket that the edge of a window fills": {
			`  rules:
    - {name: all, limits: [{requests: 10, window: 1m, algorithm: FixedWindow}, {requests: 19, window: 1m}]}
`, nil,
		},
		"a counter that estimates twice as much": {
			`  rules:
    - {name: all, limits: [{requests: 10, window: 1m, algorithm: FixedWindow}, {requests: 39, window: 1m, algorithm: SlidingWindowCounter}]}
`, nil,
		},
		"a limit of an override that another one makes idle": {
			`  rules:
    - name: all
      limits: [{requests: 10, window: 1m}, {requests: 100, window: 1h}]
      overrides: [{when: {attribute: plan, values: [pro]}, limits: [{requests: 5, window: 1m}, {requests: 1000, window: 1h}]}]
`, []string{"p.yaml:9: spec.rules[0].overrides[0].limits[1]: never denies: limits[0], 5 per 1m, admits at most 305 in 1h"},
		},
		"a rule beside a stricter one with the same key": {
			`  rules:
    - {name: all, key: [{header: X-Api-Key}], limits: [{requests: 10, window: 1m}]}
    - {name: api, key: [{header: x-api-key}], match: [{pathPrefix: /api}], limits: [{requests: 20, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[1].limits[0]: never denies: rule all applies to the same requests and counts by the same key, and its limits[0] admits at most 20 in 1m"},
		},
		"rules that are not beside each other": {
			`  rules:
    - {name: all, key: [{header: X-Api-Key}], limits: [{requests: 10, window: 1m}], overrides: [{when: {attribute: plan, values: [pro]}, unlimited: true}]}
    - {name: api, key: [{header: X-Api-Key}], match: [{pathPrefix: /api}], limits: [{requests: 20, window: 1m}]}
    - {name: client, key: [{clientIP: {}}], match: [{pathPrefix: /api}], limits: [{requests: 20, window: 1m}]}
    - {name: route, key: [{header: X-Api-Key}, {request: Route}], match: [{pathPrefix: /api}], limits: [{requests: 5, window: 1m}]}
    - {name: routes, key: [{header: X-Api-Key}, {request: Route}], match: [{pathPrefix: /api}], limits: [{requests: 20, window: 1m}]}
    - {name: watched, mode: Shadow, key: [{clientIP: {}}], match: [{pathPrefix: /api}], limits: [{requests: 90, window: 1m}]}
`, nil,
		},
		"parts of a key that add nothing": {
			`  rules:
    - name: all
      key:
        - {header: X-Api-Key}
        - {header: x-api-key}
        - {firstOf: [{header: X-User}, {header: x-user}, {clientIP: {}}, {header: X-Client}]}
      limits: [{requests: 5, window: 1m}]
`, []string{
				"p.yaml:10: spec.rules[0].key[1]: adds nothing: key[0] is the same",
				"p.yaml:11: spec.rules[0].key[2].firstOf[1]: is never read: firstOf[0] is the same",
				"p.yaml:11: spec.rules[0].key[2].firstOf[3]: is never read: every request has what firstOf[2] reads",
			},
		},
		"a lease of a shadow rule": {
			`  mode: Shadow
  rules:
    - {name: all, lease: {tokens: 10}, limits: [{requests: 100, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[0].lease: has no effect: the rule is in Shadow mode, and leases are taken for rules that deny"},
		},
		"a lease of a small limit": {
			`  rules:
    - {name: all, lease: {tokens: 10}, limits: [{requests: 100, window: 1m}, {requests: 500, burst: 3, window: 1h}]}
`, []string{"p.yaml:7: spec.rules[0].lease: is never taken: limits[1] never has more than 3 left, and a replica leases at most half of what is left"},
		},
		"a lease beside a rule without one": {
			`  rules:
    - {name: all, limits: [{requests: 1000, window: 1m}]}
    - {name: api, match: [{pathPrefix: /api}], lease: {tokens: 10}, limits: [{requests: 100, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[1].lease: is never taken: rule all applies to the same requests, and has no lease"},
		},
		"leases that are taken": {
			`  rules:
    - {name: all, lease: {tokens: 20}, limits: [{requests: 1000, window: 1m}]}
    - {name: api, match: [{pathPrefix: /api}], lease: {tokens: 10}, limits: [{requests: 100, window: 1m}]}
    - {name: items, match: [{pathPrefix: /api/items}], limits: [{requests: 10, window: 1m}]}
`, nil,
		},
		"a cost that no limit holds": {
			`  rules:
    - {name: all, cost: {attribute: rows, max: 100}, limits: [{requests: 1000, window: 1m, burst: 50}]}
`, []string{"p.yaml:7: spec.rules[0].cost.max: requests that cost more than 50, all that limits[0] ever holds, are never admitted"},
		},
		"a share that the policy switches off": {
			`  onStoreFailure: FailOpen
  rules:
    - {name: all, localShare: {rounding: NeverExceed}, limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[0].localShare: has no effect: the policy's onStoreFailure is FailOpen"},
		},
		"a rule behind its own exemption": {
			`  exempt: [{pathPrefix: /healthz}]
  rules:
    - {name: probes, match: [{methods: [GET], route: /healthz/live}], limits: [{requests: 5, window: 1m}]}
    - {name: all, limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[0]: is never reached: every request that it matches is exempt"},
		},
		"a rule behind a wider one": {
			`  evaluation: FirstMatch
  rules:
    - {name: reads, match: [{methods: [GET], pathPrefix: /api}], limits: [{requests: 5, window: 1m}]}
    - {name: items, match: [{methods: [GET, HEAD], route: "/api/items/{id}"}], limits: [{requests: 5, window: 1m}]}
    - {name: writes, match: [{methods: [POST], route: "/api/items/{id}"}], limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:9: spec.rules[1]: is never reached: rule reads before it matches all that it matches"},
		},
		"an alternative behind a wider one": {
			`  evaluation: FirstMatch
  rules:
    - {name: user, match: [{route: "/users/{id}"}], limits: [{requests: 5, window: 1m}]}
    - name: rest
      match:
        - {route: "/users/{name}", headers: [{name: X-Beta, value: "1"}]}
        - {route: /users}
      limits: [{requests: 5, window: 1m}]
`, []string{"p.yaml:11: spec.rules[1].match[0]: is never reached: rule user before it matches all that it matches"},
		},
		"a rule behind one that does not end the search": {
			`  evaluation: FirstMatch
  rules:
    - {name: trial, mode: Shadow, match: [{pathPrefix: /api}], limits: [{requests: 5, window: 1m}]}
    - {name: keyed, key: [{header: X}], whenKeyMissing: Skip, match: [{pathPrefix: /api}], limits: [{requests: 5, window: 1m}]}
    - {name: api, key: [{clientIP: {}}], match: [{pathPrefix: /api/items}], limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:8: spec.rules[0]: has no key, so all callers together have its limits, while other rules of this policy count by a key"},
		},
		"an exemption of a prefix that has two readings": {
			`  exempt: [{pathPrefix: /files/a%2fb}]
  rules:
    - {name: files, match: [{pathPrefix: /files/a%2fb}], limits: [{requests: 5, window: 1m}]}
`, []string{"p.yaml:6: spec.exempt[0].pathPrefix: exempts nothing: a router may read %2F as the end of a segment, and a request is exempt only by every reading of its path"},
		},
		"a rule beside a wider one, of which both apply": {
			`  rules:
    - {name: api, match: [{pathPrefix: /api}], limits: [{requests: 5, window: 1m}]}
    - {name: items, match: [{pathPrefix: /api/items}], limits: [{requests: 1, window: 1m}]}
`, nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			errors, warnings := Policies(read(t, policyOf("p", tc.spec)))
			if errors != nil {
				t.Errorf("errors: %v", errors)
			}
			var got []string
			for _, w := range warnings {
				got = append(got, w.Error())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoliciesThatDoNotFitTogetherAreErrors(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("  rules:\n")
	for i := range 40 {
		rules.WriteString("    - {name: r" + strings.Repeat("x", i) + ", limits: [{requests: 5, window: 1m}]}\n")
	}
	errors, _ := Policies(read(t, policyOf("a", rules.String()), policyOf("b", rules.String())))
	want := "p.yaml:54: spec.rules: TooManyRules: 40 rules do not fit beside the 40 rules of older policies: a workload has at most 64"
	if diff := cmp.Diff(want, errors.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVariantsOfOnePolicyAreAWarning(t *testing.T) {
	const rules = "  rules: [{name: all, limits: [{requests: 5, window: 1m}]}]\n"
	errors, warnings := Policies(read(t, policyOf("a", rules), policyOf("a", rules)))
	if errors != nil {
		t.Errorf("errors: %v", errors)
	}
	want := "p.yaml:10: metadata.name: default/a is in p.yaml:1 too: applied together, the last one wins"
	if diff := cmp.Diff(want, warnings.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
