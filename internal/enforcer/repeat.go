package enforcer

// repeat is the last request that was decided with the same memory, as far as the rules read it. A flood is of requests
// that are equal in that: what the last one asked is still there, and the rules need not be gone through again.
type repeat struct {
	s             *snapshot // nil: nothing is known
	method, route string
	path          string // if it was read
	pathRead      bool
	remote        string // if the client's address was asked for
	remoteRead    bool
	value         string // of the one header that keys read
}

// reads is what the rules of a snapshot read of requests.
type reads struct {
	// header is the one that keys read, "" for none.
	header string
	// more: several headers are read, or all lines of one.
	more bool
}

func (r *reads) add(rule *rule) {
	for i := range rule.key.parts {
		r.addPart(&rule.key.parts[i])
	}
	for _, m := range rule.match {
		r.more = r.more || len(m.Headers) > 0
	}
}

func (r *reads) addPart(p *keyPart) {
	for i := range p.firstOf {
		r.addPart(&p.firstOf[i])
	}
	if p.kind != partHeader || p.name == r.header {
		return
	}
	r.more = r.more || r.header != ""
	r.header = p.name
}

// repeats says that want holds already what the request asks.
func (d *decision) repeats() bool {
	last, r := &d.last, &d.request
	d.subject.header = ""
	if last.s != d.s || len(r.Attributes) > 0 || r.Method != last.method || r.Route != last.route ||
		last.pathRead && r.Path != last.path || last.remoteRead && (r.Remote != last.remote || len(r.Header["X-Forwarded-For"]) > 0) {
		return false
	}
	if name := d.s.reads.header; name != "" && d.subject.valueOf(name) != last.value {
		return false
	}
	d.want.peek = d.peek
	for i := range d.want.origins {
		d.want.origins[i].rule.seen(d.peek)
	}
	return true
}

// remember keeps what the request asks for the next one, if all that was read of it can be compared.
func (d *decision) remember() {
	r := &d.request
	if d.s.reads.more || len(r.Attributes) > 0 || d.odd || d.unlimited != nil || len(d.shadows) > 0 || len(d.want.counters) == 0 ||
		d.subject.addrKnown && len(d.subject.trusted) > 0 {
		return
	}
	d.last = repeat{
		s: d.s, method: r.Method, route: r.Route,
		path: r.Path, pathRead: d.walk.ReadsPath(),
		remote: r.Remote, remoteRead: d.subject.addrKnown,
	}
	if name := d.s.reads.header; name != "" {
		d.last.value = d.subject.valueOf(name)
	}
}
