package ratelimit

import (
	"net/http"
	"reflect"
	"regexp"
	"strings"

	"github.com/weir-dev/weir/internal/policy"
)

// NoRoute is the Route of a request that the router serves by no template: one that it refuses or redirects.
const NoRoute = policy.NoRoute

// MuxRoute returns the Route of a request that mux is going to serve: the pattern, or NoRoute where the mux redirects
// or refuses the request.
func MuxRoute(mux *http.ServeMux, r *http.Request) string {
	handler, pattern := mux.Handler(r)
	if pattern == "" {
		return NoRoute
	}
	// A mux redirects paths that are not clean or lack a slash at the end, and names the pattern that would serve the
	// other path. That handler does not serve this request.
	if reflect.TypeOf(handler) == redirect && !policy.Serves(pattern, r.URL.EscapedPath()) {
		return NoRoute
	}
	return pattern
}

var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusMovedPermanently))

// ColonRoute translates the template of a router that writes /users/:id and /files/*path (gin, echo, httprouter) to the
// form of Request.Route, /users/{id} and /files/{path...}. A segment that holds more than a parameter is a parameter as
// a whole: /files/:name.json is /files/{name}. A backslash before a colon makes it a plain one.
func ColonRoute(template string) string {
	if !strings.ContainsAny(template, `:*\`) {
		return template
	}
	return translate(template, cutPlain, func(segment string, last bool) string {
		name, wildcard := "", false
		for i := 0; i < len(segment) && name == "" && !wildcard; i++ {
			switch segment[i] {
			case '\\':
				i++
			case ':':
				name = word(segment[i+1:])
				wildcard = true
			case '*':
				if last {
					return "{" + or(word(segment[i+1:]), "rest") + "...}"
				}
			}
		}
		if wildcard {
			return "{" + or(name, "x") + "}"
		}
		return strings.ReplaceAll(segment, `\:`, ":")
	})
}

// BraceRoute translates the template of a router that writes /users/{id:[0-9]+} and /files/* (chi, gorilla/mux) to the
// form of Request.Route, /users/{id} and /files/{rest...}. A segment that holds more than a parameter is a parameter as
// a whole: /files/{name}.json is /files/{name}. It returns "" where there is no such form, because a parameter before
// the end takes several segments.
func BraceRoute(template string) string {
	if !strings.ContainsAny(template, ":*{") {
		return template
	}
	several := false
	route := translate(template, cutBraced, func(segment string, last bool) string {
		start := strings.IndexByte(segment, '{')
		if start < 0 {
			if last && strings.HasSuffix(segment, "*") {
				return "{rest...}"
			}
			return segment
		}
		inner := strings.TrimSuffix(segment[start+1:start+braced(segment[start:])], "}")
		name, pattern, _ := strings.Cut(inner, ":")
		name = or(word(name), "x")
		if !takesSlash(pattern) {
			return "{" + name + "}"
		}
		several = several || !last
		return "{" + name + "...}"
	})
	if several {
		return ""
	}
	return route
}

// translate writes a template anew, segment by segment.
func translate(template string, cut func(string) int, segment func(string, bool) string) string {
	var b strings.Builder
	for rest := template; rest != ""; {
		if rest[0] != '/' { // a template that begins without a slash
			rest = "/" + rest
		}
		end := 1 + cut(rest[1:])
		b.WriteByte('/')
		b.WriteString(segment(rest[1:end], end == len(rest)))
		rest = rest[end:]
	}
	return b.String()
}

func cutPlain(s string) int {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return i
	}
	return len(s)
}

// cutBraced ends a segment at the first slash that is in no braces.
func cutBraced(s string) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '/':
			return i
		case '{':
			i += braced(s[i:]) - 1
		}
	}
	return len(s)
}

// braced is the length of what a brace at the start of s encloses, with both braces.
func braced(s string) int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// takesSlash says whether the pattern of a parameter takes more than a segment.
func takesSlash(pattern string) bool {
	if pattern == "" {
		return false
	}
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	return err == nil && (re.MatchString("a/b") || re.MatchString("1/1") || re.MatchString("/"))
}

// word is the name at the start of s.
func word(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_', i > 0 && '0' <= c && c <= '9':
		default:
			return s[:i]
		}
	}
	return s
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
