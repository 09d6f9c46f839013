package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/internal/manifest"
)

const root = "../../"

func TestSchemaIsUpToDate(t *testing.T) {
	definition, err := os.ReadFile(root + from)
	if err != nil {
		t.Fatal(err)
	}
	want, err := convert(definition)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(root + to)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what %s gives: run make generate", to, from)
	}
}

// policies returns the policies among the documents of a folder's files, by file.
func policies(t *testing.T, pattern string) map[string]any {
	t.Helper()
	files, err := filepath.Glob(root + pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files match %s (%v)", pattern, err)
	}
	found := make(map[string]any)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split("\n"+string(data), "\n---") {
			var value map[string]any
			if err := yaml.Unmarshal([]byte(document), &value); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if value["kind"] == manifest.PolicyKind {
				found[filepath.Base(file)] = value
			}
		}
	}
	return found
}

func TestSchemaAcceptsSamples(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(root + to)
	if err != nil {
		t.Fatal(err)
	}
	for file, value := range policies(t, "config/samples/*.yaml") {
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// What only CEL can express, an editor does not know.
func TestSchemaRefusesWhatHasAnotherShape(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(root + to)
	if err != nil {
		t.Fatal(err)
	}
	invalid := policies(t, "config/testdata/invalid/*.yaml")
	for _, file := range []string{
		"algorithm-unknown.yaml", "exempt-empty-item.yaml", "header-name.yaml", "header-value-padded.yaml", "limits-none.yaml",
		"match-empty-item.yaml", "method-lower-case.yaml", "mode-unknown.yaml", "override-when-missing.yaml",
	} {
		value, ok := invalid[file]
		if !ok {
			t.Errorf("there is no invalid sample %s", file)
		} else if schema.Validate(value) == nil {
			t.Errorf("%s: accepted", file)
		}
	}
	misspelled := policies(t, "config/samples/client-ip.yaml")["client-ip.yaml"].(object)
	misspelled["spec"].(object)["evalution"] = "All"
	if schema.Validate(misspelled) == nil {
		t.Error("a misspelled field is accepted")
	}
}

func TestPatternsThatEditorsDoNotKnowAreRefused(t *testing.T) {
	for _, pattern := range []string{`(?i)x`, `[[:alpha:]]`, `\p{L}`, `\Ax`} {
		if got, err := portablePattern(pattern); err == nil {
			t.Errorf("%q became %q", pattern, got)
		}
	}
}
