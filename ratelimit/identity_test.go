package ratelimit_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-dev/weir/ratelimit"
)

// front is a server behind a limiter, to which requests come from several addresses of this machine.
type front struct {
	t    *testing.T
	addr string
}

func newFront(t *testing.T, rules string, change ...func(*ratelimit.Options)) *front {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/", ok)
	mux.Handle("/users/{id}/validate", ok)
	server := httptest.NewServer(limiterOf(t, rules, change...).Middleware(mux))
	t.Cleanup(server.Close)
	return &front{t, server.Listener.Addr().String()}
}

// send sends a request from one of this machine's addresses, its header lines as they are, and says whether it was
// served.
func (f *front) send(from string, lines ...string) bool {
	f.t.Helper()
	return f.sendTo(from, "GET / HTTP/1.1", lines...) == http.StatusOK
}

func (f *front) sendTo(from, request string, lines ...string) int {
	f.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(f.t.Context(), "tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	text := request + "\r\nHost: shop.example\r\nConnection: close\r\n"
	for _, line := range lines {
		text += line + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		f.t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer r.Body.Close()
	return r.StatusCode
}

// Two addresses of this machine: a client of its own, and the proxy that is trusted.
const (
	stranger = "127.0.0.9"
	proxy    = "127.0.0.2"
)

func trusting(o *ratelimit.Options) {
	o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32"), netip.MustParsePrefix("10.0.0.0/8")}
}

const ten = `
  rules: [{name: client, key: [{clientIP: {}}], limits: [{requests: 10, window: 24h, algorithm: FixedWindow}]}]
`

// B37: no header gives a client a fresh limit.
func TestForgedAddresses(t *testing.T) {
	tests := map[string]func(f *front, i int) bool{
		"from a peer that is not trusted": func(f *front, i int) bool {
			return f.send(stranger, fmt.Sprintf("X-Forwarded-For: 1.1.1.%d", i))
		},
		"in front of what the proxy appends": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: 1.1.1.%d, 203.0.113.7", i))
		},
		"in a line of its own": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: 1.1.1.%d", i), "X-Forwarded-For: 203.0.113.7")
		},
		"behind two proxies": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: 1.1.1.%d, 203.0.113.7, 10.1.1.1", i))
		},
		"with ports": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: 203.0.113.7:%d", 1000+i))
		},
		"with nonsense in front": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: unknown-%d, 203.0.113.7", i))
		},
		"that are no addresses": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Forwarded-For: _hidden%d", i))
		},
		"in other headers": func(f *front, i int) bool {
			return f.send(proxy, fmt.Sprintf("X-Real-Ip: 1.1.1.%d", i), fmt.Sprintf("Forwarded: for=1.1.1.%d", i),
				fmt.Sprintf("True-Client-Ip: 1.1.1.%d", i), "X-Forwarded-For: 203.0.113.7")
		},
		"mapped into IPv6": func(f *front, i int) bool {
			return f.send(proxy, "X-Forwarded-For: "+[]string{"::ffff:203.0.113.7", "[::ffff:203.0.113.7]:80", "203.0.113.7"}[i%3])
		},
	}
	for name, send := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, ten, trusting)
			served := 0
			for i := range 100 {
				if send(f, i) {
					served++
				}
			}
			if served != 10 {
				t.Errorf("served %d, want 10", served)
			}
		})
	}
}

// B39: a network is one client, mapped addresses are IPv4, and zones are no addresses.
func TestNetworks(t *testing.T) {
	f := newFront(t, ten, trusting)
	count := func(n int, address func(i int) string) (served int) {
		for i := range n {
			if f.send(proxy, "X-Forwarded-For: "+address(i)) {
				served++
			}
		}
		return served
	}
	for _, tc := range []struct {
		name    string
		n, want int
		address func(i int) string
	}{
		{"hosts of a /64", 100, 10, func(i int) string { return fmt.Sprintf("2001:db8:1:2::%x:%x", i, i*7) }},
		{"the next network", 10, 10, func(int) string { return "2001:db8:1:3::1" }},
		{"a mapped address", 10, 10, func(int) string { return "::ffff:203.0.113.7" }},
		{"another one", 10, 10, func(int) string { return "::ffff:198.51.100.1" }},
		{"the first one again, as it is", 5, 0, func(int) string { return "203.0.113.7" }},
		{"one in brackets", 20, 10, func(int) string { return "[2001:db8:9::1]:443" }},
		{"the same without", 5, 0, func(int) string { return "2001:db8:9::1" }},
		{"zones", 20, 10, func(i int) string { return fmt.Sprintf("fe80::1%%eth%d", i) }},
	} {
		if served := count(tc.n, tc.address); served != tc.want {
			t.Errorf("%s: served %d of %d, want %d", tc.name, served, tc.n, tc.want)
		}
	}
}

