package controllers

import (
	"maps"
	"slices"

	"github.com/weir-dev/weir/internal/policy"
)

// standing is how far the pods of a workload are with one policy. Each live pod that reports is in one of the lists,
// which are sorted.
type standing struct {
	// current pods enforce the whole of this generation; old ones have it but skip a rule whose needs they do not know;
	// behind ones run an older row or none.
	current, old, behind []string
}

func (s standing) reporting() int { return len(s.current) + len(s.old) + len(s.behind) }

// standingOf reads the reports of the workload's members. since is the first revision that has the policy's generation,
// and needs are what an enforcer must know for it. A pod with several limiters is as far as the last of them.
func standingOf(since policy.Revision, needs []string, members []policy.Report) standing {
	const (
		current = iota
		old
		behind
	)
	pods := map[string]int{}
	for _, m := range members {
		is := current
		switch {
		case since.IsZero(), m.Revision.Compare(since) < 0:
			is = behind
		case slices.ContainsFunc(needs, func(need string) bool { return !slices.Contains(m.Features, need) }):
			is = old
		}
		pods[m.Pod] = max(pods[m.Pod], is)
	}
	var s standing
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		switch pods[pod] {
		case current:
			s.current = append(s.current, pod)
		case old:
			s.old = append(s.old, pod)
		default:
			s.behind = append(s.behind, pod)
		}
	}
	return s
}

// needsOf collects what an enforcer must know for all rules of a policy.
func needsOf(row policy.Row, name string) []string {
	var needs []string
	for _, rule := range row.Rules {
		if rule.Policy == name {
			needs = append(needs, rule.Needs...)
		}
	}
	return needs
}
