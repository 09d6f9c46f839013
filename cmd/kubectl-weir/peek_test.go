package main

import (
	"net/http"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// A counter is that of one client if the request is counted by something of its client.
func TestCountersOfOneClient(t *testing.T) {
	requests := map[string]enforcer.Request{
		"key":  {Method: http.MethodGet, Path: "/", Header: http.Header{"X-Api-Key": {"acme"}}, Attributes: map[string]string{"user": "ann"}},
		"addr": {Method: http.MethodGet, Path: "/", Header: http.Header{}, Remote: "203.0.113.7:4711"},
		"none": {Method: http.MethodGet, Path: "/", Header: http.Header{"X-Api-Key": {" "}}},
	}
	header, address := policy.KeyPart{Header: "x-api-key"}, policy.KeyPart{ClientIP: &policy.ClientIP{}}
	route, user := policy.KeyPart{Request: policy.RequestKeyRoute}, policy.KeyPart{Attribute: "user"}
	first := func(parts ...policy.KeyPart) policy.KeyPart { return policy.KeyPart{FirstOf: parts} }
	one := int64(1)
	for name, tc := range map[string]struct {
		key     []policy.KeyPart
		missing policy.WhenKeyMissing
		want    map[string]bool // those that are of one client
	}{
		"no key":                 {nil, "", nil},
		"what all requests have": {[]policy.KeyPart{route, {Request: policy.RequestKeyMethod}}, "", nil},
		"a header, or the client's address where it is missing": {[]policy.KeyPart{header}, "", map[string]bool{"key": true, "addr": true}},
		"a header, or one budget for all":                       {[]policy.KeyPart{header}, policy.WhenKeyMissingAnonymous, map[string]bool{"key": true}},
		"an attribute and the route":                            {[]policy.KeyPart{route, user}, policy.WhenKeyMissingAnonymous, map[string]bool{"key": true}},
		"the address":                                           {[]policy.KeyPart{address}, policy.WhenKeyMissingAnonymous, map[string]bool{"addr": true}},
		"the first of header and address":                       {[]policy.KeyPart{first(header, address)}, "", map[string]bool{"key": true, "addr": true}},
		"the first of header and route":                         {[]policy.KeyPart{first(header, route)}, "", map[string]bool{"key": true}},
		"the first of route and header":                         {[]policy.KeyPart{first(route, header)}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}
			row, verdicts := policy.Compile(w, "test", []policy.Policy{{
				Metadata: policy.Metadata{Namespace: "shop", Name: "p", UID: "uid", Generation: 1},
				Spec: policy.Spec{
					TargetRef: policy.TargetRef{Group: w.Group, Kind: w.Kind, Name: w.Name},
					Rules: []policy.Rule{{
						Name: "r", Key: tc.key, WhenKeyMissing: tc.missing, Limits: []policy.Limit{{Requests: &one, Window: "1m"}},
					}},
				},
			}})
			if len(verdicts) != 1 || !verdicts[0].Accepted() {
				t.Fatalf("%+v", verdicts)
			}
			e, err := explainer(t.Context(), row, nil)
			if err != nil {
				t.Fatal(err)
			}
			for from, r := range requests {
				rules, _ := e.Explain(r)
				if len(rules) != 1 || len(rules[0].Limits) != 1 {
					t.Fatalf("%s: %+v", from, rules)
				}
				if got := byClient(row.Rules[0], &rules[0], r, nil); got != tc.want[from] {
					t.Errorf("%s: of one client: %v, want %v", from, got, tc.want[from])
				}
			}
		})
	}
}
