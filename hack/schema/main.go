// Command schema writes the JSON Schema of a RateLimitPolicy, by which editors complete and check policy files, from
// the CustomResourceDefinition.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	from = "config/crd/ratelimit.weir.dev_ratelimitpolicies.yaml"
	to   = "docs/schema/ratelimitpolicy.schema.json"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "schema: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	definition, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading the definition: %w", err)
	}
	schema, err := convert(definition)
	if err != nil {
		return fmt.Errorf("converting %s: %w", from, err)
	}
	if err := os.WriteFile(to, schema, 0o644); err != nil {
		return fmt.Errorf("writing the schema: %w", err)
	}
	return nil
}

// object is a JSON object of any shape.
type object = map[string]any

// convert makes a JSON Schema, draft 7, of the only version of a definition.
func convert(definition []byte) ([]byte, error) {
	var crd struct {
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Kind string `json:"kind"`
			} `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema object `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(definition, &crd); err != nil {
		return nil, err
	}
	if len(crd.Spec.Versions) != 1 {
		return nil, errors.New("want exactly one version")
	}
	version := crd.Spec.Versions[0]
	schema := version.Schema.OpenAPIV3Schema
	properties, ok := schema["properties"].(object)
	if !ok {
		return nil, errors.New("no properties")
	}
	if err := strict("", schema); err != nil {
		return nil, err
	}
	properties["apiVersion"] = object{"const": crd.Spec.Group + "/" + version.Name}
	properties["kind"] = object{"const": crd.Spec.Names.Kind}
	properties["metadata"] = object{
		"type":     "object",
		"required": []string{"name"},
		"properties": object{
			"name":        object{"type": "string", "minLength": 1, "maxLength": 253},
			"namespace":   object{"type": "string", "maxLength": 63},
			"labels":      object{"type": "object", "additionalProperties": object{"type": "string"}},
			"annotations": object{"type": "object", "additionalProperties": object{"type": "string"}},
		},
	}
	properties["status"] = object{"type": "object", "description": "Written by the controller."}
	schema["required"] = []string{"apiVersion", "kind", "metadata", "spec"}
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	schema["title"] = crd.Spec.Names.Kind

	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// kept are the keywords that mean the same in both.
var kept = []string{
	"type", "description", "properties", "items", "required", "enum", "pattern", "minimum", "maximum", "minLength",
	"maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "additionalProperties",
}

// strict turns a schema of the API server into one of an editor: without what only the API server knows, and refusing
// fields that do not exist.
func strict(path string, schema object) error {
	maps.DeleteFunc(schema, func(keyword string, _ any) bool { return !slices.Contains(kept, keyword) })
	if pattern, ok := schema["pattern"].(string); ok {
		portable, err := portablePattern(pattern)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		schema["pattern"] = portable
	}
	if properties, ok := schema["properties"].(object); ok {
		schema["additionalProperties"] = false
		for name, property := range properties {
			p, ok := property.(object)
			if !ok {
				return fmt.Errorf("%s.%s is no schema", path, name)
			}
			if err := strict(path+"."+name, p); err != nil {
				return err
			}
		}
	}
	if items, ok := schema["items"].(object); ok {
		return strict(path+"[]", items)
	}
	return nil
}

// notPortable is what Go's regular expressions have and ECMAScript's have not.
var notPortable = regexp.MustCompile(`\[:\w+:\]|\(\?[imsU]|\\[AzQEpPaC]`)

func portablePattern(pattern string) (string, error) {
	pattern = strings.ReplaceAll(pattern, "[:cntrl:]", `\x00-\x1f\x7f`)
	if found := notPortable.FindString(pattern); found != "" {
		return "", fmt.Errorf("pattern %q: editors do not know %s", pattern, found)
	}
	return pattern, nil
}
