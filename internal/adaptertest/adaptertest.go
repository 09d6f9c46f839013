// Package adaptertest holds what an adapter of a router must do: one suite, with a real server and a real client, that
// the adapters of all routers pass.
package adaptertest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

// Route is one that the router under test has to serve.
type Route struct {
	Method string
	// Path is in ServeMux form: /users/{id}/validate, /files/{path...}.
	Path    string
	Handler http.Handler
}

// Mount is a router with the limiter at one of the places where it may stand.
type Mount struct {
	// New builds the router. The limiter stands before all of the routes.
	New func(l *ratelimit.Limiter, routes []Route) http.Handler
	// ByPath says that the router's template is not known where the limiter stands, so that routes are compared with
	// the path.
	ByPath bool
}

// Run runs the suite for each mount.
func Run(t *testing.T, mounts map[string]Mount) {
	for name, m := range mounts {
		t.Run(name, func(t *testing.T) {
			t.Run("answers", func(t *testing.T) { testAnswers(t, m) })
			t.Run("statuses", func(t *testing.T) { testStatuses(t, m) })
			t.Run("hooks", func(t *testing.T) { testHooks(t, m) })
			t.Run("templates", func(t *testing.T) { testTemplates(t, m) })
			t.Run("spellings", func(t *testing.T) { testSpellings(t, m) })
			t.Run("readings of a path", func(t *testing.T) { testReadings(t, m) })
			t.Run("methods", func(t *testing.T) { testMethods(t, m) })
			t.Run("exemptions", func(t *testing.T) { testExemptions(t, m) })
			t.Run("bodies", func(t *testing.T) { testBodies(t, m) })
			t.Run("streaming", func(t *testing.T) { testStreaming(t, m) })
			t.Run("upgrades", func(t *testing.T) { testUpgrades(t, m) })
			t.Run("a panic", func(t *testing.T) { testPanic(t, m) })
			t.Run("a client that is gone", func(t *testing.T) { testGone(t, m) })
		})
	}
}

// world is a server and its limiter.
type world struct {
	*testing.T
	limiter *ratelimittest.Limiter
	server  *httptest.Server
	// What the handlers of one request at a time write. A server that hangs up does not wait for anybody to have read it.
	mu      sync.Mutex
	served  int
	decided []ratelimit.Decision
}

// start serves the routes behind the rules of one policy, in YAML.
func start(t *testing.T, m Mount, rules string, routes []Route, change ...func(*ratelimit.Options)) *world {
	t.Helper()
	source, err := file.Text(`
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
` + strings.Trim(rules, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t}
	options := ratelimit.Options{
		Policies: source,
		OnDecision: func(_ http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.decided = append(w.decided, d)
		},
	}
	for _, c := range change {
		c(&options)
	}
	w.limiter = ratelimittest.New(t, options)
	for i := range routes {
		if routes[i].Handler == nil {
			routes[i].Handler = http.HandlerFunc(w.serve)
		}
	}
	w.server = httptest.NewUnstartedServer(m.New(w.limiter.Limiter, routes))
	w.server.Config.ErrorLog = discard
	w.server.Start()
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.served++
	w.mu.Unlock()
	out.Header().Set("Content-Type", "text/plain")
	fmt.Fprintf(out, "served %s", r.Method)
}

// response is what the client got.
type response struct {
	status int
	header http.Header
	body   string
}

// send sends a request whose target goes over the wire as it is written. A status of 0 means that the server hung up.
func (w *world) send(method, target, body string, header ...string) response {
	w.Helper()
	w.mu.Lock()
	w.decided = nil
	w.mu.Unlock()
	conn := w.dial()
	defer conn.Close()
	var request strings.Builder
	fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n", method, target)
	if body != "" {
		fmt.Fprintf(&request, "Content-Length: %d\r\n", len(body))
	}
	for i := 0; i+1 < len(header); i += 2 {
		fmt.Fprintf(&request, "%s: %s\r\n", header[i], header[i+1])
	}
	if _, err := io.WriteString(conn, request.String()+"\r\n"+body); err != nil {
		w.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return response{}
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	if err != nil {
		return response{}
	}
	return response{r.StatusCode, r.Header, string(got)}
}

func (w *world) dial() net.Conn {
	w.Helper()
	var d net.Dialer
	conn, err := d.DialContext(w.Context(), "tcp", w.server.Listener.Addr().String())
	if err != nil {
		w.Fatal(err)
	}
	if deadline, ok := w.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			w.Fatal(err)
		}
	}
	return conn
}

// rule is the name of the rule that decided last.
func (w *world) rule() string {
	if len(w.decided) == 0 {
		return "none asked"
	}
	return w.decided[len(w.decided)-1].Rule
}

// remaining is what a request would find, without charging anything.
func (w *world) remaining(r ratelimit.Request) int64 {
	return w.limiter.Peek(context.Background(), r).Remaining
}

func (w *world) want(what string, got, want any) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %v, want %v", what, got, want)
	}
}

// problem reads a problem document.
func (w *world) problem(r response) (p struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies"`
}) {
	w.Helper()
	w.want("content type", r.header.Get("Content-Type"), "application/problem+json")
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		w.Errorf("problem %q: %v", r.body, err)
	}
	w.want("status in the problem", p.Status, r.status)
	return p
}
