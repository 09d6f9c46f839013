package enforcer

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-dev/weir/internal/policy"
)

// pick draws one of some.
func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// randomSpec is a policy whose rules read one thing and another of a request.
func randomSpec(random *rand.Rand) policy.Spec {
	spec := policy.Spec{
		TargetRef:  policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
		Evaluation: pick(random, policy.EvaluationFirstMatch, policy.EvaluationAll),
	}
	if random.IntN(3) == 0 {
		spec.Exempt = []policy.Exemption{{PathPrefix: "/a"}}
	}
	key := func() policy.KeyPart {
		return pick(random,
			policy.KeyPart{Header: "X-Api-Key"}, policy.KeyPart{Header: "X-Api-Key"}, policy.KeyPart{Header: pick(random, "X-Tenant", "Host")},
			policy.KeyPart{ClientIP: &policy.ClientIP{}}, policy.KeyPart{Request: policy.RequestKeyRoute}, policy.KeyPart{Request: policy.RequestKeyMethod},
			policy.KeyPart{Attribute: "user"}, policy.KeyPart{FirstOf: []policy.KeyPart{{Header: "X-Api-Key"}, {ClientIP: &policy.ClientIP{}}}})
	}
	for i := range 1 + random.IntN(3) {
		requests := int64(10)
		rule := policy.Rule{
			Name:           string(rune('a' + i)),
			Limits:         []policy.Limit{{Requests: &requests, Window: "1h"}},
			WhenKeyMissing: pick(random, policy.WhenKeyMissingClientIP, policy.WhenKeyMissingAnonymous, policy.WhenKeyMissingDeny, policy.WhenKeyMissingSkip),
		}
		for range random.IntN(3) {
			rule.Key = append(rule.Key, key())
		}
		switch random.IntN(5) {
		case 0:
			rule.Match = []policy.Match{{Route: pick(random, "/a/{id}", "/b")}}
		case 1:
			rule.Match = []policy.Match{{PathPrefix: pick(random, "/a", "/b"), Methods: []string{pick(random, "GET", "POST")}}}
		case 2:
			rule.Match = []policy.Match{{Headers: []policy.HeaderMatch{{Name: pick(random, "X-Api-Key", "Host"), Value: "1"}}}}
		}
		if random.IntN(5) == 0 {
			rule.Mode = policy.ModeShadow
		}
		if random.IntN(5) == 0 {
			unlimited := policy.Override{When: policy.AttributeMatch{Attribute: "user", Values: []string{"1"}}, Unlimited: true}
			rule.Overrides = []policy.Override{unlimited}
		}
		spec.Rules = append(spec.Rules, rule)
	}
	return spec
}

// randomRequest changes little of the one before, mostly.
func randomRequest(random *rand.Rand, r Request) Request {
	if r.Header = r.Header.Clone(); r.Header == nil {
		r.Header = http.Header{}
	}
	set := func(name string) {
		if lines := pick(random, nil, []string{"1"}, []string{"2"}, []string{"1", "2"}, []string{""}); lines != nil {
			r.Header[name] = lines
		} else {
			delete(r.Header, name)
		}
	}
	switch random.IntN(16) {
	case 0:
		r.Method = pick(random, "GET", "POST", "HEAD")
	case 1:
		r.Host = pick(random, "", "1", "2")
	case 2:
		r.Route = pick(random, "", "/a/{id}", "GET /b", "/", policy.NoRoute)
	case 3:
		r.Path = pick(random, "", "/a/1", "/a/2", "/b", "/c/../b")
	case 4:
		r.Remote = pick(random, "10.0.0.1:1", "10.0.0.2:1", "203.0.113.7:1", "none")
	case 5:
		r.Attributes = pick(random, nil, map[string]string{"user": "1"}, map[string]string{"user": "2"})
	case 6, 7:
		set("X-Api-Key")
	case 8:
		set("X-Tenant")
	case 9:
		r.Header["X-Forwarded-For"] = []string{pick(random, "198.51.100.1", "198.51.100.2")}
	case 10:
		delete(r.Header, "X-Forwarded-For")
	}
	return r
}

func odd(e *Enforcer, s *snapshot) uint64 {
	n := e.counts.disbelieved.Load() << 32
	for i := range s.rules {
		n += s.rules[i].tally.missing.Load()
	}
	return n
}

// What a request asks does not depend on what was asked with the same memory before.
func TestRepeatsAskTheSame(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	repeats := 0
	for range 2000 {
		e := New(Options{TrustedProxies: pick(random, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/31")})})
		row, verdicts := policy.Compile(policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}, "test", []policy.Policy{{
			Metadata: policy.Metadata{Namespace: "shop", Name: "p", UID: "p", Generation: 1}, Spec: randomSpec(random),
		}})
		if !verdicts[0].Accepted() {
			continue // a rule that cannot be
		}
		s, err := compileRow(row, 0, e.tallies)
		if err != nil {
			t.Fatal(err)
		}
		s.inherit(nil, 0)
		used := newDecision(e)
		r := Request{Method: "GET", Path: "/a/1", Remote: "10.0.0.1:1"}
		for range 100 {
			r = randomRequest(random, r)
			fresh, last := newDecision(e), used.last
			peek := random.IntN(2) == 0
			var counted [2]uint64 // requests with a doubtful address, or without a part of a key
			var went [2]bool
			for i, d := range []*decision{fresh, used} {
				before := odd(e, s)
				d.s, d.request, d.peek = s, r, peek
				went[i] = d.collect()
				counted[i] = odd(e, s) - before
				if d.want.peek != d.peek && went[i] {
					t.Fatalf("seed %d: a peek is none: %+v", seed, r)
				}
			}
			if last.s != nil && last == used.last {
				repeats++
			}
			same := went[0] == went[1] && counted[0] == counted[1] && fresh.unlimited == used.unlimited && slices.Equal(fresh.shadows, used.shadows)
			if went[0] {
				same = same && slices.Equal(fresh.want.counters, used.want.counters) && slices.Equal(fresh.want.origins, used.want.origins) &&
					fresh.want.enforced == used.want.enforced && slices.Equal(fresh.want.shadow, used.want.shadow) && fresh.walk.Exempt() == used.walk.Exempt()
			}
			if !same {
				t.Fatalf("seed %d: %+v asks\n%+v, and behind another request\n%+v", seed, r, fresh.want, used.want)
			}
			used.release()
		}
	}
	if repeats < 1000 {
		t.Errorf("only %d requests repeated another: the test does not show what it should", repeats)
	}
}
