package policy

import "slices"

const (
	// UnmatchedAfter is how many requests an enforcer must have decided before it says of a rule that none matches it.
	UnmatchedAfter = 1000
	// ForwardedIgnoredAfter is how many requests with an X-Forwarded-For that is not believed make a report say so.
	ForwardedIgnoredAfter = 100
)

// The letters of Report.Matched. Readers take any other one for MatchUnknown.
const (
	Matched      = 'm' // a request has matched the rule since it has the match that it has
	Unmatched    = 'n' // none has, of UnmatchedAfter or more
	MatchUnknown = '?' // none has, of fewer
)

// RuleName names one rule of a row.
type RuleName struct{ Policy, Rule string }

// UnmatchedRules are the rules of a row that no request matches: an enforcer says so, and none says that one did. It is
// not told while an enforcer runs another row. An enforcer whose library does not tell may have matched everything.
func UnmatchedRules(row Row, members []Report) (rules []RuleName, told bool) {
	var matched, unmatched [MaxRules]bool
	for i := range members {
		if members[i].Revision != row.Revision {
			return nil, false
		}
		place := 0 // among the rules that this one enforces
		for j := range min(len(row.Rules), MaxRules) {
			if slices.ContainsFunc(row.Rules[j].Needs, func(need string) bool { return !slices.Contains(members[i].Features, need) }) {
				continue
			}
			letter := byte(Matched)
			if members[i].Matched != "" {
				letter = MatchUnknown
			}
			if place < len(members[i].Matched) {
				letter = members[i].Matched[place]
			}
			matched[j] = matched[j] || letter == Matched
			unmatched[j] = unmatched[j] || letter == Unmatched
			place++
		}
	}
	for j := range min(len(row.Rules), MaxRules) {
		if unmatched[j] && !matched[j] {
			rules = append(rules, RuleName{row.Rules[j].Policy, row.Rules[j].Name})
		}
	}
	return rules, len(members) > 0
}
