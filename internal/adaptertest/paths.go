package adaptertest

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/weir-dev/weir/ratelimit"
)

// testReadings spends a limit by the plain path. Then no spelling reaches its handler, neither where the router takes
// "%2F" for a slash nor where it takes it for data, whether it leaves dot segments in or takes them out.
func testReadings(t *testing.T, m Mount) {
	login := []string{
		"/api/login", "/api%2Flogin", "/api%2flogin", "/%61pi%2flogin", "/api/lo%67in", "/api/%2Flogin", "/api%2F%2Flogin",
		"/api/login%2F", "/api/login/", "//api/login", "/%2Fapi/login", "/x/..%2fapi/login", "/x%2F..%2Fapi%2Flogin", "/x/../api/login",
		"/api/./login", "/api%2F.%2Flogin", "/api/%2e/login", "/api%252Flogin", "/%2e%2e%2fapi%2flogin",
		"/assets/..%2fapi/login", "/assets%2F..%2Fapi%2Flogin", "/assets/../api/login", "/assets/%2e%2e/api/login",
		"/healthz/..%2fapi/login", "/healthz%2F..%2Fapi%2Flogin", "/healthz/../api/login", "/healthz/%2e%2e%2fapi/login",
		"http://shop.example/api%2Flogin",
	}
	tree := []string{
		"/tree/a", "/tree/a/b", "/tree%2Fa", "/tree/a%2Fb", "/tree/..", "/tree/../x", "/tree/..%2Fx", "/tree%2F..%2Fx", "/tree%2F..",
		"/tree/%2e%2e/x", "/tree//x", "/tree%2F%2Fx", "/tree/./x", "/%74ree%2f..%2fx", "/tree/../healthz", "/tree%2f..%2fhealthz",
		"/tree/..%2fhealthz", "/healthz/..%2ftree/a", "/assets/..%2Ftree/a", "/tree/../assets/x", "/tree%2F..%2Fassets",
	}
	for name, tc := range map[string]struct {
		match   string
		path    string
		targets []string
	}{
		"a prefix":                        {"{pathPrefix: /api}", "/api/login", login},
		"a prefix that is the path":       {"{pathPrefix: /api/login}", "/api/login", login},
		"a route":                         {"{route: /api/login}", "/api/login", login},
		"a prefix with all that is there": {"{pathPrefix: /tree}", "/tree/{path...}", tree},
		"a route with all that is there":  {`{route: "/tree/{rest...}"}`, "/tree/{path...}", tree},
	} {
		t.Run(name, func(t *testing.T) {
			for _, evaluation := range []string{"All", "FirstMatch"} {
				testSpent(t, m, evaluation, tc.match, tc.path, tc.targets)
			}
		})
	}
}

func testSpent(t *testing.T, m Mount, evaluation, match, path string, targets []string) {
	t.Helper()
	const limit = 2
	w := start(t, m, fmt.Sprintf(`
  evaluation: %s
  exempt: [{pathPrefix: /healthz}]
  rules:
    - {name: lax, match: [{pathPrefix: /assets}], limits: [{requests: 1000, window: 1h}]}
    - {name: strict, match: [%s], limits: [{requests: %d, window: 1h}]}
    - {name: others, limits: [{requests: 1000, window: 1h}]}
`, evaluation, match, limit), []Route{
		{Method: http.MethodGet, Path: path},
		{Method: http.MethodGet, Path: "/healthz", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})},
	})
	for range limit {
		w.want("status of "+targets[0], w.send(http.MethodGet, targets[0], "").status, http.StatusOK)
	}
	w.want("requests that reached the handler", w.served, limit)
	w.want("remaining", w.remaining(ratelimit.Request{Method: http.MethodGet, Path: targets[0]}), int64(0))
	for _, target := range targets {
		served := w.served
		if w.send(http.MethodGet, target, ""); w.served > served {
			w.Errorf("%s: GET %s reached the handler over the limit", evaluation, target)
		}
	}
}
