package enforcer

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-dev/weir/internal/policy"
)

func identityOf(t testing.TB, parts []policy.KeyPart, missing policy.WhenKeyMissing, r Request) (Identity, keyOutcome) {
	t.Helper()
	matcher := policy.NewMatcher(policy.Row{
		Policies: []policy.RowPolicy{{Name: "p"}}, Rules: []policy.RowRule{{Policy: "p", Name: "r"}},
	})
	match := policy.Request{Method: r.Method, Host: r.Host, Route: r.Route, Path: r.Path, Header: r.Header}
	walk := matcher.Walk(&match)
	walk.Next()
	k := compileKey(parts, missing)
	id, outcome, _ := k.identify(&subject{request: &r, walk: &walk}, nil)
	return id, outcome
}

var (
	apiKey   = policy.KeyPart{Header: "X-Api-Key"}
	user     = policy.KeyPart{Attribute: "user"}
	tenant   = policy.KeyPart{Attribute: "tenant"}
	clientIP = policy.KeyPart{ClientIP: &policy.ClientIP{}}
	byRoute  = policy.KeyPart{Request: policy.RequestKeyRoute}
	byMethod = policy.KeyPart{Request: policy.RequestKeyMethod}
)

func firstOf(parts ...policy.KeyPart) policy.KeyPart { return policy.KeyPart{FirstOf: parts} }

func header(name, value string) http.Header { return http.Header{name: {value}} }

// No two different callers are one identity, whatever they put into their values (B41, B43).
func TestIdentitiesAreInjective(t *testing.T) {
	type caller struct {
		parts   []policy.KeyPart
		request Request
	}
	pair := func(a, b string) caller {
		return caller{[]policy.KeyPart{user, tenant}, Request{Attributes: map[string]string{"user": a, "tenant": b}}}
	}
	one := func(part policy.KeyPart, r Request) caller { return caller{[]policy.KeyPart{part}, r} }
	callers := map[string]caller{
		"a:b, c":                       pair("a:b", "c"),
		"a, b:c":                       pair("a", "b:c"),
		"21, 1":                        pair("21", "1"),
		"2, 11":                        pair("2", "11"),
		"a newline":                    pair("a\nb", "c"),
		"a newline elsewhere":          pair("a", "b\nc"),
		"NUL":                          pair("a\x00b", "c"),
		"NUL elsewhere":                pair("a", "b\x00c"),
		"percent":                      pair("%", "c"),
		"star":                         pair("*", "c"),
		"braces":                       pair("a}b", "{x}"),
		"the order matters":            pair("c", "a:b"),
		"no key at all":                {nil, Request{}},
		"a user that is an address":    one(user, Request{Attributes: map[string]string{"user": "10.0.0.1"}}),
		"that address":                 one(clientIP, Request{Remote: "10.0.0.1:1"}),
		"a user that is a header":      one(user, Request{Attributes: map[string]string{"user": "acme_live_AAAA"}}),
		"that header":                  one(apiKey, Request{Header: header("X-Api-Key", "acme_live_AAAA")}),
		"another with the same prefix": one(apiKey, Request{Header: header("X-Api-Key", "acme_live_BBBB")}),
		"another header":               one(policy.KeyPart{Header: "X-Other"}, Request{Header: header("X-Other", "acme_live_AAAA")}),
		"the missing key of 10.0.0.1":  one(apiKey, Request{Remote: "10.0.0.1:1"}),
		"the missing key of 10.0.0.2":  one(apiKey, Request{Remote: "10.0.0.2:1"}),
		"the missing key of nobody":    one(apiKey, Request{}),
		"a method":                     one(byMethod, Request{Method: "GET"}),
		"a route":                      one(byRoute, Request{Route: "/users/{id}"}),
		"another route":                one(byRoute, Request{Route: "/users/"}),
		"no route":                     one(byRoute, Request{Path: "/users/1"}),
		"an IPv4 address as IPv6":      one(clientIP, Request{Remote: "[a00:1::]:1"}),
		"half of an address":           one(policy.KeyPart{ClientIP: &policy.ClientIP{IPv4PrefixLength: new(int32(16))}}, Request{Remote: "10.0.0.1:1"}),
	}
	seen := make(map[Identity]string)
	for name, c := range callers {
		id, _ := identityOf(t, c.parts, policy.WhenKeyMissingClientIP, c.request)
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q are one identity", name, other)
		}
		seen[id] = name
	}
}

