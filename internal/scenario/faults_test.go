package scenario

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Faults of many clients, each with a request of its own. Those that fit into a file are in test/scenarios.

const byAddress = `scenario: many clients
policies:
  - apiVersion: ratelimit.weir.dev/v1alpha1
    kind: RateLimitPolicy
    metadata: {name: login, namespace: shop}
    spec:
      targetRef: {group: apps, kind: Deployment, name: web}
      rules: [{name: login, key: [{clientIP: {}}], limits: [{requests: 10, window: 1m}]}]
trustedProxies: [10.0.0.0/8]
steps:
`

// admitted counts the admitted requests of a scenario whose steps each send one.
func admitted(t *testing.T, text string) int {
	t.Helper()
	n := 0
	for _, s := range runText(t, text).Sends {
		n += strings.Count(s.Decisions, "A")
	}
	return n
}

// B37: a hundred forged addresses are one client, by each way that the header can come.
func TestB37ForgedAddresses(t *testing.T) {
	for name, send := range map[string]string{
		"from a peer that is no proxy":       `{remote: "203.0.113.7:1", headers: {X-Forwarded-For: 1.1.1.%d}}`,
		"in front of what the proxy added":   `{remote: "10.0.0.2:1", headers: {X-Forwarded-For: "1.1.1.%d, 203.0.113.7"}}`,
		"in a line before that of the proxy": `{remote: "10.0.0.2:1", headers: {X-Forwarded-For: [1.1.1.%d, 203.0.113.7]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			text.WriteString(byAddress)
			for i := range 100 {
				fmt.Fprintf(&text, "  - {at: 0s, send: "+send+"}\n", i+1)
			}
			if got := admitted(t, text.String()); got != 10 {
				t.Errorf("%d of 100 admitted, want 10", got)
			}
		})
	}
}

// B39: a thousand random hosts of one /64 are one client.
func TestB39RotationThroughAPrefix(t *testing.T) {
	const seed = 39
	random := rand.New(rand.NewPCG(seed, 0))
	var text strings.Builder
	text.WriteString(byAddress)
	for range 1000 {
		host := random.Uint64()
		fmt.Fprintf(&text, "  - {at: 0s, send: {remote: \"2001:db8:1:2:%x:%x:%x:%x\"}}\n",
			uint16(host>>48), uint16(host>>32), uint16(host>>16), uint16(host))
	}
	for range 10 {
		text.WriteString("  - {at: 0s, send: {remote: \"2001:db8:1:3::1\"}}\n")
	}
	if got := admitted(t, text.String()); got != 20 {
		t.Errorf("%d admitted, want 10 of the one prefix and 10 of the other (seed %d)", got, seed)
	}
}
