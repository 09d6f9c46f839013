package policy_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

// The rules that FuzzMatch picks from, and the templates that the router may have given.
var (
	someMatches = []policy.Match{
		{PathPrefix: "/a"}, {PathPrefix: "/a/b"}, {PathPrefix: "/b"}, {PathPrefix: "/"}, {PathPrefix: "/a%2Fb"}, {PathPrefix: "/%61"},
		{Route: "/a"}, {Route: "/a/b"}, {Route: "/{x}"}, {Route: "/a/{x}"}, {Route: "/{x}/b"}, {Route: "/{x}/{y}"},
		{Route: "/a/"}, {Route: "/a/{rest...}"}, {Route: "/a/{$}"}, {Route: "/{$}"}, {Route: "/"}, {Route: "/a%2Fb"},
		{Route: "/a/{x}", PathPrefix: "/a/b"}, {Methods: []string{"POST"}}, {Methods: []string{"POST"}, PathPrefix: "/a"},
	}
	someRoutes = []string{"", "", "", "/", "/a/", "/a/b", "/{x}/{y}", policy.NoRoute}
)

// FuzzMatch compares the matcher with what design page 0009 says of paths, told in another way: a path is all that
// routers and handlers make of it, each of them a list of segments.
func FuzzMatch(f *testing.F) {
	for _, path := range []string{
		"/a/b", "/a%2Fb", "/b/..%2fa%2Fb", "/a/../b", "/%61//b/", "/a%252Fb", "/a/%2E%2e/b", "/a/%2F", "*", "", "/..", "/b%2F..",
	} {
		f.Add(path, []byte{0x00, 0x07, 0x46, 0x89, 0x12}, byte(0))
	}
	f.Fuzz(func(t *testing.T, path string, rules []byte, given byte) {
		if _, err := url.PathUnescape(path); err != nil || len(rules) < 2 || len(rules) > 16 {
			t.Skip("no path that a server takes, or no rule")
		}
		row, skipped := rowOf(rules)
		request := policy.Request{Method: "GET", Route: someRoutes[int(given)%len(someRoutes)], Path: path}
		got, exempt := names(row, request, skipped...)
		want, wantExempt := model(row, request, skipped)
		if diff := cmp.Diff(want, got); diff != "" || exempt != wantExempt {
			t.Errorf("%q by route %q, row %+v, skipping %v: exempt %t, want %t; rules (-want +got):\n%s",
				path, request.Route, row, skipped, exempt, wantExempt, diff)
		}
	})
}

// rowOf makes a row of bytes: five bits of each name a match, one says that the rule is a shadow, one that it is
// skipped, and one that it has the next match, too. The first byte is the policies' exemption, if it names one.
func rowOf(rules []byte) (row policy.Row, skipped []string) {
	row.Policies = []policy.RowPolicy{{Name: "all", Evaluation: policy.EvaluationAll}, {Name: "first", Evaluation: policy.EvaluationFirstMatch}}
	if len(rules) > 0 {
		if e := int(rules[0]); e < len(someMatches) {
			m := someMatches[e]
			for i := range row.Policies {
				row.Policies[i].Exempt = []policy.Exemption{{Methods: m.Methods, Route: m.Route, PathPrefix: m.PathPrefix}}
			}
		}
		rules = rules[1:]
	}
	for _, p := range row.Policies {
		for i, b := range rules {
			r := policy.RowRule{Policy: p.Name, Name: p.Name + string(rune('a'+i)), Mode: policy.ModeEnforce}
			which := int(b & 31)
			if which < len(someMatches) {
				r.Match = []policy.Match{someMatches[which]}
				if b&128 != 0 {
					r.Match = append(r.Match, someMatches[(which+1)%len(someMatches)])
				}
			}
			if b&32 != 0 {
				r.Mode = policy.ModeShadow
			}
			if b&64 != 0 {
				skipped = append(skipped, r.Name)
			}
			row.Rules = append(row.Rules, r)
		}
	}
	return row, skipped
}

