package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

// good is a whole policy; tests change one thing of it.
const good = `apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata:
  name: checkout
  namespace: shop
  labels: {team: payments}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 5, window: 1m}]
`

func TestPoliciesAreReadWhole(t *testing.T) {
	f := Parse("checkout.yaml", []byte(good))
	got := f.Policies(DefaultNamespace)
	if err := f.Faults().Err(); err != nil {
		t.Fatal(err)
	}
	requests := int64(5)
	want := policy.Policy{
		Metadata: policy.Metadata{Namespace: "shop", Name: "checkout"},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules: []policy.Rule{{
				Name:   "exports",
				Match:  []policy.Match{{Methods: []string{"POST"}, Route: "/exports"}},
				Key:    []policy.KeyPart{{Header: "X-Api-Key"}},
				Limits: []policy.Limit{{Requests: &requests, Window: "1m"}},
			}},
		},
	}
	if len(got) != 1 {
		t.Fatalf("%d policies, want 1", len(got))
	}
	if diff := cmp.Diff(want, got[0].Policy); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPolicyFaultsNameFileLineAndPath(t *testing.T) {
	tests := map[string]struct {
		old, new string // what is changed in good
		want     string
	}{
		"a misspelled field": {
			"window: 1m", "windw: 1m",
			"p.yaml:13: spec.rules[0].limits[0].windw: unknown field: did you mean window?",
		},
		"a field of another place": {
			"  targetRef:", "  replicas: 3\n  targetRef:",
			"p.yaml:8: spec.replicas: unknown field: known are evaluation, exempt, mode, onStoreFailure, rules, snapshot, targetRef",
		},
		"a bad duration": {
			"window: 1m", "window: 1.5m",
			`p.yaml:13: spec.rules[0].limits[0].window: Invalid value: "1.5m": must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m`,
		},
		"a number for a duration": {
			"window: 1m", "window: 60",
			`p.yaml:13: spec.rules[0].limits[0].window: must be text: write "60"`,
		},
		"a fraction for a number": {
			"requests: 5", "requests: 5.0",
			"p.yaml:13: spec.rules[0].limits[0].requests: must be a whole number, not 5.0",
		},
		"text for a number": {
			"requests: 5", `requests: "5"`,
			`p.yaml:13: spec.rules[0].limits[0].requests: must be a whole number, not "5"`,
		},
		"a number that no integer holds": {
			"requests: 5", "requests: 99999999999999999999",
			"p.yaml:13: spec.rules[0].limits[0].requests: must be a whole number, not 99999999999999999999",
		},
		"a field that is missing": {
			"limits: [{requests: 5, window: 1m}]", "mode: Enforce",
			"p.yaml:10: spec.rules[0].limits: Required value",
		},
		"a field without a value": {
			"limits: [{requests: 5, window: 1m}]", "limits:",
			"p.yaml:13: spec.rules[0].limits: has no value: write one or leave the field out",
		},
		"a field that is there twice": {
			"window: 1m", "window: 1m, window: 1h",
			"p.yaml:13: spec.rules[0].limits[0].window: is there twice",
		},
		"a word that kubectl reads as a boolean": {
			"header: X-Api-Key", "header: on",
			`p.yaml:12: spec.rules[0].key[0].header: must be text: for kubectl this word is a boolean; write "on"`,
		},
		"a mapping for a list": {
			"key: [{header: X-Api-Key}]", "key: {header: X-Api-Key}",
			"p.yaml:12: spec.rules[0].key: must be a list, not a mapping",
		},
		"a list for a mapping": {
			"targetRef: {group: apps, kind: Deployment, name: checkout}", "targetRef: [checkout]",
			"p.yaml:8: spec.targetRef: must have fields, not be a list",
		},
		"another version of the group": {
			"weir.dev/v1alpha1", "weir.dev/v2",
			"p.yaml:1: apiVersion: Unsupported value: this version reads ratelimit.weir.dev/v1alpha1",
		},
		"another kind of the group": {
			"kind: RateLimitPolicy", "kind: RateLimit",
			"p.yaml:2: kind: Unsupported value: ratelimit.weir.dev has the kind RateLimitPolicy",
		},
		"an object without a kind": {
			"kind: RateLimitPolicy\n", "",
			"p.yaml:1: kind: Required value",
		},
		"a misspelled field of the metadata": {
			"  namespace: shop", "  namespce: shop",
			"p.yaml:5: metadata.namespce: unknown field: did you mean namespace?",
		},
		"a namespace that is none": {
			"  namespace: shop", "  namespace: Shop",
			`p.yaml:5: metadata.namespace: Invalid value: "Shop": should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`,
		},
		"text that is no YAML": {
			"spec:", "spec: {",
			"p.yaml:7: not YAML: did not find expected ',' or '}'",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if strings.Count(good, tc.old) != 1 {
				t.Fatalf("%q is in the policy %d times, want once", tc.old, strings.Count(good, tc.old))
			}
			f := Parse("p.yaml", []byte(strings.Replace(good, tc.old, tc.new, 1)))
			if policies := f.Policies(DefaultNamespace); len(policies) != 0 {
				t.Errorf("a policy was read all the same: %+v", policies)
			}
			if diff := cmp.Diff(tc.want, f.Faults().Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryFaultOfAFileIsNamed(t *testing.T) {
	text := strings.Replace(good, "requests: 5, window: 1m", "requests: -1, window: 1d", 1) + "---\n" +
		strings.Replace(good, "header: X-Api-Key", "headr: X-Api-Key", 1)
	f := Parse("p.yaml", []byte(text))
	f.Policies(DefaultNamespace)
	want := `p.yaml:13: spec.rules[0].limits[0].requests: Invalid value: -1: should be greater than or equal to 0
p.yaml:13: spec.rules[0].limits[0].window: Invalid value: "1d": must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m
p.yaml:26: spec.rules[0].key[0].headr: unknown field: did you mean header?`
	if diff := cmp.Diff(want, f.Faults().Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOtherObjectsArePassedOver(t *testing.T) {
	text := `
# a comment only
---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {on: yes}
---
apiVersion: kuadrant.io/v1
kind: RateLimitPolicy
spec: {limits: {}}
---
` + good + "---\n" + `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
- apiVersion: ratelimit.weir.dev/v1alpha1
  kind: RateLimitPolicy
  metadata: {name: listed, creationTimestamp: null, resourceVersion: "7", uid: a-b, generation: 3}
  spec: &spec
    targetRef: {group: apps, kind: Deployment, name: checkout}
    rules: [{name: all, limits: [{requests: 1, window: 1s}]}]
  status: {observedGeneration: 3}
- {apiVersion: ratelimit.weir.dev/v1alpha1, kind: RateLimitPolicy, metadata: {name: alias}, spec: *spec}
- {apiVersion: ratelimit.weir.dev/v1alpha1, kind: RateLimitPolicy, metadata: {name: merged}, spec: {<<: *spec, mode: Shadow}}
`
	f := Parse("p.yaml", []byte(text))
	var got []string
	for _, p := range f.Policies(DefaultNamespace) {
		got = append(got, p.Metadata.Namespace+"/"+p.Metadata.Name+" "+string(p.Spec.Mode))
	}
	if err := f.Faults().Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"shop/checkout ", "default/listed ", "default/alias ", "default/merged Shadow"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAliasesEnd(t *testing.T) {
	const head = "apiVersion: ratelimit.weir.dev/v1alpha1\nkind: RateLimitPolicy\n"
	ten := func(of string) string { return "[" + strings.Repeat(of+", ", 9) + of + "]\n" }
	tests := map[string]struct{ text, want string }{
		"an anchor that holds itself": {
			head + "spec: {rules: [{name: x, key: &a [{firstOf: *a}]}]}\n",
			"values stand in each other more than 100 deep",
		},
		"aliases of aliases": {
			"x:\n- &a {header: X}\n- &b " + ten("*a") + "- &c " + ten("{firstOf: *b}") + "- &d " + ten("{firstOf: *c}") + "- &e " + ten("{firstOf: *d}") +
				"- &f " + ten("{firstOf: *e}") + "- &g " + ten("{firstOf: *f}") + head + "spec: {rules: [{name: x, key: *g}]}\n",
			"the file has more than 250000 values",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := Parse("p.yaml", []byte(tc.text))
			if policies := f.Policies(DefaultNamespace); len(policies) != 0 {
				t.Error("a policy was read all the same")
			}
			if !strings.Contains(f.Faults().Error(), tc.want) {
				t.Errorf("faults do not tell %q:\n%v", tc.want, f.Faults())
			}
		})
	}
}

// Other readers take each document of a file by itself.
func TestAnchorsOfOtherDocumentsAreRefused(t *testing.T) {
	f := Parse("p.yaml", []byte("# first\na: &a [1]\nb: *a\n---\n# second\na: *a\n"))
	if diff := cmp.Diff("p.yaml:6: *a stands for an anchor of another document", f.Faults().Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