func TestSameIdentity(t *testing.T) {
	tests := map[string]struct {
		part policy.KeyPart
		a, b Request
		want bool
	}{
		"the spelling of a header's name does not matter": {
			policy.KeyPart{Header: "x-api-KEY"}, Request{Header: header("X-Api-Key", "k")}, Request{Header: header("X-Api-Key", "k")}, true,
		},
		"blanks around a value do not matter": {
			apiKey, Request{Header: header("X-Api-Key", " k ")}, Request{Header: header("X-Api-Key", "k")}, true,
		},
		"only the first line counts": {
			apiKey, Request{Header: http.Header{"X-Api-Key": {"k", "other"}}}, Request{Header: header("X-Api-Key", "k")}, true,
		},
		"hosts of one /64 are one client (B39)": {
			clientIP, Request{Remote: "[2001:db8:1:2::1]:1"}, Request{Remote: "[2001:db8:1:2:ffff::9]:2"}, true,
		},
		"the next /64 is another (B39)": {
			clientIP, Request{Remote: "[2001:db8:1:2::1]:1"}, Request{Remote: "[2001:db8:1:3::1]:1"}, false,
		},
		"IPv4 clients in IPv6 clothes are themselves (B39)": {
			clientIP, Request{Remote: "[::ffff:203.0.113.7]:1"}, Request{Remote: "[::ffff:198.51.100.1]:1"}, false,
		},
		"in either clothes": {
			clientIP, Request{Remote: "[::ffff:203.0.113.7]:1"}, Request{Remote: "203.0.113.7:9"}, true,
		},
		"a zone is not part of a client": {
			clientIP, Request{Remote: "[fe80::1%eth0]:1"}, Request{Remote: "[fe80::1%eth1]:1"}, true,
		},
		"a prefix can be chosen": {
			policy.KeyPart{ClientIP: &policy.ClientIP{IPv4PrefixLength: new(int32(24))}},
			Request{Remote: "203.0.113.7:1"}, Request{Remote: "203.0.113.99:1"}, true,
		},
		"the first part that is there counts": {
			firstOf(apiKey, user), Request{Header: header("X-Api-Key", "k"), Attributes: map[string]string{"user": "u"}},
			Request{Header: header("X-Api-Key", "k")}, true,
		},
		"blank is not there": {
			firstOf(apiKey, user), Request{Header: header("X-Api-Key", "  "), Attributes: map[string]string{"user": "u"}},
			Request{Attributes: map[string]string{"user": "u"}}, true,
		},
		"names of parameters are not part of a route": {
			byRoute, Request{Route: "GET /users/{id}"}, Request{Route: "/users/{name}"}, true,
		},
		"Host is a header": {
			policy.KeyPart{Header: "host"}, Request{Host: "a.example"}, Request{Host: "b.example"}, false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, foundA := identityOf(t, []policy.KeyPart{tc.part}, policy.WhenKeyMissingDeny, tc.a)
			b, foundB := identityOf(t, []policy.KeyPart{tc.part}, policy.WhenKeyMissingDeny, tc.b)
			if foundA != keyFound || foundB != keyFound {
				t.Fatal("a key is missing")
			}
			if (a == b) != tc.want {
				t.Errorf("one identity: %t, want %t", a == b, tc.want)
			}
		})
	}
}

// Absent, empty and blank are the same, and what happens then is the rule's choice (B43).
func TestMissingKey(t *testing.T) {
	spellings := map[string]http.Header{
		"absent": nil, "empty": header("X-Api-Key", ""), "blank": header("X-Api-Key", " \t "), "no lines": {"X-Api-Key": {}},
	}
	want := map[policy.WhenKeyMissing]keyOutcome{
		policy.WhenKeyMissingClientIP: keyAbsent, policy.WhenKeyMissingAnonymous: keyAbsent,
		policy.WhenKeyMissingDeny: keyDenied, policy.WhenKeyMissingSkip: keySkipped,
	}
	for missing, outcome := range want {
		var ids []Identity
		for name, h := range spellings {
			id, got := identityOf(t, []policy.KeyPart{apiKey}, missing, Request{Header: h, Remote: "203.0.113.7:1"})
			if got != outcome {
				t.Errorf("%s, %s: outcome %d, want %d", missing, name, got, outcome)
			}
			ids = append(ids, id)
		}
		for _, id := range ids {
			if id != ids[0] {
				t.Errorf("%s: spellings are different identities", missing)
			}
		}
	}
	anonymous, _ := identityOf(t, []policy.KeyPart{apiKey}, policy.WhenKeyMissingAnonymous, Request{Remote: "203.0.113.7:1"})
	nobody, _ := identityOf(t, []policy.KeyPart{apiKey}, policy.WhenKeyMissingClientIP, Request{})
	if anonymous != nobody {
		t.Error("a client without an address is not the anonymous one")
	}
	// One part that is missing makes the whole key missing.
	if _, got := identityOf(t, []policy.KeyPart{byMethod, apiKey}, policy.WhenKeyMissingDeny, Request{Method: "GET"}); got != keyDenied {
		t.Error("a key with a missing part was found")
	}
}

