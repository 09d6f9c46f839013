package lint

import (
	"cmp"
	"fmt"
	"net/textproto"
	"reflect"

	"github.com/weir-dev/weir/internal/policy"
)

// keys finds parts of a key that add nothing to it.
func keys(warn func(string, string, ...any), at string, parts []policy.KeyPart) {
	for i, part := range parts {
		for j, earlier := range parts[:i] {
			if samePart(part, earlier) {
				warn(fmt.Sprintf("%s[%d]", at, i), "adds nothing: key[%d] is the same", j)
				break
			}
		}
		for j, choice := range part.FirstOf {
			path := fmt.Sprintf("%s[%d].firstOf[%d]", at, i, j)
			for k, earlier := range part.FirstOf[:j] {
				if samePart(choice, earlier) {
					warn(path, "is never read: firstOf[%d] is the same", k)
					break
				}
				if earlier.ClientIP != nil || earlier.Request != "" {
					warn(path, "is never read: every request has what firstOf[%d] reads", k)
					break
				}
			}
		}
	}
}

// samePart compares what is read, however it is spelt.
func samePart(a, b policy.KeyPart) bool {
	if len(a.FirstOf) != len(b.FirstOf) {
		return false
	}
	for i := range a.FirstOf {
		if !samePart(a.FirstOf[i], b.FirstOf[i]) {
			return false
		}
	}
	return textproto.CanonicalMIMEHeaderKey(a.Header) == textproto.CanonicalMIMEHeaderKey(b.Header) &&
		a.Attribute == b.Attribute && a.Request == b.Request && reflect.DeepEqual(a.ClientIP, b.ClientIP)
}

// sameKey says whether two rules count a request for the same identity. A route is that of the rule that matched.
func sameKey(a, b policy.Rule) bool {
	if len(a.Key) != len(b.Key) ||
		cmp.Or(a.WhenKeyMissing, policy.WhenKeyMissingClientIP) != cmp.Or(b.WhenKeyMissing, policy.WhenKeyMissingClientIP) {
		return false
	}
	for i := range a.Key {
		if !samePart(a.Key[i], b.Key[i]) || readsRoute(a.Key[i]) {
			return false
		}
	}
	return true
}

func readsRoute(p policy.KeyPart) bool {
	for _, choice := range p.FirstOf {
		if choice.Request == policy.RequestKeyRoute {
			return true
		}
	}
	return p.Request == policy.RequestKeyRoute
}
