package controllers

import (
	"fmt"

	"github.com/weir-dev/weir/internal/policy"
)

// warning is what the owner of the policy or of the application should look at although all pods enforce the policy, as
// the end of a message.
func (f facts) warning() string {
	text := ""
	if len(f.unmatched) > 0 {
		text = fmt.Sprintf("; no request matches %s, of %d or more in a pod: compare the rule's match with the routes of the application",
			named(f.unmatched), policy.UnmatchedAfter)
	}
	if f.forwardedIgnored {
		text += "; pods ignore X-Forwarded-For of peers with private addresses: is a proxy missing in TrustedProxies?"
	}
	return text
}
