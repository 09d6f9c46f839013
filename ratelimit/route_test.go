package ratelimit_test

import (
	"testing"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
)

func TestColonRoute(t *testing.T) {
	for template, want := range map[string]string{
		"/exports":                "/exports",
		"/":                       "/",
		"/users/:id":              "/users/{id}",
		"/users/:id/validate":     "/users/{id}/validate",
		"/users/:id/":             "/users/{id}/",
		"/files/*path":            "/files/{path...}",
		"/files/*":                "/files/{rest...}",
		"/static*":                "/{rest...}",
		"/files/:name.json":       "/files/{name}",
		"/v:version/users":        "/{version}/users",
		`/v1/users\:batch`:        "/v1/users:batch",
		`/v1/:name\:cancel`:       "/v1/{name}",
		"/a/:/b":                  "/a/{x}/b",
		"/:from-:to":              "/{from}",
		"users/:id":               "/users/{id}",
		"/users/{id}":             "/users/{id}",
		"/rooms/:room_id/:2/seat": "/rooms/{room_id}/{x}/seat",
	} {
		checkRoute(t, template, ratelimit.ColonRoute(template), want)
	}
}

func TestBraceRoute(t *testing.T) {
	for template, want := range map[string]string{
		"/exports":                        "/exports",
		"/users/{id}":                     "/users/{id}",
		"/users/{id:[0-9]+}/validate":     "/users/{id}/validate",
		"/users/{id:[0-9]{3}}/validate":   "/users/{id}/validate",
		"/dates/{day:[0-9/]+}":            "/dates/{day...}",
		"/files/*":                        "/files/{rest...}",
		"/files/{path:.*}":                "/files/{path...}",
		"/files/{path:.+}/raw":            "", // no such form: then the path is compared
		"/files/{name}.json":              "/files/{name}",
		"/{from}-{to}":                    "/{from}",
		"/x/{a-b}":                        "/x/{a}",
		"/users:batch":                    "/users:batch",
		"/users/{id:}":                    "/users/{id}",
		"/unclosed/{id":                   "/unclosed/{id}",
		"/static/":                        "/static/",
		"/{kind:exports|imports}/{id:.*}": "/{kind}/{id...}",
	} {
		checkRoute(t, template, ratelimit.BraceRoute(template), want)
	}
}

// checkRoute compares a route, which has to be one that policies can name.
func checkRoute(t *testing.T, template, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", template, got, want)
	}
	if got == "" {
		return
	}
	one := int64(1)
	problems := policy.Validate(policy.Policy{
		Metadata: policy.Metadata{Namespace: "shop", Name: "p"},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules: []policy.Rule{{
				Name: "r", Match: []policy.Match{{Route: got}}, Limits: []policy.Limit{{Requests: &one, Window: "1s"}},
			}},
		},
	})
	if len(problems) > 0 {
		t.Errorf("%s: no policy may name %q: %v", template, got, problems)
	}
}

func FuzzRoutes(f *testing.F) {
	f.Add("/users/{id:[0-9]{3}}/*")
	f.Add(`/a/:b\:c/*d`)
	f.Add("/{{}")
	f.Fuzz(func(_ *testing.T, template string) {
		ratelimit.BraceRoute(template)
		ratelimit.ColonRoute(template)
	})
}
