// Package scenarios runs the scenarios of this folder as users do, on memory, a real Redis and a real PostgreSQL.
package scenarios

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/test/env"
)

// result is a part of what `kubectl weir test -o json` tells.
type result struct {
	File     string `json:"file"`
	Scenario string `json:"scenario"`
	Store    string `json:"store"`
	Result   string `json:"result"`
	Failures any    `json:"failures"`
	// Sends hold every decision: they must be the same on all stores.
	Sends []struct {
		Step      int              `json:"step"`
		Decisions string           `json:"decisions"`
		Sources   map[string]int64 `json:"sources"`
		Charged   map[string]int64 `json:"charged"`
		Last      string           `json:"last"`
	} `json:"sends"`
}

func TestScenariosHoldOnEveryStore(t *testing.T) {
	tool := env.Build(t, "cmd/kubectl-weir")
	redis, postgres := env.Redis(t, env.RedisOptions{}), env.Postgres(t)
	run := exec.CommandContext(t.Context(), tool, "test", ".", "-o", "json", "--redis", redis.Addr, "--postgres", postgres.DSN)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	output, err := run.Output()
	var results []result
	if broken := json.Unmarshal(output, &results); broken != nil {
		t.Fatalf("%v\n%s%s", err, output, &stderr)
	}
	type key struct{ file, scenario string }
	onMemory := make(map[key]result)
	stores := make(map[key]int)
	for _, r := range results {
		name := key{r.File, r.Scenario}
		stores[name]++
		if r.Result != "ok" {
			t.Errorf("%s: %s on %s: %s %v", r.File, r.Scenario, r.Store, r.Result, r.Failures)
		}
		if r.Store == "memory" {
			onMemory[name] = r
			continue
		}
		if diff := cmp.Diff(onMemory[name].Sends, r.Sends); diff != "" {
			t.Errorf("%s: %s on %s is not as on memory (-memory +%s):\n%s", r.File, r.Scenario, r.Store, r.Store, diff)
		}
	}
	for name, n := range stores {
		if n != 3 {
			t.Errorf("%s: %s ran on %d stores, want 3", name.file, name.scenario, n)
		}
	}
	if files, err := filepath.Glob("*.yaml"); err != nil || len(stores) < len(files) {
		t.Errorf("%d scenarios ran, of %d files (%v)", len(stores), len(files), err)
	}
}
