package api

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// policyWith is a small policy whose first rule has these fields besides its name and, unless it has its own, a limit.
func policyWith(fields map[string]any) *unstructured.Unstructured {
	rule := map[string]any{"name": "exports", "limits": []any{limitWith(nil)}}
	for name, value := range fields {
		rule[name] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ratelimit.weir.dev/v1alpha1",
		"kind":       "RateLimitPolicy",
		"metadata":   map[string]any{"name": "checkout", "namespace": "shop"},
		"spec": map[string]any{
			"targetRef": map[string]any{"group": "apps", "kind": "Deployment", "name": "checkout"},
			"rules":     []any{rule},
		},
	}}
}

func limitWith(fields map[string]any) map[string]any {
	limit := map[string]any{"requests": int64(5), "window": "1m"}
	for name, value := range fields {
		limit[name] = value
	}
	return limit
}

func matchWith(field string, value any) *unstructured.Unstructured {
	return policyWith(map[string]any{"match": []any{map[string]any{field: value}}})
}

// The schema and Compile are two descriptions of one language: each value is taken by both or by neither.
func TestSchemaAndCompileAgree(t *testing.T) {
	client, namespace := server(t)
	cases := map[string]struct {
		policy         func(value string) *unstructured.Unstructured
		valid, invalid []string
	}{
		"window": {
			policy: func(v string) *unstructured.Unstructured {
				return policyWith(map[string]any{"limits": []any{limitWith(map[string]any{"window": v})}})
			},
			valid: []string{
				"60s", "1m", "1m0s", "90s", "100ms", "744h", "743h60m", "1s100ms", "1h30m", "00060s", "0h1m", "99999ms",
				"44640m",
			},
			invalid: []string{
				"0.5h", "1d", "-5s", "0s", "1e3s", "99ms", "744h1ms", "99999h99999h99999h99999h", "1h1m1s1ms1ms", "60",
				"s", "1 m", " 1m", "1m ", "1m\n", "1H", "+1m", "100000s", "1us", "1µs", "1w", "P1D", "1,5h", "١m", "2678400s",
			},
		},
		"route": {
			policy: func(v string) *unstructured.Unstructured { return matchWith("route", v) },
			valid: []string{
				"/", "/exports", "/users/{id}", "/users/{id}/validate", "/users/{id}/{order_id}", "/files/{path...}",
				"/files/{$}", "/static/", "/{$}", "/{path...}", "/a%2Fb", "/:id", "/a.b/..c/...", "/größe", "/a+b",
				"/users/{_}", "/a;b=1/c,d", "/*", "/a/{x}/{x}", "/" + strings.Repeat("a", 511),
			},
			invalid: []string{
				"users", "GET /users", "example.com/users", "//", "/users//{id}", "/users/.", "/users/..", "/./users",
				"/users/../exports", "/users/%2e/x", "/users/.%2E", "/users?x=1", "/users#top", "/a b", "/a\tb", "/a\nb", "/a\x7fb",
				"/100%", "/%zz", "/%2", "/users/{}", "/users/{id", "/users/id}", "/users/u{id}", "/users/{id}x",
				"/users/{1d}", "/users/{i-d}", "/{path...}/x", "/{$}/x", "/{$x}", "/{...}", "/{id..}", "/{{id}}", "{id}",
				"/" + strings.Repeat("a", 512),
			},
		},
		"pathPrefix": {
			policy: func(v string) *unstructured.Unstructured { return matchWith("pathPrefix", v) },
			valid:  []string{"/", "/healthz", "/api/", "/api/v1", "/a%20b", "/größe", "/.well-known", "/" + strings.Repeat("ü", 511)},
			invalid: []string{
				"healthz", "//", "/api//v1", "/api/.", "/../api", "/api/%2e%2e", "/api?x", "/api#x", "/a b", "/a%", "/{id}", "/a}",
				"/" + strings.Repeat("ü", 512),
			},
		},
		"method": {
			policy:  func(v string) *unstructured.Unstructured { return matchWith("methods", []any{v}) },
			valid:   []string{"GET", "M-SEARCH", "VERSION_CONTROL", "X1", strings.Repeat("A", 32)},
			invalid: []string{"get", "Get", "GET ", "GET,POST", "*", "1X", "-X", strings.Repeat("A", 33)},
		},
		"header name": {
			policy: func(v string) *unstructured.Unstructured {
				return policyWith(map[string]any{"key": []any{map[string]any{"header": v}}})
			},
			valid:   []string{"X-Api-Key", "x-api-key", "1", "!#$%&'*+-.^_`|~", strings.Repeat("x", 256)},
			invalid: []string{"X Api Key", "X-Api-Key:", "X-Schlüssel", "X\n", "(x)", "a/b", strings.Repeat("x", 257)},
		},
		"header value": {
			policy: func(v string) *unstructured.Unstructured {
				return matchWith("headers", []any{map[string]any{"name": "X-Plan", "value": v}})
			},
			valid:   []string{"a", "a b", "gzip, br;q=1.0", "größe", "\"x\"", strings.Repeat("é", 256)},
			invalid: []string{" a", "a ", "a\n", "a\tb", "\x00", " ", strings.Repeat("é", 257)},
		},
		"attribute": {
			policy: func(v string) *unstructured.Unstructured {
				return policyWith(map[string]any{"key": []any{map[string]any{"attribute": v}}})
			},
			valid:   []string{"user", "_x", "tenant.id", "plan-2", "A_b", strings.Repeat("a", 64)},
			invalid: []string{"2nd", "user id", "ünit", "a/b", "-a", ".a", strings.Repeat("a", 65)},
		},
		"value of an override": {
			policy: func(v string) *unstructured.Unstructured {
				return policyWith(map[string]any{"overrides": []any{map[string]any{
					"when": map[string]any{"attribute": "plan", "values": []any{v}}, "unlimited": true,
				}}})
			},
			valid:   []string{"scale", " ", "größe", "a\nb", strings.Repeat("ü", 128)},
			invalid: []string{"", strings.Repeat("ü", 129)},
		},
		"window of an override": { // the rule's is 1m, by TokenBucket
			policy: func(v string) *unstructured.Unstructured {
				return policyWith(map[string]any{"overrides": []any{map[string]any{
					"when":   map[string]any{"attribute": "plan", "values": []any{"scale"}},
					"limits": []any{limitWith(map[string]any{"window": v, "algorithm": "TokenBucket"})},
				}}})
			},
			valid:   []string{"1m", "60s", "1m0s", "60000ms"},
			invalid: []string{"1h", "61s", "1d"},
		},
		"rule name": {
			policy:  func(v string) *unstructured.Unstructured { return policyWith(map[string]any{"name": v}) },
			valid:   []string{"a", "a-b", "1", "2nd-rule", strings.Repeat("a", 63)},
			invalid: []string{"A", "a_b", "-a", "a-", "a.b", "a b", strings.Repeat("a", 64)},
		},
		"target name": {
			policy: func(v string) *unstructured.Unstructured {
				object := policyWith(nil)
				if err := unstructured.SetNestedField(object.Object, v, "spec", "targetRef", "name"); err != nil {
					t.Fatal(err)
				}
				return object
			},
			valid:   []string{"checkout", "checkout.v2", "1", strings.Repeat("a", 253)},
			invalid: []string{"Checkout", "a/b", "a..b", ".a", "a_b", strings.Repeat("a", 254)},
		},
	}
	for field, tc := range cases {
		t.Run(field, func(t *testing.T) {
			check := func(value string, valid bool) {
				object := tc.policy(value)
				_, byCompile := compile(toPolicy(t, object))
				byServer := try(t, client, namespace, object)
				if (len(byCompile) == 0) != valid {
					t.Errorf("%.40q: Compile says %v, want valid=%t", value, byCompile, valid)
				}
				if (len(byServer) == 0) != valid {
					t.Errorf("%.40q: the API server says %v, want valid=%t", value, byServer, valid)
				}
			}
			for _, value := range tc.valid {
				check(value, true)
			}
			for _, value := range tc.invalid {
				check(value, false)
			}
		})
	}
}

