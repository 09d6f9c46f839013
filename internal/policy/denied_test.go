package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func idOf(n int) string { return fmt.Sprintf("%032x", n) }

func TestMergeDenied(t *testing.T) {
	one := []DeniedRule{{Policy: "p", Rule: "r", Total: 100, Floor: 5, Identities: []DeniedIdentity{
		{ID: idOf(1), Denied: 60, Over: 2}, {ID: idOf(2), Name: "two", Denied: 30},
	}}}
	two := []DeniedRule{
		{Policy: "p", Rule: "r", Total: 50, Identities: []DeniedIdentity{{ID: idOf(2), Denied: 40}, {ID: idOf(3), Name: "three", Denied: 10}}},
		{Policy: "p", Rule: "quiet", Total: 1, Identities: []DeniedIdentity{{ID: idOf(9), Denied: 1}}},
	}
	quiet := DeniedRule{Policy: "p", Rule: "quiet", Total: 1, Identities: []DeniedIdentity{{ID: idOf(9), Denied: 1}}}
	for name, tc := range map[string]struct {
		most int
		want []DeniedRule
	}{
		// Identity 3 may have been denied 5 times where it is not listed.
		"all of them": {10, []DeniedRule{{Policy: "p", Rule: "r", Total: 150, Floor: 5, Identities: []DeniedIdentity{
			{ID: idOf(2), Name: "two", Denied: 70}, {ID: idOf(1), Denied: 60, Over: 2}, {ID: idOf(3), Name: "three", Denied: 15, Over: 5},
		}}, quiet}},
		"one of each": {1, []DeniedRule{{Policy: "p", Rule: "r", Total: 150, Floor: 60, Identities: []DeniedIdentity{
			{ID: idOf(2), Name: "two", Denied: 70},
		}}, quiet}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, MergeDenied([][]DeniedRule{one, two}, tc.most)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeDenied(t *testing.T) {
	good := DeniedReport{Pod: "checkout-1", From: 1, To: 2, Rules: []DeniedRule{{Policy: "p", Rule: "r", Total: 3, Identities: []DeniedIdentity{{ID: idOf(1), Denied: 3}}}}}
	data, err := EncodeDenied(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeDenied(data)
	good.Version = RowVersion
	if diff := cmp.Diff(good, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	edit := func(old, with string) string { return strings.Replace(string(data), old, with, 1) }
	for name, text := range map[string]string{
		"not JSON":            "}",
		"no version":          `{}`,
		"a newer version":     edit(`"v":1`, `"v":9`),
		"no pod":              edit("checkout-1", ""),
		"a pod with a line":   edit("checkout-1", `a\nb`),
		"backwards":           edit(`"to":2`, `"to":0`),
		"no rule":             edit(`"rule":"r"`, `"rule":""`),
		"no hash":             edit(idOf(1), "alice"),
		"a short hash":        edit(idOf(1), "00"),
		"a long name":         edit(`"denied"`, `"name":"`+strings.Repeat("x", MaxDeniedName+1)+`","denied"`),
		"a negative count":    edit(`"denied":3`, `"denied":-3`),
		"an error above it":   edit(`"denied":3`, `"denied":3,"over":4`),
		"a count beyond sums": edit(`"denied":3`, `"denied":9223372036854775807`),
		"a negative total":    edit(`"total":3`, `"total":-3`),
		"too much":            string(data) + strings.Repeat(" ", maxDeniedBytes),
		"too many":            edit(`{"id"`, strings.Repeat(`{"id":"`+idOf(2)+`","denied":1},`, MaxDeniedIdentities)+`{"id"`),
	} {
		if got, err := DecodeDenied([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", name, got)
		}
	}
}
