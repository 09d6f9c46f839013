package policy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Request is what a decision reads of a request: matching reads all but Remote and Attributes, which keys read.
type Request struct {
	Method string
	// Host is where a rule finds the header Host, which Go keeps out of Header.
	Host string
	// Route is the template that the router matched, in ServeMux form; a method and a host in front are ignored.
	// Empty means that it is not known: then rules compare their templates with Path. NoRoute means that the router
	// has none for this request.
	Route string
	// Path is the escaped path as it was sent, "/users/a%2Fb". Empty means that only the Route is known. A rule applies
	// if it does by any reading of the path: see docs/design/0009-readings-of-a-path.md.
	Path string
	// Header is keyed by canonical names, as http.Header is.
	Header http.Header
	// Remote is the peer's address, with or without a port.
	Remote string
	// Attributes are what the application knows of the request.
	Attributes map[string]string
}

// Matcher finds the rules of a row that apply to a request. It does not change, and any number of goroutines may use
// it at once.
type Matcher struct {
	policies []policyMatcher
	rules    []ruleMatcher
}

type policyMatcher struct {
	firstMatch bool
	exempt     []matcher
	end        int // of its rules; they start where the policy before ends
}

type ruleMatcher struct {
	enforced bool
	any      bool // no match: every request
	match    []matcher
}

// matcher is a compiled Match or Exemption: all that is set must hold.
type matcher struct {
	methods []string
	route   *template
	prefix  *prefix
	headers []HeaderMatch
}

// NewMatcher compiles the rules of a row; Walk.Next names them by their index in it.
func NewMatcher(row Row) *Matcher {
	m := &Matcher{rules: make([]ruleMatcher, 0, len(row.Rules))}
	policies := make(map[string]RowPolicy, len(row.Policies))
	for _, p := range row.Policies {
		policies[p.Name] = p
	}
	for i, rule := range row.Rules {
		if i == 0 || rule.Policy != row.Rules[i-1].Policy {
			p := policies[rule.Policy]
			compiled := policyMatcher{firstMatch: p.Evaluation == EvaluationFirstMatch}
			for _, e := range p.Exempt {
				compiled.exempt = append(compiled.exempt, compileMatch(Match{
					Methods: e.Methods, Route: e.Route, PathPrefix: e.PathPrefix,
				}))
			}
			m.policies = append(m.policies, compiled)
		}
		r := ruleMatcher{enforced: rule.Mode != ModeShadow, any: len(rule.Match) == 0}
		for _, alternative := range rule.Match {
			r.match = append(r.match, compileMatch(alternative))
		}
		m.rules = append(m.rules, r)
		m.policies[len(m.policies)-1].end = i + 1
	}
	return m
}

func compileMatch(match Match) matcher {
	m := matcher{methods: slices.Clone(match.Methods)}
	if match.Route != "" {
		t := parseTemplate(match.Route)
		m.route = &t
	}
	if match.PathPrefix != "" {
		p := parsePrefix(match.PathPrefix)
		m.prefix = &p
	}
	for _, h := range match.Headers {
		m.headers = append(m.headers, HeaderMatch{Name: textproto.CanonicalMIMEHeaderKey(h.Name), Value: h.Value})
	}
	return m
}

// Walk is one pass over the rules that apply to one request, policy by policy and in their order. It is a value on
// its caller's stack, so that a decision allocates nothing for it.
type Walk struct {
	m       *Matcher
	request *Request
	paths   paths // none until they are asked for
	final   bool  // the route is known, and no router behind has another word

	// The last route that was known, here or in the walk before, and whether it was a final one.
	route      string
	routeFinal bool

	policy  int
	rule    int // the next to look at
	matched *template
	exempt  bool
	// open are the readings of the path for which the policy still looks for rules, before those for which it did
	// when Next returned the last one.
	open, before readings
}

// Walk starts a pass.
func (m *Matcher) Walk(r *Request) (w Walk) {
	m.Start(&w, r)
	return w
}

// Start is Walk in memory that was used before.
func (m *Matcher) Start(w *Walk, r *Request) {
	w.m, w.request = m, r
	w.paths.n = 0
	if r.Route != w.route {
		w.route, w.routeFinal = r.Route, r.Route != "" && finalRoute(r.Route)
	}
	w.final = w.routeFinal || r.Path == "" && r.Route != ""
	w.policy, w.rule, w.matched, w.exempt = 0, 0, nil, false
	w.enter()
}

// readPath returns the readings of the path.
func (w *Walk) readPath() *paths {
	if w.paths.n == 0 {
		sent := w.request.Path
		if sent == "" {
			sent = stripMethodAndHost(w.request.Route)
		}
		w.paths.read(sent)
	}
	return &w.paths
}

// Next returns the index of the next rule that applies, or false when there is none. An enforced rule under FirstMatch
// is the last of its policy, unless Pass is called before Next. Where the path has several readings, it is the last for
// those by which it applies: whichever of them the router takes, the rule that this reading comes to first is among
// those that are returned.
func (w *Walk) Next() (rule int, ok bool) {
	for w.policy < len(w.m.policies) {
		p := &w.m.policies[w.policy]
		for w.rule < p.end {
			i := w.rule
			w.rule++
			held := w.applies(&w.m.rules[i])
			if held == 0 {
				continue
			}
			w.before = w.open
			if p.firstMatch && w.m.rules[i].enforced {
				w.open &^= held
				if w.closed(w.open) {
					w.leave()
				}
			}
			return i, true
		}
		w.leave()
	}
	return 0, false
}

