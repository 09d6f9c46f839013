package enforcer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/weir-dev/weir/internal/policy"
)

// Prefix lengths of a client's address where the policy gives none. One IPv6 customer has at least a /64.
const (
	defaultIPv4Prefix = 32
	defaultIPv6Prefix = 64
)

// keyer turns a request into the identity that a rule counts by.
type keyer struct {
	parts   []keyPart
	missing policy.WhenKeyMissing
	// route says that the identity depends on the rule that asks, by the template it matched.
	route bool
	// index is the same for rules with the same key, so that each identity is computed once for a request.
	index int
	// header is its name where the key is one header and nothing else, as most are.
	header string
}

type keyPart struct {
	kind       partKind
	name       string // of the header or attribute
	ipv4, ipv6 int
	firstOf    []keyPart
}

// partKind is also the tag of the part's value in what is hashed: an address that a user chose as a name is not that
// address.
type partKind byte

const (
	partHeader    partKind = 'h'
	partAttribute partKind = 'a'
	partClientIP  partKind = 'i'
	partRoute     partKind = 'r'
	partMethod    partKind = 'm'
	partFirstOf   partKind = 'f'
)

// First bytes of what is hashed. A request that lacks a part of the key is in a name space of its own, so that nobody
// gets, or spends, the budget of an identity by leaving a header out.
const (
	spaceKey       = 'k'
	spaceClientIP  = 'c'
	spaceAnonymous = 'n'
)

func compileKey(parts []policy.KeyPart, missing policy.WhenKeyMissing) keyer {
	k := keyer{missing: missing}
	for _, p := range parts {
		k.parts = append(k.parts, compilePart(p))
		k.route = k.route || readsRoute(p)
	}
	if len(k.parts) == 1 && k.parts[0].kind == partHeader {
		k.header = k.parts[0].name
	}
	return k
}

func readsRoute(p policy.KeyPart) bool {
	for _, inner := range p.FirstOf {
		if readsRoute(inner) {
			return true
		}
	}
	return p.Request == policy.RequestKeyRoute
}

func compilePart(p policy.KeyPart) keyPart {
	switch {
	case p.Header != "":
		return keyPart{kind: partHeader, name: textproto.CanonicalMIMEHeaderKey(p.Header)}
	case p.Attribute != "":
		return keyPart{kind: partAttribute, name: p.Attribute}
	case p.ClientIP != nil:
		part := keyPart{kind: partClientIP, ipv4: defaultIPv4Prefix, ipv6: defaultIPv6Prefix}
		if n := p.ClientIP.IPv4PrefixLength; n != nil {
			part.ipv4 = int(*n)
		}
		if n := p.ClientIP.IPv6PrefixLength; n != nil {
			part.ipv6 = int(*n)
		}
		return part
	case p.Request == policy.RequestKeyRoute:
		return keyPart{kind: partRoute}
	case p.Request == policy.RequestKeyMethod:
		return keyPart{kind: partMethod}
	}
	part := keyPart{kind: partFirstOf}
	for _, inner := range p.FirstOf {
		part.firstOf = append(part.firstOf, compilePart(inner))
	}
	return part
}

// keyOutcome says what a key found.
type keyOutcome uint8

const (
	keyFound  keyOutcome = iota
	keyAbsent            // and the rule counts by something else instead
	keyDenied
	keySkipped
)

// subject is what keys read.
type subject struct {
	request *Request
	walk    *policy.Walk
	trusted []netip.Prefix

	memo   *memo // nil remembers nothing
	hasher hasher

	// header is the one that was looked up last, "" for none.
	header, value string

	doubt func() // hears of a forwarded address that was not believed; may be nil

	addr      netip.Addr // the client's, once asked for
	addrKnown bool
	addrOK    bool
}

func (s *subject) clientAddr() (netip.Addr, bool) {
	if !s.addrKnown {
		var doubtful bool
		s.addr, doubtful, s.addrOK = clientOf(s.request.Remote, s.request.Header, s.trusted)
		s.addrKnown = true
		if doubtful && s.doubt != nil {
			s.doubt()
		}
	}
	return s.addr, s.addrOK
}

// identify returns the identity of a request, using buf as scratch memory, which it returns grown.
func (k *keyer) identify(s *subject, buf []byte) (Identity, keyOutcome, []byte) {
	if k.header != "" && s.memo != nil {
		return k.identifyHeader(s, buf)
	}
	buf = append(buf[:0], spaceKey)
	for i := range k.parts {
		grown, ok := k.parts[i].append(buf, s)
		if !ok {
			return k.absent(s, buf)
		}
		buf = grown
	}
	return s.hash(k.index, buf), keyFound, buf
}

// identifyHeader is identify for a key that is one header: the value of the last request is recognised as it is.
func (k *keyer) identifyHeader(s *subject, buf []byte) (Identity, keyOutcome, []byte) {
	value := strings.TrimSpace(s.valueOf(k.header))
	last := s.memo.of(k.index)
	if last.is(k, value) {
		return last.id, keyFound, buf
	}
	buf, ok := k.parts[0].appendValue(append(buf[:0], spaceKey), value)
	if !ok {
		return k.absent(s, buf)
	}
	id := s.hash(k.index, buf)
	last.key = k
	return id, keyFound, buf
}

