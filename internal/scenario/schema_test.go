package scenario

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

const schemaFile = "../../docs/schema/scenario.schema.json"

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// The schema is written by hand, because editors show its descriptions. It must have the fields of the Go types, and no
// others.
func TestSchemaHasTheFieldsOfTheTypes(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	type definition struct {
		Properties map[string]any `json:"properties"`
	}
	var schema struct {
		definition
		Definitions map[string]definition `json:"definitions"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	types := []any{
		Scenario{}, Workload{}, Options{}, Step{}, Send{}, Event{}, ClockEvent{}, Reset{}, Expect{}, DecisionFields{},
		StatusFields{}, ConditionFields{}, ReplicaFields{}, EnforcerFields{}, ShareFields{},
	}
	for _, v := range types {
		typ := reflect.TypeOf(v)
		var want []string
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.IsExported() && name != "" && name != "-" {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		properties := schema.Definitions[typ.Name()].Properties
		if typ == reflect.TypeFor[Scenario]() {
			properties = schema.Properties
		}
		if diff := cmp.Diff(want, sortedKeys(properties)); diff != "" {
			t.Errorf("%s: (-type +schema):\n%s", typ.Name(), diff)
		}
	}
}

// documents returns those of a YAML file as JSON values.
func documents(t *testing.T, text string) []any {
	t.Helper()
	var values []any
	for _, document := range strings.Split("\n"+text, "\n---") {
		var value any
		if err := yaml.Unmarshal([]byte(document), &value); err != nil {
			t.Fatal(err)
		}
		if value != nil {
			values = append(values, value)
		}
	}
	return values
}

func TestSchemaAcceptsScenarios(t *testing.T) {
	schema := compileSchema(t)
	texts := map[string]string{"good": good}
	files, err := filepath.Glob("../../test/scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios (%v)", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(data)
	}
	for name, text := range texts {
		for _, value := range documents(t, text) {
			if object, ok := value.(map[string]any); ok && object["kind"] != nil {
				continue // a policy that scenarios name
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestSchemaRefusesWhatLoadRefuses(t *testing.T) {
	schema := compileSchema(t)
	for name, change := range map[string][2]string{
		"a misspelled field":            {"expect: {admitted: 4}", "expect: {admittd: 4}"},
		"a broken policy":               {"requests: 6", "requests: -6"},
		"a duration with a fraction":    {"at: 6s", "at: 6.5s"},
		"a number for a duration":       {"at: 6s", "at: 6"},
		"a step without a time":         {"  - at: 6s\n    expect", "  - expect"},
		"a store that there is not":     {"[memory, redis]", "[memory, mysql]"},
		"a state that there is not":     {"{loseWrites: 2s}", "Gone"},
		"two things in one event":       {"{scale: {desired: 5, ready: 2, terminating: 1}}", "{scale: 3, restart: 0}"},
		"an event of nothing":           {"event: {store: {loseWrites: 2s}}", "event: {}"},
		"a source that there is not":    {"{Store: {atLeast: 3}}", "{Redis: 4}"},
		"an event with an expectation":  {"event: {store: {loseWrites: 2s}}", "event: {store: Down}\n    expect: {admitted: 1}"},
		"a snapshot that there is not":  {"snapshot: {delay: 60s}", "snapshot: soon"},
		"a replica that is no number":   {"replica: 2, method", "replica: two, method"},
		"a decision that is none":       {"AADD", "AABD"},
		"a count of nothing":            {"count: 4, replica: 2", "count: 0, replica: 2"},
		"a state of a condition gone":   {"{replicas: {counted: 5}}", "{conditions: [{type: Ready, status: Maybe}]}"},
		"an attribute that is a number": {"every: 1s", "attributes: {rows: 7}"},
	} {
		if strings.Count(good, change[0]) != 1 {
			t.Fatalf("%s: %q is in the scenario %d times, want once", name, change[0], strings.Count(good, change[0]))
		}
		text := strings.Replace(good, change[0], change[1], 1)
		if _, faults := parse(t, text, nil); faults == nil {
			t.Errorf("%s: Load accepts it", name)
		}
		if schema.Validate(documents(t, text)[0]) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}
