package policy

import (
	"net/url"
	"strings"
)

// NoRoute is the Route of a request that the router is known to serve by no template: one that it refuses or
// redirects. No rule with a route holds for it, whatever its path looks like.
const NoRoute = "-"

// template is a compiled route template in ServeMux path form. Parameter names do not matter: /users/{id} and
// /users/{name} are the same template.
type template struct {
	segments []segment
	tail     tail
	// text is the template's path as it was written: most routers give it back like that.
	text string
	// canonical is the template with the names of its parameters removed: /users/{}/files/{...}
	canonical string
}

type segment struct {
	literal  string // decoded; empty for a parameter
	wildcard bool
}

// tail says how a template ends.
type tail uint8

const (
	tailNone  tail = iota // after its last segment
	tailSlash             // with a slash: /posts/{$}
	tailRest              // with whatever follows: /static/, /static/{path...}
)

// parseTemplate compiles a template. A method and a host in front, as in "GET example.com/users/{id}", are dropped.
func parseTemplate(s string) template {
	s = stripMethodAndHost(s)
	t := template{text: s}
	for rest := s; rest != ""; {
		var part string
		part, rest = cutSegment(rest)
		switch kind := kindOf(part, rest == ""); kind {
		case partSlash:
			t.tail = tailSlash
		case partRest:
			t.tail = tailRest
		case partParameter:
			t.segments = append(t.segments, segment{wildcard: true})
		case partLiteral:
			t.segments = append(t.segments, segment{literal: decodeSegment(part)})
		}
	}
	t.canonical = string(appendCanonical(nil, s))
	return t
}

// equals says whether route, as the router gave it, is this template.
func (t *template) equals(route string) bool {
	rest := stripMethodAndHost(route)
	if rest == t.text {
		return true
	}
	end := tailNone
	i := 0
	for rest != "" {
		var part string
		part, rest = cutSegment(rest)
		switch kindOf(part, rest == "") {
		case partSlash:
			end = tailSlash
			continue
		case partRest:
			end = tailRest
			continue
		case partParameter:
			if i >= len(t.segments) || !t.segments[i].wildcard {
				return false
			}
		case partLiteral:
			if i >= len(t.segments) || t.segments[i].wildcard || !sameSegment(part, t.segments[i].literal) {
				return false
			}
		}
		i++
	}
	return i == len(t.segments) && end == t.tail
}

// serves says whether the template matches a clean path. Unless exact, a slash at the end of the path does not
// matter, as routers differ in what they do with it.
func (t *template) serves(path string, exact bool) bool {
	if path == "" {
		return false
	}
	rest := path
	for i := range t.segments {
		if rest == "" {
			return false
		}
		var part string
		part, rest = cutSegment(rest)
		if t.segments[i].wildcard {
			if part == "" {
				return false
			}
		} else if !sameSegment(part, t.segments[i].literal) {
			return false
		}
	}
	switch {
	case t.tail == tailRest:
		return rest != "" || !exact
	case !exact:
		return rest == "" || rest == "/"
	case t.tail == tailSlash:
		return rest == "/"
	}
	return rest == ""
}

// Serves says whether a router that takes paths as they are sent serves path by the template.
func Serves(route, path string) bool {
	t := parseTemplate(route)
	return isClean(path) && t.serves(path, true)
}

// prefix is a compiled pathPrefix.
type prefix struct{ segments []segment }

func parsePrefix(s string) prefix {
	var p prefix
	for rest := s; rest != ""; {
		var part string
		part, rest = cutSegment(rest)
		if part != "" {
			p.segments = append(p.segments, segment{literal: decodeSegment(part)})
		}
	}
	return p
}

// holds says whether a clean path starts with the segments of the prefix.
func (p *prefix) holds(path string) bool {
	rest := path
	for i := range p.segments {
		if rest == "" {
			return false
		}
		var part string
		part, rest = cutSegment(rest)
		if !sameSegment(part, p.segments[i].literal) {
			return false
		}
	}
	return path != ""
}

type partKind uint8

const (
	partLiteral partKind = iota
	partParameter
	partSlash // {$}
	partRest  // {name...}, * or nothing, at the end
)

func kindOf(part string, last bool) partKind {
	switch {
	case last && (part == "" || part == "*"):
		return partRest
	case part == "{$}":
		return partSlash
	case len(part) < 2 || part[0] != '{' || part[len(part)-1] != '}':
		return partLiteral
	case last && strings.HasSuffix(part, "...}"):
		return partRest
	}
	return partParameter
}

// finalRoute says whether a route that the router gave names one route. One that ends with a subtree may be all that
// an outer router knows, while a router behind it has the last word.
func finalRoute(route string) bool {
	if route == NoRoute {
		return true
	}
	last := route[strings.LastIndexByte(route, '/')+1:]
	return kindOf(last, true) != partRest
}

// appendCanonical appends a route with the names of its parameters removed.
func appendCanonical(b []byte, route string) []byte {
	if route == NoRoute {
		return b
	}
	for rest := stripMethodAndHost(route); rest != ""; {
		var part string
		part, rest = cutSegment(rest)
		b = append(b, '/')
		switch kindOf(part, rest == "") {
		case partSlash:
			b = append(b, "{$}"...)
		case partRest:
			b = append(b, "{...}"...)
		case partParameter:
			b = append(b, "{}"...)
		case partLiteral:
			b = append(b, part...)
		}
	}
	return b
}

// stripMethodAndHost leaves the path of a ServeMux pattern.
func stripMethodAndHost(pattern string) string {
	if strings.HasPrefix(pattern, "/") {
		return pattern
	}
	i := strings.IndexByte(pattern, '/')
	if i < 0 {
		return ""
	}
	return pattern[i:]
}

// cutSegment returns the first segment of a path, which starts with a slash, and what follows it. The rest is empty
// or starts with a slash; "/a/" is the segments "a" and "".
func cutSegment(path string) (first, rest string) {
	path = path[1:]
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// sameSegment compares an escaped segment with a decoded one. An escaped slash stays inside its segment.
func sameSegment(escaped, decoded string) bool {
	if strings.IndexByte(escaped, '%') < 0 {
		return escaped == decoded
	}
	return decodeSegment(escaped) == decoded
}

func decodeSegment(s string) string {
	decoded, err := url.PathUnescape(s)
	if err != nil {
		return s // not an escape: the bytes as they stand
	}
	return decoded
}
