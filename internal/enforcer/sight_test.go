package enforcer_test

import (
	"net/http"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// lastReport is what the replica said with its last heartbeat.
func (h *harness) lastReport() policy.Report {
	h.t.Helper()
	if err := h.Poll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return h.table.reports[len(h.table.reports)-1]
}

func TestRulesThatNoRequestMatchesAreReported(t *testing.T) {
	h := newHarness(t, func(o *enforcer.Options) { o.InProcess = true })
	matching := func(name, route string) policy.Rule {
		return policy.Rule{Name: name, Match: []policy.Match{{Route: route}}, Limits: []policy.Limit{fixed(1e9, "1h")}}
	}
	p := policyOf("p", matching("exports", "/exports"), matching("misspelt", "/exprots"), matching("spent", "/spent"), matching("probe", "/healthz"))
	p.Spec.Exempt = []policy.Exemption{{PathPrefix: "/healthz"}}
	h.apply(p)
	at := func(path string) enforcer.Request {
		return enforcer.Request{Method: http.MethodGet, Path: path, Remote: "203.0.113.7:1"}
	}

	for range 2 * policy.UnmatchedAfter {
		h.Peek(t.Context(), at("/exprots")) // asks only
		h.Decide(t.Context(), at("/healthz"))
	}
	if got := h.lastReport().Matched; got != "????" {
		t.Errorf("after probes and peeks: %s, want ????", got)
	}
	h.send(policy.UnmatchedAfter-1, at("/exports"))
	if got := h.lastReport().Matched; got != "m???" {
		t.Errorf("a request before the last: %s, want m???", got)
	}
	h.send(1, at("/other")) // no rule applies, and it counts
	if got := h.lastReport().Matched; got != "mnnn" {
		t.Errorf("after enough requests: %s, want mnnn", got)
	}
	for i, want := range []uint64{0, policy.UnmatchedAfter, policy.UnmatchedAfter, policy.UnmatchedAfter} {
		if got := h.Figures().Rules[i].Unmatched; got != want {
			t.Errorf("rule %d: %d requests did not match, want %d", i, got, want)
		}
	}
	h.send(1, at("/spent"))
	if got := h.lastReport().Matched; got != "mnmn" {
		t.Errorf("after a request that matches: %s, want mnmn", got)
	}

	// An edit of a limit, or of another rule, forgets nothing; one of the match begins anew.
	p.Spec.Rules[1].Limits = []policy.Limit{fixed(7, "1h")}
	p.Spec.Rules[2].Match = []policy.Match{{Route: "/spend"}}
	p.Spec.Rules = append(p.Spec.Rules, matching("new", "/new"))
	h.apply(p)
	if got := h.lastReport().Matched; got != "mn?n?" {
		t.Errorf("after the edit: %s, want mn?n?", got)
	}
	// Rules that went take their requests along.
	h.apply(policyOf("p", p.Spec.Rules[1:]...))
	h.send(policy.UnmatchedAfter, at("/spend"))
	if got := h.lastReport().Matched; got != "nmnn" {
		t.Errorf("after a rule went: %s, want nmnn", got)
	}
}

func TestForwardedAddressesThatAreIgnoredAreReported(t *testing.T) {
	h := newHarness(t, func(o *enforcer.Options) { o.InProcess = true })
	h.apply(policyOf("p", policy.Rule{Name: "r", Key: []policy.KeyPart{{ClientIP: &policy.ClientIP{}}}, Limits: []policy.Limit{fixed(1e9, "1h")}}))
	request := enforcer.Request{Remote: "10.0.0.7:1", Header: http.Header{"X-Forwarded-For": {"203.0.113.7"}}}
	h.send(policy.ForwardedIgnoredAfter-1, request)
	if h.lastReport().ForwardedIgnored {
		t.Error("told of a few requests")
	}
	h.send(1, request)
	if !h.lastReport().ForwardedIgnored {
		t.Error("not told of many requests")
	}
}
