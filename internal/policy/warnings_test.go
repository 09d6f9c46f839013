package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnmatchedRules(t *testing.T) {
	now := Revision{Epoch: "1", N: 2}
	row := Row{Revision: now, Rules: []RowRule{
		{Policy: "checkout", Name: "exports"}, {Policy: "checkout", Name: "smooth", Needs: []string{"later"}}, {Policy: "tiers", Name: "reports"},
	}}
	says := func(matched string, features ...string) Report {
		return Report{Revision: now, Matched: matched, Features: features}
	}
	exports, smooth, reports := RuleName{"checkout", "exports"}, RuleName{"checkout", "smooth"}, RuleName{"tiers", "reports"}
	cases := map[string]struct {
		members []Report
		want    []RuleName
		untold  bool
	}{
		"nobody reports":                          {untold: true},
		"all match":                               {members: []Report{says("mm")}},
		"one enforcer has too few requests":       {members: []Report{says("m?")}},
		"none matches in any":                     {members: []Report{says("nm"), says("nm")}, want: []RuleName{exports}},
		"none matches in one, too few in another": {members: []Report{says("nm"), says("??")}, want: []RuleName{exports}},
		"it matches in one":                       {members: []Report{says("nn"), says("mn")}, want: []RuleName{reports}},
		"an enforcer that does not tell":          {members: []Report{says("nn"), says("")}},
		"one that enforces a rule more":           {members: []Report{says("nnm", "later"), says("nm")}, want: []RuleName{exports, smooth}},
		"one that is behind":                      {members: []Report{says("nn"), {Revision: Revision{Epoch: "1", N: 1}, Matched: "mm"}}, untold: true},
		"letters of a later library":              {members: []Report{says("nX")}, want: []RuleName{exports}},
		"more and fewer letters than rules":       {members: []Report{says("n"), says("nnnnnn")}, want: []RuleName{exports, reports}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, told := UnmatchedRules(row, c.members)
			if diff := cmp.Diff(c.want, got); diff != "" || told == c.untold {
				t.Errorf("told %t (-want +got):\n%s", told, diff)
			}
		})
	}
}
