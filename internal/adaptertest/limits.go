package adaptertest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/ratelimit"
)

func testAnswers(t *testing.T, m Mount) {
	w := start(t, m, `
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 2, window: 1m, algorithm: FixedWindow}]
`, []Route{{Method: http.MethodPost, Path: "/exports"}})
	w.limiter.Advance(20*time.Second + time.Millisecond)

	for _, remaining := range []string{"1", "0"} {
		r := w.send(http.MethodPost, "/exports", "", "X-Api-Key", "alice")
		w.want("status", r.status, http.StatusOK)
		w.want("body", r.body, "served POST")
		w.want("content type", r.header.Get("Content-Type"), "text/plain")
		w.want("RateLimit-Policy", r.header.Get("RateLimit-Policy"), `"checkout/exports";q=2;w=60`)
		w.want("RateLimit", r.header.Get("RateLimit"), `"checkout/exports";r=`+remaining+`;t=40`)
		w.want("Retry-After", r.header.Get("Retry-After"), "")
	}
	served := w.served
	r := w.send(http.MethodPost, "/exports", "", "X-Api-Key", "alice")
	w.want("status over the limit", r.status, http.StatusTooManyRequests)
	w.want("Retry-After", r.header.Get("Retry-After"), "40")
	w.want("RateLimit-Policy", r.header.Get("RateLimit-Policy"), `"checkout/exports";q=2;w=60`)
	w.want("RateLimit", r.header.Get("RateLimit"), `"checkout/exports";r=0;t=40`)
	w.want("Cache-Control", r.header.Get("Cache-Control"), "no-store")
	p := w.problem(r)
	w.want("type", p.Type, "https://iana.org/assignments/http-problem-types#quota-exceeded")
	w.want("violated policies", strings.Join(p.Violated, " "), "checkout/exports")
	w.want("requests that reached the handler", w.served, served)

	w.want("another key's status", w.send(http.MethodPost, "/exports", "", "X-Api-Key", "bob").status, http.StatusOK)
	w.limiter.Advance(40 * time.Second)
	w.want("status in the next window", w.send(http.MethodPost, "/exports", "", "X-Api-Key", "alice").status, http.StatusOK)
}

