package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// schemaNode is the part of an OpenAPI schema that the tests below read.
type schemaNode struct {
	Type        string                 `json:"type"`
	Format      string                 `json:"format"`
	Description string                 `json:"description"`
	Default     json.RawMessage        `json:"default"`
	Enum        []any                  `json:"enum"`
	Properties  map[string]*schemaNode `json:"properties"`
	Items       *schemaNode            `json:"items"`
	MaxLength   *int64                 `json:"maxLength"`
	MaxItems    *int64                 `json:"maxItems"`
	Minimum     *float64               `json:"minimum"`
	Maximum     *float64               `json:"maximum"`
	ListType    string                 `json:"x-kubernetes-list-type"`
}

// walk visits a schema and everything below it, by paths such as spec.rules[].name.
func (n *schemaNode) walk(path string, visit func(path string, n *schemaNode)) {
	visit(path, n)
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		n.Properties[name].walk(path+"."+name, visit)
	}
	if n.Items != nil {
		n.Items.walk(path+"[]", visit)
	}
}

func readSchema(t *testing.T) *schemaNode {
	t.Helper()
	data, err := json.Marshal(readObjects(t, crdFile)[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema *schemaNode `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// A default under spec would be written into the user's object, and inside a list it keeps GitOps tools out of sync
// for ever.
func TestSchemaHasNoDefaultUnderSpec(t *testing.T) {
	defaults := make(map[string]string)
	readSchema(t).walk("", func(path string, n *schemaNode) {
		if n.Default != nil {
			defaults[path] = string(n.Default)
		}
	})
	if len(defaults) != 1 || defaults[".status"] != `{"observedGeneration":-1}` {
		t.Errorf("defaults are %v, want only that of .status", defaults)
	}
}

func TestSchemaBoundsEverythingUnderSpec(t *testing.T) {
	spec := readSchema(t).Properties["spec"]
	seen := make(map[string]int)
	spec.walk("spec", func(path string, n *schemaNode) {
		seen[n.Type]++
		switch n.Type {
		case "string":
			if n.MaxLength == nil && n.Enum == nil {
				t.Errorf("%s: a string without maxLength or enum", path)
			}
		case "array":
			if n.MaxItems == nil || n.ListType == "" {
				t.Errorf("%s: a list without maxItems or list type", path)
			}
		case "integer":
			if n.Minimum == nil || n.Maximum == nil {
				t.Errorf("%s: a number without minimum or maximum", path)
			}
		case "boolean", "object":
		default:
			t.Errorf("%s: type %q", path, n.Type)
		}
	})
	for _, kind := range []string{"string", "array", "integer", "boolean", "object"} {
		if seen[kind] == 0 {
			t.Errorf("met no %s under spec", kind)
		}
	}
}

func TestSchemaDescribesEveryField(t *testing.T) {
	readSchema(t).walk("", func(path string, n *schemaNode) {
		isItem := strings.HasSuffix(path, "[]") && n.Type != "object"
		if n.Description == "" && !isItem && path != ".metadata" {
			t.Errorf("%s has no description", path)
		}
		if strings.Contains(n.Description, "://") && strings.HasPrefix(path, ".spec") {
			t.Errorf("%s: a description with an address", path)
		}
	})
}
