package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// sharesOf is what each of n replicas admits of each limit on its own.
func sharesOf(row policy.Row, n int) []shareStatus {
	var all []shareStatus
	for i := range row.Rules {
		rule := &row.Rules[i]
		for _, l := range rule.Limits {
			all = append(all, shareStatus{
				Rule: rule.Policy + "/" + rule.Name, Limit: limitText(l), OnStoreFailure: rule.OnStoreFailure,
				Each: eachReplica(rule.OnStoreFailure, l, rule.Rounding, maxCostOf(rule), n, 0),
			})
		}
	}
	return all
}

func maxCostOf(rule *policy.RowRule) int64 {
	if rule.Cost == nil {
		return 1
	}
	return rule.Cost.Max
}

// eachReplica writes what each of n replicas admits on its own for an identity, equal ones together: "2 × 4, 1 × 3".
func eachReplica(on policy.OnStoreFailure, l policy.RowLimit, rounding policy.Rounding, maxCost int64, n int, turn uint64) string {
	switch on {
	case policy.OnStoreFailureFailOpen:
		return "everything"
	case policy.OnStoreFailureFailClosed:
		return "nothing (503)"
	case policy.OnStoreFailureLocalShare:
	}
	var texts []string
	count := map[string]int{}
	for rank := range n {
		share := limitText(policy.ShareOf(l, maxCost, rounding, policy.Replica{Rank: rank, N: n, Exact: true}, turn))
		if count[share] == 0 {
			texts = append(texts, share)
		}
		count[share]++
	}
	slices.SortStableFunc(texts, func(a, b string) int { return count[b] - count[a] })
	for i, text := range texts {
		if n > 1 {
			texts[i] = fmt.Sprintf("%d × %s", count[text], text)
		}
	}
	return strings.Join(texts, ", ")
}

// limitText writes a limit as people say it: "5 per 1m", and what is not the default.
func limitText(l policy.RowLimit) string {
	text := fmt.Sprintf("%d per %s", l.Requests, shortDuration(time.Duration(l.Window)*time.Microsecond))
	if l.Algorithm != policy.TokenBucket {
		return text + " " + string(l.Algorithm)
	}
	if l.Burst != l.Requests {
		return fmt.Sprintf("%s, burst %d", text, l.Burst)
	}
	return text
}
