package ratelimit_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

// limiterOf returns a limiter in memory with the rules of one policy.
func limiterOf(t testing.TB, rules string, change ...func(*ratelimit.Options)) *ratelimit.Limiter {
	t.Helper()
	source, err := file.Text(policyOf(rules))
	if err != nil {
		t.Fatal(err)
	}
	options := ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Policies: source, Counters: ratelimit.Memory(),
	}
	for _, c := range change {
		c(&options)
	}
	limiter, err := ratelimit.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- limiter.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := limiter.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return limiter
}

// policyOf is a policy with these rules.
func policyOf(rules string) string {
	return `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
` + strings.ReplaceAll(strings.Trim(rules, "\n"), "\t", "  ")
}

func serve(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })

const validate = `
  rules:
    - name: validate
      match: [{route: "/users/{id}/validate"}]
      limits: [{requests: 5, window: 1h}]
    - name: default
      limits: [{requests: 1000, window: 1h}]
`

// Every spelling that the router serves with a handler shares that handler's budget. Those that it redirects or refuses
// are no use of it (B45).
func TestServeMuxSpellings(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/users/{id}/validate", ok)
	spellings := []string{
		"/users/42/validate", "/users/%34%32/validate", "//users/42/validate", "/users//42/validate",
		"/users/42/validate/", "/users/./42/validate", "/Users/42/validate",
	}
	for name, handler := range map[string]func(*ratelimit.Limiter) http.Handler{
		"around the mux": func(l *ratelimit.Limiter) http.Handler { return l.Middleware(mux) },
		"inside the mux": func(l *ratelimit.Limiter) http.Handler {
			inner := http.NewServeMux()
			inner.Handle("/users/{id}/validate", l.Middleware(ok))
			return inner
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := handler(limiterOf(t, validate))
			served, denied := 0, 0
			for _, target := range spellings {
				for range 5 {
					w := serve(h, http.MethodPost, target)
					if w.Body.String() == "served" {
						served++
					}
					if w.Code == http.StatusTooManyRequests {
						denied++
						if target != spellings[0] && target != spellings[1] {
							t.Errorf("%s is denied although the router does not serve it", target)
						}
					}
				}
			}
			if served != 5 || denied != 5 {
				t.Errorf("served %d and denied %d of the two spellings, want 5 and 5", served, denied)
			}
		})
	}
}

// Handlers that route by URL.Path, in which an escaped slash is a slash. What the limiter stands before is no router that
// it could ask, so the path is all that it has.
func TestSpellingsBeforeURLPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "downloads"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "downloads", "big"), []byte("served"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(dir))
	mux := http.NewServeMux()
	mux.Handle("/", files)
	handlers := map[string]http.Handler{
		"a switch": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/downloads/big" {
				ok(w, r)
			}
		}),
		"a prefix": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/downloads/") {
				ok(w, r)
			}
		}),
		"StripPrefix": http.StripPrefix("/downloads", ok),
		"a path that is cleaned": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if path.Clean(r.URL.Path) == "/downloads/big" {
				ok(w, r)
			}
		}),
		"a FileServer":          files,
		"a FileServer in a mux": mux,
	}
	for name, handler := range handlers {
		for _, match := range []string{"pathPrefix: /downloads", `route: "/downloads/{name...}"`} {
			for _, evaluation := range []string{"All", "FirstMatch"} {
				t.Run(name+", "+match+", "+evaluation, func(t *testing.T) {
					server := httptest.NewServer(limiterOf(t, `
  evaluation: `+evaluation+`
  exempt: [{pathPrefix: /healthz}]
  rules:
    - {name: assets, match: [{pathPrefix: /assets}], limits: [{requests: 1000, window: 1h}]}
    - {name: downloads, match: [{`+match+`}], limits: [{requests: 2, window: 1h}]}
    - {name: others, limits: [{requests: 1000, window: 1h}]}
`).Middleware(handler))
					defer server.Close()
					for i := range 3 {
						if body := fetch(t, server, "/downloads/big"); (body == "served") != (i < 2) {
							t.Fatalf("request %d got %q", i+1, body)
						}
					}
					for _, target := range []string{
						"/downloads%2Fbig", "/downloads%2fbig", "/%64ownloads%2fbig", "/downloads/%2Fbig", "/x/..%2fdownloads/big",
						"/x%2F..%2Fdownloads%2Fbig", "/healthz/..%2fdownloads/big", "/healthz%2f..%2fdownloads%2fbig", "/healthz/../downloads/big",
						"/assets/..%2fdownloads/big", "/assets/../downloads/big", "/assets%2F..%2Fdownloads%2Fbig", "//downloads//big",
						"/downloads/../healthz", "/downloads%2F..%2Fhealthz", "/downloads/..%2Fassets", "/downloads/./big", "/downloads/%2e%2e/x",
					} {
						if body := fetch(t, server, target); body == "served" {
							t.Errorf("%s is served over the limit", target)
						}
					}
				})
			}
		}
	}
}

