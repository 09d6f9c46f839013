package chaos

import (
	"strings"
	"testing"

	"github.com/weir-dev/weir/internal/policy"
)

// decided makes a run of five replicas and windows of 2 s: calm in the first, away from the middle of the second to the
// middle of the fourth. admit says how many each replica admits of a window.
func decided(mode policy.OnStoreFailure, admit func(replica int, window int64) int) *run {
	const window = 2_000_000
	r := &run{
		mode: mode, window: window, limit: func(int64) int64 { return 100 }, bound: switching, away: true,
		injected: 1.5 * window, healed: 3.5 * window, ended: 5 * window,
	}
	for i := range 5 {
		var records []Record
		for w := range int64(5) {
			for n := range 50 {
				began := w*window + int64(n)*window/50
				source := "Store"
				if began >= r.injected && began < r.healed {
					source = string(mode)
				}
				records = append(records, Record{
					Key: keyEven, Began: began, Took: 1000, Source: source, Allowed: n < admit(i, w),
					Limit: 100, Remaining: max(0, 100-5*int64(n+1)), Resets: (w+1)*window - began,
				})
			}
		}
		r.records = append(r.records, records)
	}
	return r
}

func TestTheJudgeTellsRightFromWrong(t *testing.T) {
	share := func(int, int64) int { return 20 }
	cases := map[string]struct {
		mode   policy.OnStoreFailure
		admit  func(replica int, window int64) int
		broken string // a part of what is found; nothing is found when it is empty
	}{
		"all replicas admit their shares":                           {policy.OnStoreFailureLocalShare, share, ""},
		"a limiter that denies everything":                          {policy.OnStoreFailureLocalShare, func(int, int64) int { return 0 }, "0 admitted in window +1, want 50 to 100"},
		"one request too many while the store is away":              {policy.OnStoreFailureLocalShare, func(i int, w int64) int { return map[bool]int{false: 20, true: 21}[i == 3 && w == 2] }, "101 admitted in window +1"},
		"one request too many of a budget that all have seen spent": {policy.OnStoreFailureLocalShare, func(i int, w int64) int { return map[bool]int{false: 20, true: 21}[i == 3 && w == 1] }, "101 admitted in window +0"},
		"one request too many when nothing is wrong":                {policy.OnStoreFailureLocalShare, func(i int, w int64) int { return map[bool]int{false: 20, true: 21}[i == 3 && w == 0] }, "101 admitted in window -1"},
		"one request too few when nothing is wrong":                 {policy.OnStoreFailureLocalShare, func(i int, w int64) int { return map[bool]int{false: 20, true: 19}[i == 3 && w == 0] }, "99 admitted in window -1"},
		"FailOpen that denies":                                      {policy.OnStoreFailureFailOpen, share, "100 admitted in window +1, want 250 to 250"},
		"FailClosed that admits":                                    {policy.OnStoreFailureFailClosed, share, "100 admitted in window +1, want 0 to 0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			row := decided(c.mode, c.admit).judge()
			switch found := strings.Join(row.Broken, "\n"); {
			case c.broken == "" && found != "":
				t.Errorf("found fault with a right run:\n%s", found)
			case !strings.Contains(found, c.broken):
				t.Errorf("found %q, want %q", found, c.broken)
			}
		})
	}
}

func TestReplicasKeptFromTheStoreInTheWindowOfTheSwitch(t *testing.T) {
	r := decided(policy.OnStoreFailureLocalShare, func(i int, w int64) int { return map[bool]int{false: 20, true: 40}[i == 3 && w == 1] })
	if found := r.judge().Broken; len(found) != 1 {
		t.Errorf("found %q, want one window that holds too many", found)
	}
	for i := range r.records[3] {
		if d := &r.records[3][i]; r.at(d.Began) == 1 && d.Began < r.window+r.window/4 {
			d.Source = string(policy.OnStoreFailureLocalShare)
		}
	}
	if found := r.judge().Broken; len(found) != 0 {
		t.Errorf("one of five went without the store before the fault, which allows 20 more: found %q", found)
	}
}

func TestTheBoundOfTheSwitch(t *testing.T) {
	r := decided(policy.OnStoreFailureLocalShare, func(int, int64) int { return 20 })
	r.records[1], r.records[2] = nil, nil // two that never heard of the key: (100 + 100)/5 + 5
	if got := switching(r, keyEven, 1); got != 45 {
		t.Errorf("beyond the limit in the window of the switch: %d, want 45", got)
	}
	if got := switching(r, keyEven, 2); got != 0 {
		t.Errorf("beyond the limit in the window after it: %d, want 0", got)
	}
}
