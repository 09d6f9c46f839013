package enforcer

import (
	"net/http"
	"net/netip"
	"strings"
)

// maxHops bounds how many trusted proxies a request is believed to have come through.
const maxHops = 64

// clientOf returns the address of the client: the peer's, unless that is a trusted proxy; then the last one in
// X-Forwarded-For that is not, all lines of the header read as one list. What cannot be read as an address ends the
// walk at the proxy that passed it on.
//
// It is doubtful when the peer claims to be a proxy and is not believed, although its address is one that only a neighbour
// has: then the list of proxies may be wrong, and all clients are counted as one.
func clientOf(remote string, header http.Header, trusted []netip.Prefix) (client netip.Addr, doubtful, ok bool) {
	client, ok = parseAddr(remote)
	if !ok {
		return netip.Addr{}, false, false
	}
	if len(trusted) == 0 || !contains(trusted, client) {
		return client, len(header["X-Forwarded-For"]) > 0 && neighbour(client), true
	}
	return forwardedFor(client, header, trusted), false, true
}

// neighbour says whether an address is one that is not routed in the Internet.
func neighbour(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || sharedSpace.Contains(a)
}

// sharedSpace is that of RFC 6598, which clouds and carriers use inside.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// forwardedFor walks from a trusted peer to the client.
func forwardedFor(client netip.Addr, header http.Header, trusted []netip.Prefix) netip.Addr {
	lines := header["X-Forwarded-For"]
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; rest != ""; {
			hop := rest
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				rest = ""
			}
			addr, ok := parseAddr(strings.TrimSpace(hop))
			if !ok {
				return client
			}
			client = addr
			if hops++; hops == maxHops || !contains(trusted, client) {
				return client
			}
		}
	}
	return client
}

// parseAddr reads an address with or without a port. An IPv4 address inside an IPv6 one is the IPv4 address; a zone
// names an interface of ours, not a client, and is dropped.
func parseAddr(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		withPort, err := netip.ParseAddrPort(s)
		if err != nil {
			if len(s) < 2 || s[0] != '[' || s[len(s)-1] != ']' {
				return netip.Addr{}, false
			}
			if addr, err = netip.ParseAddr(s[1 : len(s)-1]); err != nil {
				return netip.Addr{}, false
			}
			return addr.Unmap().WithZone(""), true
		}
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// unmapPrefixes writes prefixes of IPv4 addresses inside IPv6 ones as IPv4 prefixes, as addresses are compared.
func unmapPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked())
	}
	return out
}

// ClientAddr returns the address of the client of a request that came from remote with these headers, as rules with the
// key part clientIP see it. It is false where remote is no address.
func ClientAddr(remote string, header http.Header, trusted []netip.Prefix) (netip.Addr, bool) {
	client, _, ok := clientOf(remote, header, unmapPrefixes(trusted))
	return client, ok
}