// fetch returns the answer to a request whose path goes over the wire as it is written.
func fetch(t *testing.T, server *httptest.Server, target string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sent := request.URL.RequestURI(); sent != target {
		t.Fatalf("the client would send %s for %s", sent, target)
	}
	response, err := server.Client().Transport.RoundTrip(request) // without following redirects
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestRouteOfTheRequest(t *testing.T) {
	rules := `
  rules:
    - {name: export, match: [{route: "/exports/{id}"}], limits: [{requests: 100, window: 1h}]}
    - {name: files, match: [{route: /files/}], limits: [{requests: 100, window: 1h}]}
    - {name: old, match: [{route: /old}], limits: [{requests: 100, window: 1h}]}
    - {name: v1, match: [{route: /v1/exports}], limits: [{requests: 100, window: 1h}]}
`
	mux := http.NewServeMux()
	mux.Handle("POST /exports/{id}", ok)
	mux.Handle("/files/", ok)
	mux.Handle("/old", http.RedirectHandler("/new", http.StatusMovedPermanently))
	mux.Handle("/v1/", http.StripPrefix("/v1", ok))
	wrapped := http.HandlerFunc(mux.ServeHTTP) // a mux that the middleware does not recognise

	tests := map[string]struct {
		handler http.Handler
		method  string
		target  string
		want    string // the rule
	}{
		"around the mux":                   {mux, "POST", "/exports/7", "export"},
		"a method that the mux refuses":    {mux, "GET", "/exports/7", ""},
		"a path that the mux refuses":      {mux, "POST", "/other", ""},
		"a subtree":                        {mux, "GET", "/files/a/b", "files"},
		"a redirect to a subtree":          {mux, "GET", "/files", ""},
		"a redirect of the application":    {mux, "GET", "/old", "old"},
		"an escaped slash":                 {mux, "POST", "/exports/a%2Fb", "export"},
		"a router behind a subtree":        {mux, "GET", "/v1/exports", "v1"},
		"outside, by the path":             {wrapped, "POST", "/exports/7", "export"},
		"outside, a subtree by the path":   {wrapped, "GET", "/files/a", "files"},
		"outside, an unclean path":         {wrapped, "POST", "/x/../exports//7/", "export"},
		"outside, nothing that any serves": {wrapped, "POST", "/other", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got string
			limiter := limiterOf(t, rules, func(o *ratelimit.Options) {
				o.OnDecision = func(_ http.ResponseWriter, _ *http.Request, d ratelimit.Decision) { got = d.Rule }
			})
			serve(limiter.Middleware(tc.handler), tc.method, tc.target)
			if got != tc.want {
				t.Errorf("decided by rule %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRouteHook(t *testing.T) {
	route := ""
	var got string
	limiter := limiterOf(t, `
  rules: [{name: export, match: [{route: "/exports/{id}"}], limits: [{requests: 100, window: 1h}]}]
`, func(o *ratelimit.Options) {
		o.Route = func(*http.Request) string { return route }
		o.OnDecision = func(_ http.ResponseWriter, _ *http.Request, d ratelimit.Decision) { got = d.Rule }
	})
	h := limiter.Middleware(ok)
	for _, tc := range []struct{ route, want string }{
		{"/exports/{name}", "export"}, {"/other", ""}, {ratelimit.NoRoute, ""}, {"", "export"},
	} {
		route = tc.route
		serve(h, http.MethodPost, "/exports/7")
		if got != tc.want {
			t.Errorf("route %q: decided by rule %q, want %q", tc.route, got, tc.want)
		}
	}
}

// Probes are never charged and never denied, and no spelling makes another path a probe (B47).
func TestProbesAreExempt(t *testing.T) {
	limiter := limiterOf(t, `
  exempt: [{pathPrefix: /healthz}]
  rules: [{name: all, key: [{clientIP: {}}], limits: [{requests: 3, window: 1h}]}]
`)
	h := limiter.Middleware(ok)
	for range 100 {
		if w := serve(h, http.MethodGet, "/healthz"); w.Code != http.StatusOK {
			t.Fatalf("a probe got %d", w.Code)
		}
	}
	for _, target := range []string{"/healthz/../api/x", "/healthzX", "/healthz/%2e%2e/api/x"} {
		if w := serve(h, http.MethodGet, target); w.Code != http.StatusOK || w.Header().Get("RateLimit") == "" {
			t.Errorf("%s: %d, want it counted and admitted", target, w.Code)
		}
	}
	if w := serve(h, http.MethodGet, "/healthzX"); w.Code != http.StatusTooManyRequests {
		t.Errorf("the fourth request got %d, want 429", w.Code)
	}
}

func TestResponses(t *testing.T) {
	const exports = `
  rules: [{name: exports, key: [{header: X-Api-Key}], whenKeyMissing: Deny, limits: [{requests: 1, window: 1h}]}]
`
	h := limiterOf(t, exports).Middleware(ok)
	w := serve(h, http.MethodPost, "/", "X-Api-Key", "alice")
	if w.Code != http.StatusOK || w.Body.String() != "served" {
		t.Errorf("the first request got %d %q", w.Code, w.Body)
	}
	want := http.Header{
		"Ratelimit-Policy": {`"checkout/exports";q=1;w=3600`},
		"Ratelimit":        {`"checkout/exports";r=0;t=3600`},
		"Content-Type":     {"text/plain; charset=utf-8"},
	}
	if diff := cmp.Diff(want, w.Header()); diff != "" {
		t.Errorf("header of an admitted request (-want +got):\n%s", diff)
	}

	w = serve(h, http.MethodPost, "/", "X-Api-Key", "alice")
	want = http.Header{
		"Ratelimit-Policy": {`"checkout/exports";q=1;w=3600`},
		"Ratelimit":        {`"checkout/exports";r=0;t=3600`},
		"Retry-After":      {"3600"},
		"Content-Type":     {"application/problem+json"},
		"Cache-Control":    {"no-store"},
		"Content-Length":   w.Header()["Content-Length"],
	}
	if diff := cmp.Diff(want, w.Header()); diff != "" {
		t.Errorf("header of a denied request (-want +got):\n%s", diff)
	}
	wantProblem(t, w, http.StatusTooManyRequests, map[string]any{
		"type":              "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title":             "Request cannot be satisfied as assigned quota has been exceeded",
		"status":            429.0,
		"violated-policies": []any{"checkout/exports"},
	})

	w = serve(h, http.MethodPost, "/")
	wantProblem(t, w, http.StatusBadRequest, map[string]any{
		"type": "about:blank", "title": "Request lacks what its rate limit is counted by", "status": 400.0,
	})
	if w.Header().Get("Retry-After") != "" || w.Header().Get("RateLimit") != "" {
		t.Errorf("a request without a key is told when to come back: %v", w.Header())
	}
}

func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, want map[string]any) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status %d, want %d", w.Code, status)
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("body %q: %v", w.Body, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problem (-want +got):\n%s", diff)
	}
}