// model decides for each reading of the path by itself. What applies is what does by any; exempt is what is by all.
func model(row policy.Row, r policy.Request, skipped []string) (rules []string, exempt bool) {
	paths, clean := readingsOf(r)
	for _, p := range row.Policies {
		free := len(p.Exempt) > 0
		for _, e := range p.Exempt {
			m := policy.Match{Methods: e.Methods, Route: e.Route, PathPrefix: e.PathPrefix}
			for _, path := range paths {
				free = free && modelMatches(m, r, path, true) && (clean || m.PathPrefix == "" && (m.Route == "" || routed(m.Route, r)))
			}
		}
		if free {
			exempt = true
			continue
		}
		applies := make(map[string]bool)
		for _, path := range paths {
			for _, rule := range row.Rules {
				if rule.Policy != p.Name || rule.Match != nil &&
					!slices.ContainsFunc(rule.Match, func(m policy.Match) bool { return modelMatches(m, r, path, false) }) {
					continue
				}
				applies[rule.Name] = true
				if p.Evaluation == policy.EvaluationFirstMatch && rule.Mode == policy.ModeEnforce && !slices.Contains(skipped, rule.Name) {
					break
				}
			}
		}
		for _, rule := range row.Rules {
			if rule.Policy == p.Name && applies[rule.Name] {
				rules = append(rules, rule.Policy+"/"+rule.Name)
			}
		}
	}
	return rules, exempt
}

// readingsOf returns the path split first and decoded then, and decoded first and split then, each with and without dot
// segments and doubled slashes. What is no path has one reading without segments.
func readingsOf(r policy.Request) (all [][]string, clean bool) {
	sent := r.Path
	if sent == "" {
		if sent = r.Route; sent == policy.NoRoute {
			sent = ""
		}
	}
	if sent == "" {
		sent = "/"
	}
	if sent[0] != '/' {
		return [][]string{nil}, true
	}
	split := strings.Split(sent[1:], "/")
	for i := range split {
		split[i], _ = url.PathUnescape(split[i])
	}
	decoded, _ := url.PathUnescape(sent)
	clean = true
	for _, path := range [][]string{split, strings.Split(decoded[1:], "/")} {
		cleaned := cleanSegments(path)
		clean = clean && slices.Equal(cleaned, path)
		all = append(all, path, cleaned)
	}
	return all, clean
}

func cleanSegments(path []string) (kept []string) {
	for _, s := range path {
		switch {
		case s == "..":
			kept = kept[:max(len(kept)-1, 0)]
		case s != "" && s != ".":
			kept = append(kept, s)
		}
	}
	if last := path[len(path)-1]; len(kept) == 0 || last == "" || last == "." || last == ".." {
		kept = append(kept, "")
	}
	return kept
}

func modelMatches(m policy.Match, r policy.Request, path []string, exact bool) bool {
	if m.Methods != nil && !slices.Contains(m.Methods, r.Method) || m.PathPrefix != "" && !modelPrefix(m.PathPrefix, path) {
		return false
	}
	subtree := r.Route == "" || strings.HasSuffix(r.Route, "/") // what an outer router may know is not the last word
	return m.Route == "" || routed(m.Route, r) ||
		subtree && (r.Route == "" || r.Path != "") && modelTemplate(m.Route, path, exact)
}

// routed says whether the router gave this template.
func routed(route string, r policy.Request) bool {
	return route == r.Route || route == "/a/{rest...}" && r.Route == "/a/"
}

func modelPrefix(prefix string, path []string) bool {
	want := strings.Split(strings.Trim(prefix, "/"), "/")
	for i := range want {
		want[i], _ = url.PathUnescape(want[i])
	}
	return prefix == "/" && path != nil || len(want) <= len(path) && slices.Equal(want, path[:len(want)])
}

func modelTemplate(route string, path []string, exact bool) bool {
	if path == nil {
		return false
	}
	want := strings.Split(route[1:], "/")
	end := want[len(want)-1]
	open := end == "" || strings.HasSuffix(end, "...}")
	if open || end == "{$}" {
		want = want[:len(want)-1]
	}
	if len(path) < len(want) {
		return false
	}
	for i, s := range want {
		literal, _ := url.PathUnescape(s)
		if s[0] == '{' && path[i] == "" || s[0] != '{' && literal != path[i] {
			return false
		}
	}
	rest := path[len(want):]
	slash := len(rest) == 1 && rest[0] == ""
	switch {
	case open:
		return len(rest) > 0 || !exact
	case !exact:
		return len(rest) == 0 || slash
	case end == "{$}":
		return slash
	}
	return len(rest) == 0
}
