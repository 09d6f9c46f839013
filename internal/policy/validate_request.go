package policy

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// The patterns of what requests are compared with; the schema has the same, byte for byte.
const (
	methodPattern      = `^[A-Z][A-Z0-9_-]*$`
	headerNamePattern  = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$" // a token of RFC 9110
	headerValuePattern = `^[^[:cntrl:] ]([^[:cntrl:]]*[^[:cntrl:] ])?$`

	dotSegmentPattern = `(?i)/([.]|%2e){1,2}(/|$)`
	pathCharsPattern  = `^([^?#% [:cntrl:]]|%[0-9A-Fa-f]{2})*$`
	wildcardsPattern  = `^[^/{}]*(/([^/{}]*|[{][A-Za-z_][A-Za-z0-9_]*[}]))*(/[{]([A-Za-z_][A-Za-z0-9_]*[.]{3}|[$])[}])?$`
	bracesPattern     = `[{}]`
)

var (
	methodRegexp      = regexp.MustCompile(methodPattern)
	headerNameRegexp  = regexp.MustCompile(headerNamePattern)
	headerValueRegexp = regexp.MustCompile(headerValuePattern)

	dotSegmentRegexp = regexp.MustCompile(dotSegmentPattern)
	pathCharsRegexp  = regexp.MustCompile(pathCharsPattern)
	wildcardsRegexp  = regexp.MustCompile(wildcardsPattern)
	bracesRegexp     = regexp.MustCompile(bracesPattern)
)

func (f *faults) exempt(path string, exempt []Exemption) {
	f.items(path, len(exempt), exempt == nil, optional, maxExempt)
	for i, e := range exempt {
		f.request(index(path, i), Match{Methods: e.Methods, Route: e.Route, PathPrefix: e.PathPrefix})
	}
}

func (f *faults) match(path string, match []Match) {
	f.items(path, len(match), match == nil, optional, maxMatch)
	for i, m := range match {
		f.request(index(path, i), m)
	}
}

// request checks one description of requests. An empty one would hold for every request, where a misspelled field was
// dropped on the way.
func (f *faults) request(path string, m Match) {
	if m.Methods == nil && m.Route == "" && m.PathPrefix == "" && m.Headers == nil {
		f.add(path, "should have at least 1 properties")
	}
	f.methods(path+".methods", m.Methods)
	if m.Route != "" {
		f.route(path+".route", m.Route)
	}
	if m.PathPrefix != "" {
		f.pathPrefix(path+".pathPrefix", m.PathPrefix)
	}
	f.headers(path+".headers", m.Headers)
}

func (f *faults) methods(path string, methods []string) {
	f.items(path, len(methods), methods == nil, optional, maxMethods)
	for i, m := range methods {
		f.text(index(path, i), m, methodRegexp, methodPattern, maxMethod)
	}
	f.unique(path, methods)
}

func (f *faults) route(path, route string) {
	f.path(path, route, "must start with /: a path template without method and host")
	if !wildcardsRegexp.MatchString(route) {
		f.add(path, "a wildcard is a whole segment: {name}, or as the last one {name...} or {$}")
	}
}

func (f *faults) pathPrefix(path, prefix string) {
	f.path(path, prefix, "must start with /")
	if bracesRegexp.MatchString(prefix) {
		f.add(path, "must not contain { or }: wildcards are for route")
	}
}

// path checks what routes and prefixes have in common. A path that no router serves would silently match nothing.
func (f *faults) path(path, value, start string) {
	if utf8.RuneCountInString(value) > maxPath {
		f.add(path, "Too long: may not be more than %d bytes", maxPath)
		return
	}
	if !strings.HasPrefix(value, "/") {
		f.add(path, "%s", start)
	}
	if strings.Contains(value, "//") {
		f.add(path, "must not contain //")
	}
	if dotSegmentRegexp.MatchString(value) {
		f.add(path, "must not contain the segments . or ..")
	}
	if !pathCharsRegexp.MatchString(value) {
		f.add(path, "must not contain blanks, control characters, ? or #, and %% only before two hexadecimal digits")
	}
}

func (f *faults) headers(path string, headers []HeaderMatch) {
	f.items(path, len(headers), headers == nil, optional, maxHeaders)
	names := make(map[string]bool, len(headers))
	for i, h := range headers {
		f.name(index(path, i)+".name", h.Name, headerNameRegexp, headerNamePattern, maxHeaderName)
		f.name(index(path, i)+".value", h.Value, headerValueRegexp, headerValuePattern, maxHeaderValue)
		names[strings.ToLower(h.Name)] = true
	}
	if len(names) < len(headers) {
		f.add(path, "names of headers must differ, and upper and lower case are the same")
	}
}

func (f *faults) key(path string, key []KeyPart) {
	f.items(path, len(key), key == nil, optional, maxKey)
	for i, part := range key {
		at := index(path, i)
		if fieldsOf(part) != 1 {
			f.add(at, "exactly one of the fields in [header attribute clientIP request firstOf] must be set")
		}
		f.keyPart(at, part)
		f.items(at+".firstOf", len(part.FirstOf), part.FirstOf == nil, optional, maxFirstOf)
		for j, first := range part.FirstOf {
			at := index(at+".firstOf", j)
			if fieldsOf(first) != 1 || first.FirstOf != nil {
				f.add(at, "exactly one of the fields in [header attribute clientIP request] must be set")
			}
			f.keyPart(at, first)
		}
	}
}

func fieldsOf(p KeyPart) int {
	n := 0
	for _, set := range []bool{p.Header != "", p.Attribute != "", p.ClientIP != nil, p.Request != "", p.FirstOf != nil} {
		if set {
			n++
		}
	}
	return n
}

func (f *faults) keyPart(path string, p KeyPart) {
	if p.Header != "" {
		f.text(path+".header", p.Header, headerNameRegexp, headerNamePattern, maxHeaderName)
	}
	if p.Attribute != "" {
		f.text(path+".attribute", p.Attribute, attributeRegexp, attributePattern, maxAttribute)
	}
	if p.ClientIP != nil && p.ClientIP.IPv4PrefixLength != nil {
		f.number(path+".clientIP.ipv4PrefixLength", int64(*p.ClientIP.IPv4PrefixLength), 1, 32)
	}
	if p.ClientIP != nil && p.ClientIP.IPv6PrefixLength != nil {
		f.number(path+".clientIP.ipv6PrefixLength", int64(*p.ClientIP.IPv6PrefixLength), 1, 128)
	}
	oneOf(f, path+".request", p.Request, optional, RequestKeyRoute, RequestKeyMethod)
}
