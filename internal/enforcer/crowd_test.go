package enforcer

import "testing"

func TestCrowdFallsOnceItHasLasted(t *testing.T) {
	const second = 1_000_000
	type beat struct {
		at     int64 // in seconds
		count  int   // -1: it failed
		counts int   // what counts then
	}
	cases := map[string][]beat{
		"a rise counts at once":            {{0, 3, 3}, {5, 5, 5}},
		"a fall counts after 30 s":         {{0, 5, 5}, {5, 2, 5}, {25, 2, 5}, {30, 2, 2}},
		"two falls each last 30 s":         {{0, 5, 5}, {5, 3, 5}, {10, 2, 5}, {30, 2, 3}, {35, 2, 2}},
		"a fall and a rise in between":     {{0, 5, 5}, {5, 2, 5}, {10, 4, 5}, {30, 2, 4}, {40, 2, 2}},
		"an outage is not a fall":          {{0, 5, 5}, {5, -1, 5}, {60, -1, 5}, {65, 1, 5}, {70, 3, 5}, {75, 5, 5}},
		"a fall is held through an outage": {{0, 5, 5}, {5, 2, 5}, {10, -1, 5}, {35, 2, 5}, {40, 2, 2}},
		"nothing was heard yet":            {{0, -1, 0}, {5, 1, 1}},
	}
	for name, beats := range cases {
		t.Run(name, func(t *testing.T) {
			var c crowd
			for _, b := range beats {
				if b.count < 0 {
					c.miss(b.at * second)
				} else {
					c.hear(b.count, b.at*second)
				}
				if got := c.most(); got != b.counts {
					t.Errorf("at %d s: %d counts, want %d", b.at, got, b.counts)
				}
			}
		})
	}
}
