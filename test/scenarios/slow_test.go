package scenarios

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-dev/weir/test/env"
)

// A Redis expires by its own clock, and the scenario's stands for the requests of one instant. Before a counter can have
// been lost by that, the run ends with an error instead of a wrong number.
func TestAnInstantThatOutlastsACounterIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte(`scenario: an instant that outlasts a counter
policies:
  - apiVersion: ratelimit.weir.dev/v1alpha1
    kind: RateLimitPolicy
    metadata: {name: p, namespace: shop}
    spec:
      targetRef: {group: apps, kind: Deployment, name: web}
      rules: [{name: r, key: [{header: X}], limits: [{requests: 1, window: 100ms}]}]
stores: [redis]
steps:
  - {at: 0s, send: {headers: {X: a}}, expect: {admitted: 1}}
  - {at: 0s, send: {count: 300000, headers: {X: b}}}
  - {at: 0s, send: {headers: {X: a}}, expect: {denied: 1}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	redis := env.Redis(t, env.RedisOptions{})
	output, err := exec.CommandContext(t.Context(), env.Build(t, "cmd/kubectl-weir"), "test", file, "--redis", redis.Addr).CombinedOutput()
	if err == nil || !strings.Contains(string(output), "Redis may have forgotten a counter") {
		t.Errorf("error %v:\n%s", err, output)
	}
}