// Pass says that the rule which Next returned last does not count for this request, so that under FirstMatch the rules
// behind it are still asked.
func (w *Walk) Pass(rule int) {
	w.policy, w.rule, w.open = w.policyOf(rule), rule+1, w.before
}

// Exempt says, when the walk is over, that some policy exempted the request.
func (w *Walk) Exempt() bool { return w.exempt }

// ReadsPath says that another path could have led to other rules.
func (w *Walk) ReadsPath() bool { return w.paths.n > 0 || !w.routeFinal }

// AppendRoute appends the route of the request, with the names of parameters removed, as rules with the key part
// request: Route count by it. Where the router gave none, it is the template by which the rule that Next returned
// last matched; without one it is empty, so that all such requests share what the rule allows.
func (w *Walk) AppendRoute(b []byte) []byte {
	if !w.final && w.matched != nil {
		return append(b, w.matched.canonical...)
	}
	return appendCanonical(b, w.request.Route)
}

// leave goes on to the next policy, enter passes over policies that exempt the request.
func (w *Walk) leave() {
	w.rule = w.m.policies[w.policy].end
	w.policy++
	w.enter()
}

func (w *Walk) enter() {
	w.open = everyReading
	for w.policy < len(w.m.policies) && w.exempts(&w.m.policies[w.policy]) {
		w.exempt = true
		w.rule = w.m.policies[w.policy].end
		w.policy++
	}
}

func (w *Walk) policyOf(rule int) int {
	for i := range w.m.policies {
		if rule < w.m.policies[i].end {
			return i
		}
	}
	return len(w.m.policies)
}

// closed says that no reading is open. Before the path was read, a rule holds for every reading or for none.
func (w *Walk) closed(open readings) bool {
	return open == 0 || w.paths.n > 0 && open&w.paths.all() == 0
}

// applies returns the open readings by which one of the alternatives holds.
func (w *Walk) applies(r *ruleMatcher) (held readings) {
	w.matched = nil
	if r.any {
		return w.open
	}
	for i := range r.match {
		m := &r.match[i]
		more := w.holds(m) & w.open &^ held
		if more == 0 {
			continue
		}
		if held == 0 {
			w.matched = m.route
		}
		if held |= more; w.closed(w.open &^ held) {
			break
		}
	}
	return held
}

// holds returns the readings by which all that is set holds.
func (w *Walk) holds(m *matcher) readings {
	if len(m.methods) > 0 && !holdsMethod(m.methods, w.request.Method) {
		return 0
	}
	held := everyReading
	if m.route != nil {
		if held = w.holdsRoute(m.route); held == 0 {
			return 0
		}
	}
	if m.prefix != nil {
		if held &= w.holdsPrefix(m.prefix); held == 0 {
			return 0
		}
	}
	for i := range m.headers {
		if !w.holdsHeader(&m.headers[i]) {
			return 0
		}
	}
	return held
}

func (w *Walk) holdsRoute(t *template) (held readings) {
	if w.request.Route != "" && t.equals(w.request.Route) {
		return everyReading
	}
	if w.final {
		return 0
	}
	p := w.readPath()
	for i, path := range p.each[:p.n] {
		if t.serves(path, false) {
			held |= 1 << i
		}
	}
	return held
}

func (w *Walk) holdsPrefix(prefix *prefix) (held readings) {
	p := w.readPath()
	for i, path := range p.each[:p.n] {
		if prefix.holds(path) {
			held |= 1 << i
		}
	}
	return held
}

// exempts is stricter than holds: a path could be exempt in one reading of it and something else in the router's. So it
// is exempt only by a route that the router itself gave, or by all readings of a clean path.
func (w *Walk) exempts(p *policyMatcher) bool {
	for i := range p.exempt {
		m := &p.exempt[i]
		if len(m.methods) > 0 && !holdsMethod(m.methods, w.request.Method) {
			continue
		}
		if m.route != nil && !w.exemptsRoute(m.route) {
			continue
		}
		if m.prefix != nil {
			if sent := w.readPath(); !sent.clean || w.holdsPrefix(m.prefix) != sent.all() {
				continue
			}
		}
		return true
	}
	return false
}

func (w *Walk) exemptsRoute(t *template) bool {
	if w.request.Route != "" && t.equals(w.request.Route) {
		return true
	}
	if w.final {
		return false
	}
	p := w.readPath()
	for _, path := range p.each[:p.n] {
		if !t.serves(path, true) {
			return false
		}
	}
	return p.clean
}

// holdsMethod reads GET as GET and HEAD, as routers do.
func holdsMethod(methods []string, method string) bool {
	for _, m := range methods {
		if m == method || m == http.MethodGet && method == http.MethodHead {
			return true
		}
	}
	return false
}

func (w *Walk) holdsHeader(h *HeaderMatch) bool {
	if h.Name == "Host" {
		return strings.EqualFold(w.request.Host, h.Value)
	}
	return slices.Contains(w.request.Header[h.Name], h.Value)
}