func testStatuses(t *testing.T, m Mount) {
	w := start(t, m, `
  onStoreFailure: FailClosed
  rules:
    - name: exports
      match: [{route: /exports}]
      key: [{header: X-Api-Key}]
      whenKeyMissing: Deny
      limits: [{requests: 2, window: 1m}]
`, []Route{{Method: http.MethodPost, Path: "/exports"}})
	r := w.send(http.MethodPost, "/exports", "")
	w.want("status without the key", r.status, http.StatusBadRequest)
	w.want("type", w.problem(r).Type, "about:blank")
	w.want("Retry-After", r.header.Get("Retry-After"), "")

	w.limiter.StoreDown()
	r = w.send(http.MethodPost, "/exports", "", "X-Api-Key", "alice")
	w.want("status without a store", r.status, http.StatusServiceUnavailable)
	w.want("type", w.problem(r).Type, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity")
	w.want("Retry-After", r.header.Get("Retry-After"), "1")
	w.want("requests that reached the handler", w.served, 0)
}

func testHooks(t *testing.T, m Mount) {
	w := start(t, m, `
  rules:
    - name: user
      key: [{attribute: user}]
      limits: [{requests: 1, window: 1m}]
`, []Route{{Method: http.MethodGet, Path: "/users/{id}"}}, func(o *ratelimit.Options) {
		o.Attributes = func(r *http.Request) ratelimit.Attributes {
			return ratelimit.Attributes{"user": r.Header.Get("X-User")}
		}
		decided := o.OnDecision
		o.OnDecision = func(out http.ResponseWriter, r *http.Request, d ratelimit.Decision) {
			out.Header().Set("X-Source", d.Source)
			decided(out, r, d)
		}
	})
	for _, user := range []string{"alice", "bob"} {
		r := w.send(http.MethodGet, "/users/7", "", "X-User", user)
		w.want("status of "+user, r.status, http.StatusOK)
		w.want("header of the hook", r.header.Get("X-Source"), ratelimit.SourceStore)
		w.want("decisions for a request", len(w.decided), 1)
	}
	r := w.send(http.MethodGet, "/users/8", "", "X-User", "alice")
	w.want("status of alice", r.status, http.StatusTooManyRequests)
	w.want("header of the hook", r.header.Get("X-Source"), ratelimit.SourceStore)
}

func testTemplates(t *testing.T, m Mount) {
	w := start(t, m, `
  evaluation: FirstMatch
  rules:
    - {name: user, match: [{route: "/users/{name}"}], key: [{request: Route}], limits: [{requests: 100, window: 1h}]}
    - {name: validate, match: [{route: "/users/{id}/validate"}], limits: [{requests: 100, window: 1h}]}
    - {name: files, match: [{route: "/files/{rest...}"}], limits: [{requests: 100, window: 1h}]}
    - {name: me, match: [{route: /me}], limits: [{requests: 100, window: 1h}]}
    - {name: default, limits: [{requests: 100, window: 1h}]}
`, []Route{
		{Method: http.MethodGet, Path: "/users/{id}"},
		{Method: http.MethodGet, Path: "/users/self"},
		{Method: http.MethodPost, Path: "/users/{id}/validate"},
		{Method: http.MethodGet, Path: "/files/{path...}"},
		{Method: http.MethodGet, Path: "/me"},
	})
	tests := []struct{ method, target, want string }{
		{http.MethodGet, "/users/7", "user"},
		{http.MethodGet, "/users/8", "user"},
		{http.MethodPost, "/users/7/validate", "validate"},
		{http.MethodGet, "/files/a", "files"},
		{http.MethodGet, "/files/a/b.txt", "files"},
		{http.MethodGet, "/me", "me"},
		{http.MethodGet, "/me?x=/users/7", "me"},
	}
	if !m.ByPath { // a path alone does not tell that the router knows this one better
		tests = append(tests, struct{ method, target, want string }{http.MethodGet, "/users/self", "default"})
	}
	for _, tc := range tests {
		r := w.send(tc.method, tc.target, "")
		w.want(tc.target+": status", r.status, http.StatusOK)
		w.want(tc.target+": rule", w.rule(), tc.want)
	}
	w.want("remaining of /users/{id}, counted by its route",
		w.remaining(ratelimit.Request{Method: http.MethodGet, Route: "/users/{id}"}), int64(98))
}

// testSpellings sends the same resource in several spellings. What the router serves is counted by the handler's rule,
// whatever it looks like (B45).
func testSpellings(t *testing.T, m Mount) {
	const limit = 5
	w := start(t, m, `
  rules:
    - {name: validate, match: [{route: "/users/{id}/validate"}], limits: [{requests: 5, window: 1h}]}
`, []Route{{Method: http.MethodPost, Path: "/users/{id}/validate"}})
	for _, target := range []string{
		"/users/42/validate", "/users/%34%32/validate", "/users/4%2F2/validate", "/users/a:b/validate",
		"//users/42/validate", "/users//42/validate", "/users/42/validate/", "/users/./42/validate",
		"/users/x/../42/validate", "/users/42/%2e%2e/42/validate", "/Users/42/validate", "/users/42/validate?x=1",
		"/users/42/validate;x=1", "/users/42%00/validate", "http://shop.example/users/42/validate",
	} {
		for range 2 {
			served := w.served
			r := w.send(http.MethodPost, target, "")
			if w.served > served && w.rule() != "validate" {
				t.Errorf("%s was served and counted by %q", target, w.rule())
			}
			if r.status == http.StatusTooManyRequests && w.served > served {
				t.Errorf("%s was denied and served", target)
			}
		}
	}
	if m.ByPath && w.served <= limit && w.served > 0 { // what the router redirects looks like the route, too
		return
	}
	w.want("requests served, of all spellings together", w.served, limit)
}

func testMethods(t *testing.T, m Mount) {
	w := start(t, m, `
  rules:
    - {name: read, match: [{methods: [GET], route: /reports}], limits: [{requests: 2, window: 1h}]}
    - {name: write, match: [{methods: [POST], route: /reports}], limits: [{requests: 1, window: 1h}]}
`, []Route{
		{Method: http.MethodGet, Path: "/reports"},
		{Method: http.MethodHead, Path: "/reports"},
		{Method: http.MethodPost, Path: "/reports"},
		{Method: http.MethodOptions, Path: "/reports", Handler: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Access-Control-Allow-Origin", "*")
			out.WriteHeader(http.StatusNoContent)
		})},
	})
	for range 5 { // a browser asks before it posts
		r := w.send(http.MethodOptions, "/reports", "", "Origin", "https://web.example", "Access-Control-Request-Method", "POST")
		w.want("status of a preflight", r.status, http.StatusNoContent)
		w.want("its header", r.header.Get("Access-Control-Allow-Origin"), "*")
	}
	w.want("status of POST", w.send(http.MethodPost, "/reports", "").status, http.StatusOK)
	w.want("status of GET", w.send(http.MethodGet, "/reports", "").status, http.StatusOK)
	w.want("status of HEAD", w.send(http.MethodHead, "/reports", "").status, http.StatusOK)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		r := w.send(method, "/reports", "")
		w.want("status of "+method+" over the limit", r.status, http.StatusTooManyRequests)
		if method == http.MethodHead && r.body != "" {
			t.Errorf("HEAD got the body %q", r.body)
		}
	}
}

func testExemptions(t *testing.T, m Mount) {
	w := start(t, m, `
  exempt: [{pathPrefix: /healthz}, {methods: [OPTIONS]}]
  rules: [{name: all, key: [{clientIP: {}}], limits: [{requests: 1, window: 1h}]}]
`, []Route{
		{Method: http.MethodGet, Path: "/healthz"},
		{Method: http.MethodGet, Path: "/healthzX"},
		{Method: http.MethodGet, Path: "/{$}"},
		{Method: http.MethodOptions, Path: "/{$}"},
	})
	w.want("status of the first request", w.send(http.MethodGet, "/", "").status, http.StatusOK)
	w.want("status of the second one", w.send(http.MethodGet, "/", "").status, http.StatusTooManyRequests)
	for range 10 {
		r := w.send(http.MethodGet, "/healthz", "")
		w.want("status of a probe", r.status, http.StatusOK)
		w.want("RateLimit of a probe", r.header.Get("RateLimit"), "")
		w.want("status of a preflight", w.send(http.MethodOptions, "/", "").status, http.StatusOK)
	}
	for _, target := range []string{"/healthzX", "/healthz/../", "/healthz/%2e%2e/", "//healthz"} {
		served := w.served
		if w.send(http.MethodGet, target, ""); w.served > served {
			t.Errorf("%s was served by way of the exemption", target)
		}
	}
	w.want("remaining", w.remaining(ratelimit.Request{Method: http.MethodGet, Route: "/", Path: "/", Remote: "127.0.0.1"}), int64(0))
	if d := w.limiter.Peek(context.Background(), ratelimit.Request{Method: http.MethodGet, Path: "/", Remote: "192.0.2.1"}); d.Remaining != 1 {
		t.Errorf("another client has %d left, want 1", d.Remaining)
	}
}
