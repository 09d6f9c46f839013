package enforcer

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

func prefixes(t testing.TB, list ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return unmapPrefixes(out)
}

func TestClientAddr(t *testing.T) {
	tests := map[string]struct {
		remote  string
		lines   []string
		trusted []string
		want    string
	}{
		"the peer":              {remote: "203.0.113.7:4711", want: "203.0.113.7"},
		"a peer without a port": {remote: "203.0.113.7", want: "203.0.113.7"},
		"an IPv6 peer":          {remote: "[2001:db8::1]:80", want: "2001:db8::1"},
		"an IPv6 peer in brackets without a port":    {remote: "[2001:db8::1]", want: "2001:db8::1"},
		"a peer in IPv6 clothes":                     {remote: "[::ffff:203.0.113.7]:80", want: "203.0.113.7"},
		"a peer with a zone":                         {remote: "[fe80::1%eth0]:80", want: "fe80::1"},
		"a Unix socket":                              {remote: "@", want: ""},
		"nothing":                                    {remote: "", want: ""},
		"an untrusted peer is not believed":          {"203.0.113.7:1", []string{"1.1.1.1"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"nobody is trusted by default":               {"10.0.0.2:1", []string{"1.1.1.1"}, nil, "10.0.0.2"},
		"a trusted peer without the header":          {"10.0.0.2:1", nil, []string{"10.0.0.0/8"}, "10.0.0.2"},
		"what a trusted peer says":                   {"10.0.0.2:1", []string{"203.0.113.7"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"what the client put in front does not help": {"10.0.0.2:1", []string{"1.1.1.1, 203.0.113.7"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"lines are one list":                         {"10.0.0.2:1", []string{"1.1.1.1", "203.0.113.7"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"through several trusted proxies":            {"10.0.0.2:1", []string{"1.1.1.1, 203.0.113.7, 10.9.9.9", "10.0.0.3"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"all of them trusted":                        {"10.0.0.2:1", []string{"10.0.0.9, 10.0.0.3"}, []string{"10.0.0.0/8"}, "10.0.0.9"},
		"a hop with a port":                          {"10.0.0.2:1", []string{"203.0.113.7:99"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
		"an IPv6 hop with a port":                    {"10.0.0.2:1", []string{"[2001:db8::1]:99"}, []string{"10.0.0.0/8"}, "2001:db8::1"},
		"a hop that is no address":                   {"10.0.0.2:1", []string{"203.0.113.7, unknown, 10.0.0.3"}, []string{"10.0.0.0/8"}, "10.0.0.3"},
		"an empty hop":                               {"10.0.0.2:1", []string{"203.0.113.7,,"}, []string{"10.0.0.0/8"}, "10.0.0.2"},
		"a trusted prefix in IPv6 clothes":           {"10.0.0.2:1", []string{"203.0.113.7"}, []string{"::ffff:10.0.0.0/104"}, "203.0.113.7"},
		"a proxy in IPv6 clothes":                    {"[::ffff:10.0.0.2]:1", []string{"203.0.113.7"}, []string{"10.0.0.0/8"}, "203.0.113.7"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			header := http.Header{}
			if tc.lines != nil {
				header["X-Forwarded-For"] = tc.lines
			}
			addr, _, ok := clientOf(tc.remote, header, prefixes(t, tc.trusted...))
			got := ""
			if ok {
				got = addr.String()
			}
			if got != tc.want {
				t.Errorf("client %q, want %q", got, tc.want)
			}
		})
	}
}

// However a client forges the header, it stays itself (B37).
func TestForgedHeaderIsNoFreshClient(t *testing.T) {
	trusted := prefixes(t, "10.0.0.0/8")
	for name, request := range map[string]struct {
		remote string
		lines  func(forged string) []string
	}{
		"without a proxy":          {"203.0.113.7:1", func(f string) []string { return []string{f} }},
		"in front of the list":     {"10.0.0.2:1", func(f string) []string { return []string{f + ", 203.0.113.7"} }},
		"in a line of its own":     {"10.0.0.2:1", func(f string) []string { return []string{f, "203.0.113.7"} }},
		"with more hops than many": {"10.0.0.2:1", func(f string) []string { return []string{strings.Repeat(f+",", 1000) + "203.0.113.7"} }},
	} {
		for i := 1; i <= 100; i++ {
			header := http.Header{"X-Forwarded-For": request.lines("1.1.1." + strconv.Itoa(i))}
			if got, _, ok := clientOf(request.remote, header, trusted); !ok || got.String() != "203.0.113.7" {
				t.Fatalf("%s: client %v, want 203.0.113.7", name, got)
			}
		}
	}
}

func TestHopsAreBounded(t *testing.T) {
	header := http.Header{"X-Forwarded-For": {"203.0.113.7," + strings.Repeat("10.0.0.9,", maxHops) + "10.0.0.8"}}
	got, _, ok := clientOf("10.0.0.2:1", header, prefixes(t, "10.0.0.0/8"))
	if !ok || got.String() != "10.0.0.9" {
		t.Errorf("client %v, want the last proxy that is believed, 10.0.0.9", got)
	}
}

// A peer that has an address of a neighbour, forwards and is not believed may be a proxy that somebody forgot to name.
func TestDoubtfulPeers(t *testing.T) {
	forwarded := http.Header{"X-Forwarded-For": {"203.0.113.7"}}
	tests := map[string]struct {
		remote string
		header http.Header
		want   bool
	}{
		"a private peer":            {"10.1.2.3:80", forwarded, true},
		"a sidecar":                 {"127.0.0.1:80", forwarded, true},
		"a unique local address":    {"[fd00::1]:80", forwarded, true},
		"a cloud's inside":          {"100.64.0.9:80", forwarded, true},
		"a client of the Internet":  {"198.51.100.1:80", forwarded, false},
		"a private peer's own call": {"10.1.2.3:80", http.Header{}, false},
		"a trusted proxy":           {"192.168.0.1:80", forwarded, false},
		"no address":                {"@", forwarded, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, doubtful, _ := clientOf(tc.remote, tc.header, prefixes(t, "192.168.0.0/16")); doubtful != tc.want {
				t.Errorf("doubtful is %v, want %v", doubtful, tc.want)
			}
		})
	}
}
