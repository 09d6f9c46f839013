package simulate

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/enforcer"
)

// record is one line of a log. It is used again for the next one.
type record struct {
	time    int64 // µs since 1970
	request enforcer.Request
	lines   map[string][]string // of headers, one line each, to be used again
}

// Target is what a decision reads of a line: Time, Method, Path, Line, Remote, Host, Route, or the name of a header or
// of an attribute behind HeaderTarget or AttributeTarget.
type Target string

// The targets.
const (
	Time   Target = "time"
	Method Target = "method"
	Path   Target = "path"
	Line   Target = "request" // the request line: GET /items HTTP/1.1
	Remote Target = "remote"
	Host   Target = "host"
	Route  Target = "route"

	HeaderTarget    = "header."
	AttributeTarget = "attribute."
)

// usual are the names under which servers log, the better ones first. Those of combined are ours for its parts.
var usual = map[Target][]string{
	Time: {
		"time", "timestamp", "@timestamp", "ts", "time_iso8601", "time_local", "start_time", "StartUTC", "datetime", "msec",
	},
	Method: {"method", "request_method", "RequestMethod", "request.method", "http.request.method", "http_method", "verb"},
	Path: {
		"path", "uri", "request_uri", "RequestPath", "request.uri", "url.original", "url", "x-envoy-origin-path", "request_path",
	},
	Line: {"request", "request_line"},
	Remote: {
		"remote", "remote_addr", "remote_ip", "client_ip", "ClientHost", "ClientAddr", "request.remote_ip", "client.ip",
		"downstream_remote_address", "remote_address", "ip", "client",
	},
	Host:  {"host", "http_host", "RequestHost", "request.host", "authority", ":authority"},
	Route: {"route", "http.route", "route_template"},
}

// names returns the names under which a target may stand in a log.
func (t Target) names() []string {
	if name, ok := strings.CutPrefix(string(t), HeaderTarget); ok {
		lower := strings.ToLower(name)
		snake := strings.ReplaceAll(lower, "-", "_")
		return []string{
			"header." + name, "headers." + name, "request.headers." + name, "request_" + name, name, "headers." + lower, lower,
			"http_" + snake, snake,
		}
	}
	if name, ok := strings.CutPrefix(string(t), AttributeTarget); ok {
		return []string{string(t), "attributes." + name, name}
	}
	return usual[t]
}

// ParseTarget reads the name of a target as flags write it.
func ParseTarget(s string) (Target, error) {
	t := Target(s)
	if name, ok := strings.CutPrefix(s, HeaderTarget); ok && name != "" {
		return HeaderTarget + Target(textproto.CanonicalMIMEHeaderKey(name)), nil
	}
	if name, ok := strings.CutPrefix(s, AttributeTarget); ok && name != "" {
		return t, nil
	}
	if _, ok := usual[t]; ok {
		return t, nil
	}
	return "", fmt.Errorf("%q: want time, method, path, request, remote, host, route, header.NAME or attribute.NAME", s)
}

// slots says which value of a line goes where.
type slots struct {
	targets []Target
	seen    []bool // of each target that is a header or an attribute: some line had it
	// sources are the names of a log's values that are read: the slot and how good the name is, 0 the best.
	sources map[string]source
	// parents are what stands before a dot in the names of sources.
	parents map[string]bool
	// lengths has a bit for the length of each of these names, by its first byte: most names of a log are none of them.
	lengths [256]uint64
}

func (s *slots) find(name string) (source, bool) {
	if !s.maybe(name) {
		return source{}, false
	}
	from, ok := s.sources[name]
	return from, ok
}

func (s *slots) maybe(name string) bool {
	return name != "" && s.lengths[name[0]]>>(len(name)&63)&1 == 1
}

func (s *slots) note(name string) { s.lengths[name[0]] |= 1 << (len(name) & 63) }

type source struct{ slot, rank int }

// newSlots returns the slots for what the rules read, with the names that the user gave for some of them.
func newSlots(reads []Target, named map[Target]string) *slots {
	s := &slots{sources: make(map[string]source), parents: make(map[string]bool)}
	for _, t := range append([]Target{Time, Method, Path, Line, Remote, Host, Route}, reads...) {
		if slices.Contains(s.targets, t) {
			continue
		}
		slot := len(s.targets)
		s.targets, s.seen = append(s.targets, t), append(s.seen, false)
		names := t.names()
		if name, ok := named[t]; ok {
			names = []string{name}
		}
		for rank, name := range names {
			if _, ok := s.sources[name]; ok {
				if _, wanted := named[t]; !wanted {
					continue // "host" is better known as the host than as an attribute of that name
				}
			}
			s.sources[name] = source{slot, rank}
			s.note(name)
			for i := 1; i < len(name); i++ {
				if name[i] == '.' {
					s.parents[name[:i]] = true
					s.note(name[:i])
				}
			}
		}
	}
	return s
}

