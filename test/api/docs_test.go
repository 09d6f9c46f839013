package api

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const page = "../../docs/spec/ratelimitpolicy.md"

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPageNamesEveryField(t *testing.T) {
	text := readFile(t, page)
	schema := readSchema(t)
	check := func(path string, _ *schemaNode) {
		name := strings.TrimSuffix(path[strings.LastIndexByte(path, '.')+1:], "[]")
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "`"+name+": ") && !strings.Contains(text, "### "+name) {
			t.Errorf("%s is not described", path)
		}
	}
	for _, top := range []string{"spec", "status"} {
		for name, node := range schema.Properties[top].Properties {
			if name == "conditions" {
				check(name, node)
				continue
			}
			node.walk(name, check)
		}
	}
}

func TestPageNamesEveryConditionAndReason(t *testing.T) {
	text := readFile(t, page)
	constants := regexp.MustCompile(`Condition(?:Type|Reason) += "(\w+)"`).FindAllStringSubmatch(readFile(t, "../../api/v1alpha1/conditions.go"), -1)
	if len(constants) < 20 {
		t.Fatalf("found only %d conditions and reasons", len(constants))
	}
	for _, constant := range constants {
		if !strings.Contains(text, "`"+constant[1]+"`") {
			t.Errorf("%s is not described", constant[1])
		}
	}
}

func TestExamplesOfThePageApply(t *testing.T) {
	client, namespace := server(t)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readFile(t, page), -1)
	if len(blocks) == 0 {
		t.Fatal("no example")
	}
	for _, block := range blocks {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(block[1]), &object.Object); err != nil {
			t.Fatal(err)
		}
		if _, errors := compile(toPolicy(t, object)); len(errors) > 0 {
			t.Errorf("Compile says %v of\n%s", errors, block[1])
		}
		if errors := try(t, client, namespace, object); len(errors) > 0 {
			t.Errorf("the API server says %v of\n%s", errors, block[1])
		}
	}
}
