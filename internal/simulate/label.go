package simulate

import (
	"net/netip"
	"strings"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// labels writes identities as people know them. Enforcers only have their hashes; who replays a log has the log.
type labels struct {
	trusted []netip.Prefix
}

// of returns the values of a rule's key, in its order.
func (l labels) of(rule *policy.RowRule, r *enforcer.Request) string {
	if len(rule.Key) == 0 {
		return "(all)"
	}
	var values []string
	for _, part := range rule.Key {
		value := l.value(part, r)
		if part.Request == policy.RequestKeyRoute && value == "" {
			value = routeOf(rule)
		}
		if value == "" {
			return l.absent(rule, r)
		}
		values = append(values, value)
	}
	return strings.Clone(strings.Join(values, " "))
}

func (l labels) absent(rule *policy.RowRule, r *enforcer.Request) string {
	if rule.WhenKeyMissing == policy.WhenKeyMissingClientIP {
		if addr := l.value(policy.KeyPart{ClientIP: &policy.ClientIP{}}, r); addr != "" {
			return addr + " (no key)"
		}
	}
	return "(no key)"
}

func (l labels) value(part policy.KeyPart, r *enforcer.Request) string {
	switch {
	case part.Header == "Host":
		return strings.TrimSpace(r.Host)
	case part.Header != "":
		return strings.TrimSpace(r.Header.Get(part.Header))
	case part.Attribute != "":
		return strings.TrimSpace(r.Attributes[part.Attribute])
	case part.ClientIP != nil:
		return l.client(part.ClientIP, r)
	case part.Request == policy.RequestKeyMethod:
		return r.Method
	case part.Request == policy.RequestKeyRoute:
		return r.Route
	}
	for _, first := range part.FirstOf {
		if value := l.value(first, r); value != "" {
			return value
		}
	}
	return ""
}

func (l labels) client(by *policy.ClientIP, r *enforcer.Request) string {
	addr, ok := enforcer.ClientAddr(r.Remote, r.Header, l.trusted)
	if !ok {
		return ""
	}
	bits := 64
	if by.IPv6PrefixLength != nil {
		bits = int(*by.IPv6PrefixLength)
	}
	if addr.Is4() {
		bits = 32
		if by.IPv4PrefixLength != nil {
			bits = int(*by.IPv4PrefixLength)
		}
	}
	prefix, err := addr.Prefix(bits)
	switch {
	case err != nil:
		return ""
	case bits == addr.BitLen():
		return addr.String()
	}
	return prefix.String()
}

// routeOf is the template that a rule counts by where the log has none.
func routeOf(rule *policy.RowRule) string {
	if len(rule.Match) == 1 && rule.Match[0].Route != "" {
		return rule.Match[0].Route
	}
	return "(no route)"
}