// 0 requests is a block rule; a number that is missing or negative, and a burst of 0, are refused.
func TestB15ZeroAndBurst(t *testing.T) {
	client, namespace := server(t)
	cases := map[string]struct {
		limit map[string]any
		want  string // path of the refusal, empty if there is none
	}{
		"a limit of 0":    {limit: map[string]any{"requests": int64(0), "window": "1m"}},
		"no limit":        {limit: map[string]any{"window": "1m"}, want: "spec.rules[0].limits[0].requests"},
		"a limit of -1":   {limit: map[string]any{"requests": int64(-1), "window": "1m"}, want: "spec.rules[0].limits[0].requests"},
		"a burst of 0":    {limit: map[string]any{"requests": int64(10), "window": "1m", "burst": int64(0)}, want: "spec.rules[0].limits[0].burst"},
		"a limit of null": {limit: map[string]any{"requests": nil, "window": "1m"}, want: "spec.rules[0].limits[0].requests"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object := policyWith(map[string]any{"limits": []any{tc.limit}})
			_, byCompile := compile(toPolicy(t, object))
			byServer := try(t, client, namespace, object)
			if tc.want == "" {
				if len(byCompile)+len(byServer) > 0 {
					t.Errorf("Compile says %v, the API server %v, want neither to refuse it", byCompile, byServer)
				}
				return
			}
			if len(byCompile) != 1 || byCompile[0].Path != tc.want {
				t.Errorf("Compile says %v, want one error at %s", byCompile, tc.want)
			}
			if len(byServer) != 1 || byServer[0].Path != tc.want {
				t.Errorf("the API server says %v, want one error at %s", byServer, tc.want)
			}
		})
	}
}