func TestIdentitiesOfRandomValuesDiffer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	alphabet := []rune(":,/{}%*\x00\n |0a")
	value := func() string {
		out := []rune{'v'} // never blank
		for range rng.IntN(4) {
			out = append(out, alphabet[rng.IntN(len(alphabet))])
		}
		return string(out) + "."
	}
	seen := make(map[Identity]string)
	for range 20_000 {
		a, b := value(), value()
		id, _ := identityOf(t, []policy.KeyPart{user, tenant}, policy.WhenKeyMissingDeny,
			Request{Attributes: map[string]string{"user": a, "tenant": b}})
		this := fmt.Sprintf("%q %q", a, b)
		if other, ok := seen[id]; ok && other != this {
			t.Fatalf("%s and %s are one identity", this, other)
		}
		seen[id] = this
	}
}

// What is remembered of former requests never changes an identity.
func TestTheMemoChangesNothing(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	var keyers []keyer
	for i, parts := range [][]policy.KeyPart{{apiKey}, {{Header: "X-Tenant"}}, {user}, {apiKey, user}, {apiKey}, {clientIP}} {
		k := compileKey(parts, policy.WhenKeyMissingClientIP)
		k.index = i
		keyers = append(keyers, k)
	}
	values := []string{"", " ", "a", "b", " a ", "aa", string(make([]byte, 127)), string(make([]byte, 128)), "X-Api-Key", "\x01a"}
	draw := func() string { return values[random.IntN(len(values))] }
	var m memo
	matcher := policy.NewMatcher(policy.Row{Policies: []policy.RowPolicy{{Name: "p"}}, Rules: []policy.RowRule{{Policy: "p", Name: "r"}}})
	for range 20_000 {
		r := Request{
			Header: http.Header{"X-Api-Key": {draw()}, "X-Tenant": {draw()}}, Attributes: map[string]string{"user": draw()}, Remote: "203.0.113.7",
		}
		k := &keyers[random.IntN(len(keyers))]
		walk := matcher.Walk(&r)
		want, found, _ := k.identify(&subject{request: &r, walk: &walk}, nil)
		got, remembered, _ := k.identify(&subject{request: &r, walk: &walk, memo: &m}, nil)
		if got != want || found != remembered {
			t.Fatalf("seed %d: %+v by key %d is %x (%d), without memory %x (%d)", seed, r, k.index, got, remembered, want, found)
		}
	}
}

// Identities are equal exactly where all parts are: no value of one part passes for a value of another (B41).
func FuzzIdentitiesAreInjective(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("21", "1", "2", "11")
	f.Add("\x00", "%", "*", "\n")
	parts := []policy.KeyPart{{Attribute: "tenant"}, {Attribute: "user"}}
	f.Fuzz(func(t *testing.T, tenantA, userA, tenantB, userB string) {
		of := func(tenant, user string) (Identity, bool) {
			id, outcome := identityOf(t, parts, policy.WhenKeyMissingDeny, Request{Attributes: map[string]string{"tenant": tenant, "user": user}})
			return id, outcome == keyFound
		}
		a, foundA := of(tenantA, userA)
		b, foundB := of(tenantB, userB)
		if !foundA || !foundB {
			return // absent, empty and blank are the same
		}
		same := strings.TrimSpace(tenantA) == strings.TrimSpace(tenantB) && strings.TrimSpace(userA) == strings.TrimSpace(userB)
		if (a == b) != same {
			t.Errorf("(%q, %q) and (%q, %q): one identity %t, one caller %t", tenantA, userA, tenantB, userB, a == b, same)
		}
	})
}
