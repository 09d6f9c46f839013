package controllers

import (
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

func TestReadyHistory(t *testing.T) {
	type observation struct {
		after   time.Duration
		ready   int
		settled int
		changes time.Duration // from now; 0 for never
	}
	cases := map[string][]observation{
		"what is met first has been so for ever": {{0, 3, 3, 0}},
		"new pods settle after 15 s": {
			{0, 3, 3, 0},
			{time.Minute, 5, 3, 15 * time.Second},
			{14 * time.Second, 5, 3, time.Second},
			{time.Second, 5, 5, 0},
		},
		"pods that are gone are not expected": {
			{0, 5, 5, 0},
			{time.Minute, 2, 2, 15 * time.Second},
			{15 * time.Second, 2, 2, 0},
		},
		"a dip is remembered for 15 s after it ended": {
			{0, 3, 3, 0},
			{time.Minute, 1, 1, 15 * time.Second},
			{2 * time.Second, 3, 1, 13 * time.Second},
			{13 * time.Second, 3, 1, 2 * time.Second},
			{2 * time.Second, 3, 3, 0},
		},
		"a workload that starts": {
			{0, 0, 0, 0},
			{time.Second, 3, 0, 15 * time.Second},
			{15 * time.Second, 3, 3, 0},
		},
	}
	for name, observations := range cases {
		t.Run(name, func(t *testing.T) {
			now := testTime
			var h readyHistory
			for i, o := range observations {
				now = now.Add(o.after)
				h = h.observe(o.ready, now)
				if got := h.settled(); got != o.settled {
					t.Errorf("observation %d: %d settled, want %d", i, got, o.settled)
				}
				if got := wait(now, h.changes()); got != o.changes {
					t.Errorf("observation %d: changes after %v, want %v", i, got, o.changes)
				}
			}
		})
	}
}

func TestReportHistory(t *testing.T) {
	now := testTime
	var h reportHistory
	for _, step := range []struct {
		what    string
		after   time.Duration
		pods    string
		joined  int
		changes time.Duration // from now; 0 for never
	}{
		{"those of the first look have reported for ever", 0, "abc", 0, 0},
		{"two joined", time.Minute, "abcde", 2, 15 * time.Second},
		{"another one, later", 5 * time.Second, "abcdef", 3, 10 * time.Second},
		{"one that left is forgotten", 5 * time.Second, "abcdf", 2, 5 * time.Second},
		{"the first has settled", 5 * time.Second, "abcdf", 1, 5 * time.Second},
		{"all have", 5 * time.Second, "abcdf", 0, 0},
		{"one that comes back joins anew", time.Second, "abcdef", 1, 15 * time.Second},
	} {
		now = now.Add(step.after)
		var members []policy.Report
		for _, pod := range step.pods {
			members = append(members, policy.Report{Member: string(pod) + "/1", Pod: string(pod)})
		}
		h = h.observe(members, now)
		joined, at := h.joined(now)
		if joined != step.joined || wait(now, at) != step.changes {
			t.Errorf("%s: %d joined, changes in %v; want %d and %v", step.what, joined, wait(now, at), step.joined, step.changes)
		}
	}
}
