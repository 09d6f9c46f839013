package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	apiVersion = "ratelimit.weir.dev/v1alpha1"
	kind       = "RateLimitPolicy"
	// defaultNamespace is where kubectl puts an object without one.
	defaultNamespace = "default"
)

// document is a YAML document of any kind.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   policy.Metadata `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
}

// parse reads the policies among the documents of a file. Fields of a spec that do not exist are errors: a limit with a
// misspelled field is not the limit that was meant.
func parse(name string, data []byte) ([]policy.Policy, error) {
	var policies []policy.Policy
	for i, text := range documents(string(data)) {
		p, ok, err := parseDocument(text)
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", name, i+1, err)
		}
		if ok {
			policies = append(policies, p)
		}
	}
	return policies, nil
}

func parseDocument(text string) (policy.Policy, bool, error) {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return policy.Policy{}, false, err
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return policy.Policy{}, false, nil // only comments
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return policy.Policy{}, false, err
	}
	if d.Kind != kind || !strings.HasPrefix(d.APIVersion, "ratelimit.weir.dev/") {
		return policy.Policy{}, false, nil
	}
	if d.APIVersion != apiVersion {
		return policy.Policy{}, false, fmt.Errorf("apiVersion %q, want %q", d.APIVersion, apiVersion)
	}
	p := policy.Policy{Metadata: d.Metadata}
	if p.Metadata.Namespace == "" {
		p.Metadata.Namespace = defaultNamespace
	}
	decoder := json.NewDecoder(bytes.NewReader(d.Spec))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p.Spec); err != nil {
		return policy.Policy{}, false, fmt.Errorf("spec: %w", err)
	}
	return p, true, nil
}

// documents splits a file at lines that start with three dashes.
func documents(text string) []string {
	var out []string
	var current strings.Builder
	for line := range strings.Lines(text) {
		if line == "---\n" || line == "---\r\n" || line == "---" || strings.HasPrefix(line, "--- ") {
			out = append(out, current.String())
			current.Reset()
			line = strings.TrimPrefix(line, "---")
		}
		current.WriteString(line)
	}
	return append(out, current.String())
}
