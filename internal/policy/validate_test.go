package policy

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var wildcardNames = regexp.MustCompile(`[{][A-Za-z_][A-Za-z0-9_]*`)

// Every route that is valid is one that a ServeMux takes, so that a policy can be written by copying from the code.
func FuzzRouteIsAServeMuxPattern(f *testing.F) {
	for _, seed := range []string{"/", "/exports", "/users/{id}", "/files/{path...}", "/files/{$}", "/static/", "/a%2Fb", "/größe", "/*", "/{a}/{b}/c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, route string) {
		var faults faults
		faults.route("route", route)
		if faults != nil {
			return
		}
		defer func() {
			if refusal := recover(); refusal != nil && !duplicateWildcard(route) {
				t.Errorf("%q is valid, but ServeMux says: %v", route, refusal)
			}
		}()
		http.NewServeMux().Handle(route, http.NotFoundHandler())
	})
}

// duplicateWildcard says whether two parameters have one name. ServeMux refuses that; to us names do not matter.
func duplicateWildcard(route string) bool {
	seen := make(map[string]bool)
	for _, name := range wildcardNames.FindAllString(route, -1) {
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

func TestErrorsOfALongValueAreShort(t *testing.T) {
	p := testPolicy("checkout", 0, Rule{Name: "a", Mode: Mode(make([]byte, 1<<20))})
	for _, e := range Validate(p) {
		if len(e.Message) > 1000 {
			t.Errorf("a message of %d bytes", len(e.Message))
		}
	}
}

func TestValidateReportsEveryDefect(t *testing.T) {
	p := testPolicy("checkout", 0, Rule{Name: "A", Limits: []Limit{{Window: "1d"}}}, Rule{Name: "b", Mode: "Off"})
	p.Metadata.Namespace = ""
	var got []string
	for _, e := range Validate(p) {
		got = append(got, e.Path)
	}
	want := []string{"metadata.namespace", "spec.rules[0].name", "spec.rules[0].limits[0].requests", "spec.rules[0].limits[0].window", "spec.rules[1].mode"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}
