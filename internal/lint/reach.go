package lint

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/policy"
)

// unreached finds rules, and alternatives of them, that come behind an enforced rule which matches all that they match.
func unreached(warn func(string, string, ...any), spec policy.Spec) {
	for i, r := range spec.Rules {
		missed := 0
		for j, m := range r.Match {
			before := takenBefore(spec, i, m)
			if before == "" {
				continue
			}
			missed++
			if len(r.Match) > 1 {
				warn(fmt.Sprintf("rules[%d].match[%d]", i, j), "is never reached: rule %s before it matches all that it matches", before)
			}
		}
		if missed == 1 && len(r.Match) == 1 {
			warn(fmt.Sprintf("rules[%d]", i), "is never reached: rule %s before it matches all that it matches", takenBefore(spec, i, r.Match[0]))
		}
	}
}

// takenBefore returns the name of a rule before rule i that ends the search for every request which m matches.
func takenBefore(spec policy.Spec, i int, m policy.Match) string {
	for _, r := range spec.Rules[:i] {
		if mode := r.Mode; mode == policy.ModeShadow || mode == "" && spec.Mode == policy.ModeShadow || r.WhenKeyMissing == policy.WhenKeyMissingSkip {
			continue // passed over
		}
		if slices.ContainsFunc(r.Match, func(other policy.Match) bool { return covers(other, m) }) {
			return r.Name
		}
	}
	return ""
}

// escapedSlash says that a prefix has a slash as data in a segment. By the other reading of a path it is a plain one, so
// that the prefix exempts nothing.
func escapedSlash(prefix string) bool { return strings.Contains(strings.ToUpper(prefix), "%2F") }

// exempted says whether every request that the rule matches is exempt, if its path has one reading.
func exempted(exempt []policy.Exemption, r policy.Rule) bool {
	if r.Match == nil {
		return false
	}
	for _, m := range r.Match {
		if !slices.ContainsFunc(exempt, func(e policy.Exemption) bool {
			return !escapedSlash(e.PathPrefix) && covers(policy.Match{Methods: e.Methods, Route: e.Route, PathPrefix: e.PathPrefix}, m)
		}) {
			return false
		}
	}
	return true
}

// covers says whether wide surely matches all that narrow matches. It may miss that it does. What holds by one reading of
// a path holds by the same one of the other; only behind a router whose template says more than the path may narrow match
// a respelled path that wide does not.
func covers(wide, narrow policy.Match) bool {
	if wide.Methods != nil {
		if narrow.Methods == nil {
			return false
		}
		for _, method := range narrow.Methods {
			got := slices.Contains(wide.Methods, method) || method == http.MethodHead && slices.Contains(wide.Methods, http.MethodGet)
			if !got {
				return false
			}
		}
	}
	if wide.Route != "" && !sameRoute(wide.Route, narrow.Route) {
		return false
	}
	if wide.PathPrefix != "" && !under(narrow.PathPrefix, wide.PathPrefix) && !routeUnder(narrow.Route, wide.PathPrefix) {
		return false
	}
	for _, h := range wide.Headers {
		if !slices.ContainsFunc(narrow.Headers, func(n policy.HeaderMatch) bool {
			return strings.EqualFold(n.Name, h.Name) && n.Value == h.Value
		}) {
			return false
		}
	}
	return true
}

// sameRoute compares templates, in which the names of parameters do not matter.
func sameRoute(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	return len(x) == len(y) && slices.EqualFunc(x, y, func(a, b string) bool {
		return a == b || parameter(a) && parameter(b) && strings.HasSuffix(a, "...}") == strings.HasSuffix(b, "...}")
	})
}

func parameter(segment string) bool { return strings.HasPrefix(segment, "{") && segment != "{$}" }

// under says whether a prefix stands below another, in whole segments.
func under(prefix, of string) bool {
	of = strings.TrimSuffix(of, "/")
	return prefix != "" && (prefix == of || strings.HasPrefix(prefix, of+"/"))
}

// routeUnder says whether all paths of a template start with a prefix.
func routeUnder(route, prefix string) bool {
	if route == "" {
		return false
	}
	fixed, _, _ := strings.Cut(route, "{")
	return under(fixed, prefix)
}
