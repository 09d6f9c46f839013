// Package api tests the resource as users meet it: what the API server and Compile say of the same files.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	crdFile    = "../../config/crd/ratelimit.weir.dev_ratelimitpolicies.yaml"
	samplesDir = "../../config/samples"
	invalidDir = "../../config/testdata/invalid"
)

// readObjects returns the documents of a YAML file.
func readObjects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
}

func yamlFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no files in %s", dir)
	}
	return files
}

// sample is a policy from a file.
type sample struct {
	name   string
	object *unstructured.Unstructured
	// path and message are what an invalid sample says of itself in its first two lines.
	path, message string
}

func validSamples(t *testing.T) []sample {
	t.Helper()
	var samples []sample
	for _, file := range yamlFiles(t, samplesDir) {
		for _, object := range readObjects(t, file) {
			if object.GetKind() == "RateLimitPolicy" {
				samples = append(samples, sample{name: filepath.Base(file), object: object})
			}
		}
	}
	return samples
}

func invalidSamples(t *testing.T) []sample {
	t.Helper()
	var samples []sample
	for _, file := range yamlFiles(t, invalidDir) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitN(string(data), "\n", 3)
		path, hasPath := strings.CutPrefix(lines[0], "# path: ")
		message, hasMessage := strings.CutPrefix(lines[1], "# message: ")
		objects := readObjects(t, file)
		if !hasPath || !hasMessage || len(objects) != 1 {
			t.Fatalf("%s: want one policy, under a line `# path: …` and a line `# message: …`", file)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		samples = append(samples, sample{name: name, object: objects[0], path: path, message: message})
	}
	return samples
}

// toPolicy reads an object as policy files are read, unknown fields ignored as the API server drops them.
func toPolicy(t *testing.T, object *unstructured.Unstructured) policy.Policy {
	t.Helper()
	data, err := json.Marshal(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	var p policy.Policy
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return p
}

// compile says what Compile finds wrong with a policy.
func compile(p policy.Policy) (policy.Row, []policy.FieldError) {
	row, verdicts := policy.Compile(p.Workload(), "test", []policy.Policy{p})
	return row, verdicts[0].Errors
}

// refusedFor demands that every error is about the path that the sample states, and one of them says the message.
func (s sample) refusedFor(t *testing.T, errors []policy.FieldError) {
	t.Helper()
	said := false
	for _, e := range errors {
		if e.Path != s.path {
			t.Errorf("an error about another path: %v", e)
		}
		said = said || strings.Contains(e.Message, s.message)
	}
	if !said {
		t.Errorf("want an error with path %s and message %q, got %v", s.path, s.message, errors)
	}
}

func TestCompileRefusesInvalidSamples(t *testing.T) {
	for _, s := range invalidSamples(t) {
		t.Run(s.name, func(t *testing.T) {
			row, errors := compile(toPolicy(t, s.object))
			s.refusedFor(t, errors)
			if len(row.Rules) > 0 || len(row.Policies) > 0 {
				t.Errorf("an invalid policy is in the row: %+v", row)
			}
		})
	}
}

func TestCompileAcceptsSamples(t *testing.T) {
	workloads := make(map[policy.Workload][]policy.Policy)
	for _, s := range validSamples(t) {
		p := toPolicy(t, s.object)
		workloads[p.Workload()] = append(workloads[p.Workload()], p)
	}
	for w, policies := range workloads {
		row, verdicts := policy.Compile(w, "test", policies)
		for _, v := range verdicts {
			if !v.Accepted() {
				t.Errorf("%s: %s: %s", v.Name, v.Reason, v.Message)
			}
		}
		if _, err := policy.EncodeRow(row); err != nil {
			t.Error(err)
		}
	}
}