// B41: parts do not run into each other, and a name that looks like an address is none.
func TestKeysThatLookAlike(t *testing.T) {
	one := `
  rules:
    - {name: tenant, match: [{pathPrefix: /tenant}], key: [{header: X-Tenant}, {header: X-User}], limits: [{requests: 1, window: 24h}]}
    - {name: user, match: [{pathPrefix: /user}], key: [{firstOf: [{header: X-User}, {clientIP: {}}]}], limits: [{requests: 1, window: 24h}]}
`
	f := newFront(t, one)
	for _, tc := range []struct{ path, tenant, user string }{
		{"/tenant", "a:b", "c"}, {"/tenant", "a", "b:c"}, {"/tenant", "21", "1"}, {"/tenant", "2", "11"},
		{"/tenant", "a%00", "b"}, {"/tenant", "a*", "b"}, {"/tenant", "acme_live_AAAA", "x"}, {"/tenant", "acme_live_BBBB", "x"},
		{"/user", "", stranger}, {"/user", "", ""},
	} {
		var lines []string
		for name, value := range map[string]string{"X-Tenant": tc.tenant, "X-User": tc.user} {
			if value != "" {
				lines = append(lines, name+": "+value)
			}
		}
		first, second := f.sendTo(stranger, "GET "+tc.path+" HTTP/1.1", lines...), f.sendTo(stranger, "GET "+tc.path+" HTTP/1.1", lines...)
		if first != http.StatusOK || second != http.StatusTooManyRequests {
			t.Errorf("%+v: %d and then %d, want a limit of its own", tc, first, second)
		}
	}
}

// B43: a header that is absent, empty or blank is the same, and what then counts is in a name space of its own.
func TestMissingKeys(t *testing.T) {
	for missing, want := range map[string][3]int{ // of two clients with three requests each, and the status of the denied
		"Deny": {0, 0, http.StatusBadRequest}, "ClientIP": {1, 1, http.StatusTooManyRequests}, "Anonymous": {1, 0, http.StatusTooManyRequests},
		"Skip": {3, 3, 0},
	} {
		t.Run(missing, func(t *testing.T) {
			f := newFront(t, `
  rules: [{name: key, key: [{header: X-Api-Key}], whenKeyMissing: `+missing+`, limits: [{requests: 1, window: 24h}]}]
`)
			if !f.send(stranger, "X-Api-Key: "+stranger) { // a key that looks like the address
				t.Error("a request with a key was denied")
			}
			for i, from := range []string{stranger, "127.0.0.10"} {
				served := 0
				for _, lines := range [][]string{nil, {"X-Api-Key:"}, {"X-Api-Key: \t "}} {
					switch status := f.sendTo(from, "GET / HTTP/1.1", lines...); status {
					case http.StatusOK:
						served++
					case want[2]:
					default:
						t.Errorf("status %d of a request without a key", status)
					}
				}
				if served != want[i] {
					t.Errorf("client %d: served %d, want %d", i, served, want[i])
				}
			}
		})
	}
}

// B45 and B47 with bytes as they come over the wire: whatever spelling is served is counted, and no spelling is exempt.
func TestSpellingsOverTheWire(t *testing.T) {
	f := newFront(t, `
  evaluation: FirstMatch
  exempt: [{pathPrefix: /healthz}]
  rules:
    - {name: validate, match: [{route: "/users/{id}/validate"}], limits: [{requests: 2, window: 24h}]}
    - {name: rest, limits: [{requests: 5, window: 24h}]}
`)
	for _, target := range []string{"/users/42/validate", "/users/%34%32/validate"} {
		if status := f.sendTo(stranger, "GET "+target+" HTTP/1.1"); status != http.StatusOK {
			t.Errorf("%s: %d", target, status)
		}
	}
	for _, request := range []string{
		"GET /users/42/validate", "HEAD /users/42/validate", "GET /users/a%2Fb/validate", "GET /users/4%32/validate?x=1",
		"GET http://shop.example/users/42/validate",
	} {
		if status := f.sendTo(stranger, request+" HTTP/1.1"); status != http.StatusTooManyRequests {
			t.Errorf("%s: %d, want it to be counted as the same route", request, status)
		}
	}
	for range 20 {
		if status := f.sendTo(stranger, "GET /healthz HTTP/1.1"); status != http.StatusOK {
			t.Fatalf("a probe got %d", status)
		}
	}
	for _, target := range []string{"/healthz/../x", "/healthz/%2e%2e/x", "//healthz", "/healthzX", "/HEALTHZ"} {
		f.sendTo(stranger, "GET "+target+" HTTP/1.1")
	}
	if status := f.sendTo(stranger, "GET /x HTTP/1.1"); status != http.StatusTooManyRequests {
		t.Errorf("a sixth request got %d: some of those that look like probes were not counted", status)
	}
}

// Proxies that nobody named make one client of all: that is told once, and counted.
func TestForgottenProxies(t *testing.T) {
	var log strings.Builder
	r := newRegistry()
	f := newFront(t, ten, func(o *ratelimit.Options) {
		o.Registerer, o.Logger = r, slog.New(slog.NewTextHandler(&log, nil))
	})
	if r.value(t, "weir_forwarded_ignored_total", nil) != 0 {
		t.Error("counted before any request")
	}
	for range 3 {
		f.send(stranger, "X-Forwarded-For: 203.0.113.7")
	}
	f.send(stranger)
	if n := r.value(t, "weir_forwarded_ignored_total", nil); n != 3 {
		t.Errorf("counted %v, want 3", n)
	}
	if n := strings.Count(log.String(), "X-Forwarded-For of a private peer is ignored"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "203.0.113.7") {
		t.Error("the log names a client")
	}
}