// values are what one line holds for each slot.
type values struct {
	*slots
	text  []string
	ranks []int
}

const absent = 1 << 30

func newValues(s *slots) *values {
	return &values{slots: s, text: make([]string, len(s.targets)), ranks: make([]int, len(s.targets))}
}

func (v *values) reset() {
	clear(v.text)
	for i := range v.ranks {
		v.ranks[i] = absent
	}
}

// set takes the value of a name, if it is read and no better name had one.
func (v *values) set(name, value string) {
	if from, ok := v.find(name); ok {
		v.put(from, value)
	}
}

func (v *values) put(from source, value string) {
	if from.rank < v.ranks[from.slot] && value != "" && value != "-" {
		v.text[from.slot], v.ranks[from.slot] = value, from.rank
	}
}

var (
	errNoTime    = errors.New("there is no time")
	errNoRequest = errors.New("there is no request: want a method and a path, or a request line such as GET /items HTTP/1.1")
)

// fill makes the record of a line.
func (v *values) fill(clock *times, r *record) error {
	const timeSlot, methodSlot, pathSlot, lineSlot, remoteSlot, hostSlot, routeSlot, others = 0, 1, 2, 3, 4, 5, 6, 7
	if v.text[timeSlot] == "" {
		return errNoTime
	}
	var err error
	if r.time, err = clock.parse(v.text[timeSlot]); err != nil {
		return err
	}
	method, path := v.text[methodSlot], v.text[pathSlot]
	if method == "" || path == "" {
		var ok bool
		if method, path, ok = cutRequestLine(v.text[lineSlot]); !ok {
			return errNoRequest
		}
	}
	r.request.Method, r.request.Path = method, pathOf(path)
	if r.request.Path == "" {
		return errNoRequest
	}
	r.request.Remote, r.request.Host, r.request.Route = v.text[remoteSlot], v.text[hostSlot], v.text[routeSlot]
	for i := others; i < len(v.targets); i++ {
		v.seen[i] = v.seen[i] || v.text[i] != ""
		v.fillNamed(r, v.targets[i], v.text[i])
	}
	return nil
}

func (v *values) fillNamed(r *record, t Target, value string) {
	if name, ok := strings.CutPrefix(string(t), AttributeTarget); ok {
		if value == "" {
			delete(r.request.Attributes, name)
			return
		}
		r.request.Attributes[name] = value
		return
	}
	name := string(t[len(HeaderTarget):])
	if value == "" {
		delete(r.request.Header, name)
		return
	}
	r.lines[name][0] = value
	r.request.Header[name] = r.lines[name]
}

// unseen lists the headers and attributes that no line had.
func (s *slots) unseen() []Target {
	var all []Target
	for i, t := range s.targets {
		if !s.seen[i] && strings.ContainsRune(string(t), '.') {
			all = append(all, t)
		}
	}
	return all
}

func newRecord(s *slots) *record {
	r := &record{lines: make(map[string][]string)}
	r.request.Header = make(map[string][]string)
	r.request.Attributes = make(map[string]string)
	for _, t := range s.targets {
		if name, ok := strings.CutPrefix(string(t), HeaderTarget); ok {
			r.lines[name] = make([]string, 1)
		}
	}
	return r
}

// cutRequestLine reads "GET /items HTTP/1.1"; the protocol may be missing.
func cutRequestLine(s string) (method, path string, ok bool) {
	method, path, ok = strings.Cut(s, " ")
	if i := strings.LastIndexByte(path, ' '); i >= 0 {
		path = path[:i]
	}
	return method, path, ok && isMethod(method)
}

func isMethod(s string) bool {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return s != ""
}

// pathOf drops the query, and scheme and host of a request to a proxy.
func pathOf(target string) string {
	if i := strings.IndexByte(target, '?'); i >= 0 {
		target = target[:i]
	}
	if target == "" || target[0] == '/' || target == "*" {
		return target
	}
	if i := strings.Index(target, "://"); i >= 0 {
		rest := target[i+3:]
		if slash := strings.IndexByte(rest, '/'); slash >= 0 {
			return rest[slash:]
		}
		return "/"
	}
	return target
}