func (k *keyer) absent(s *subject, buf []byte) (Identity, keyOutcome, []byte) {
	switch k.missing {
	case policy.WhenKeyMissingDeny:
		return Identity{}, keyDenied, buf
	case policy.WhenKeyMissingSkip:
		return Identity{}, keySkipped, buf
	case policy.WhenKeyMissingAnonymous:
	default: // ClientIP
		client := keyPart{kind: partClientIP, ipv4: defaultIPv4Prefix, ipv6: defaultIPv6Prefix}
		if grown, ok := client.append(append(buf[:0], spaceClientIP), s); ok {
			return s.hash(k.index, grown), keyAbsent, grown
		}
	}
	buf = append(buf[:0], spaceAnonymous)
	return s.hash(k.index, buf), keyAbsent, buf
}

// append appends the part's tag, its name and its value, each with its length in front, so that no two lists of parts
// are written alike. It returns false when the request has no value for it: absent, empty and blank are the same.
func (p *keyPart) append(buf []byte, s *subject) ([]byte, bool) {
	switch p.kind {
	case partHeader:
		return p.appendValue(buf, headerValue(s.request, p.name))
	case partAttribute:
		return p.appendValue(buf, s.request.Attributes[p.name])
	case partMethod:
		return p.appendValue(buf, s.request.Method)
	case partClientIP:
		addr, ok := s.clientAddr()
		if !ok {
			return buf, false
		}
		return p.appendAddr(buf, addr)
	case partRoute:
		// A request without a route is not one without a key: all of them are one identity.
		buf = append(buf, byte(p.kind))
		length := len(buf)
		buf = append(buf, 0, 0, 0, 0)
		buf = s.walk.AppendRoute(buf)
		binary.BigEndian.PutUint32(buf[length:], uint32(len(buf)-length-4))
		return buf, true
	case partFirstOf:
	}
	for i := range p.firstOf {
		if grown, ok := p.firstOf[i].append(buf, s); ok {
			return grown, true
		}
	}
	return buf, false
}

func (p *keyPart) appendValue(buf []byte, value string) ([]byte, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return buf, false
	}
	buf = append(buf, byte(p.kind))
	buf = binary.AppendUvarint(buf, uint64(len(p.name)))
	buf = append(buf, p.name...)
	buf = binary.AppendUvarint(buf, uint64(len(value)))
	return append(buf, value...), true
}

func (p *keyPart) appendAddr(buf []byte, addr netip.Addr) ([]byte, bool) {
	bits := p.ipv6
	if addr.Is4() {
		bits = p.ipv4
	}
	masked, err := addr.Prefix(bits)
	if err != nil {
		return buf, false // a prefix length that the address does not have; Compile refuses it
	}
	sixteen := masked.Addr().As16()
	return append(append(buf, byte(p.kind), byte(addr.BitLen()), byte(bits)), sixteen[:]...), true
}

// valueOf is headerValue, which is not looked up again for the same name.
func (s *subject) valueOf(name string) string {
	if s.header != name {
		s.header, s.value = name, headerValue(s.request, name)
	}
	return s.value
}

// headerValue is the first line of a header, which is the one that applications read.
func headerValue(r *Request, name string) string {
	if name == "Host" {
		return r.Host
	}
	if lines := r.Header[name]; len(lines) > 0 {
		return lines[0]
	}
	return ""
}

// memo holds what was hashed last for some of the keys: a flood is of one identity.
type memo [4]remembered

type remembered struct {
	raw []byte
	id  Identity
	// key is the one header whose value raw ends with; nil where raw is of another kind of key, or of a request that
	// lacks a part.
	key *keyer
}

func (m *memo) of(index int) *remembered { return &m[index%len(m)] }

// is says that the value of a key that is one header is the one that is remembered.
func (r *remembered) is(k *keyer, value string) bool {
	if r.key != k || value == "" {
		return false
	}
	start := len(r.raw) - len(value)
	return start == k.prefix(len(value)) && string(r.raw[start:]) == value
}

// prefix is how many bytes of what is hashed stand before a value of that length: the space, and the part's tag, name
// and lengths.
func (k *keyer) prefix(value int) int {
	return 2 + uvarintLen(len(k.header)) + len(k.header) + uvarintLen(value)
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// hash is the identity of what a key reads, the index of which is given.
func (s *subject) hash(index int, b []byte) Identity {
	if s.memo == nil {
		return s.hasher.sum(b)
	}
	last := s.memo.of(index)
	if !bytes.Equal(b, last.raw) || len(b) == 0 {
		last.raw = append(last.raw[:0], b...)
		last.id, last.key = s.hasher.sum(b), nil
	}
	return last.id
}

// hasher makes identities. Those of a store that others use are the same everywhere; those that do not leave the
// process need not be, and are made in a fraction of the time.
type hasher struct{ private bool }

// privateSeeds are drawn once in a process, so that nobody can choose values that are one identity.
var privateSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (h hasher) sum(b []byte) (id Identity) {
	if !h.private {
		return hash(b)
	}
	binary.LittleEndian.PutUint64(id[:8], maphash.Bytes(privateSeeds[0], b))
	binary.LittleEndian.PutUint64(id[8:], maphash.Bytes(privateSeeds[1], b))
	return id
}

func hash(b []byte) Identity {
	sum := sha256.Sum256(b)
	return Identity(sum[:16])
}
