package algorithm_test

import (
	"testing"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// BenchmarkTake is one decision on one counter under constant pressure, about half
// of which is admitted.
func BenchmarkTake(b *testing.B) {
	for _, limit := range []algorithm.Limit{
		{Algorithm: algorithm.TokenBucket, Requests: 100, Window: second},
		{Algorithm: algorithm.FixedWindow, Requests: 100, Window: second},
		{Algorithm: algorithm.SlidingWindowCounter, Requests: 100, Window: second},
		{Algorithm: algorithm.SlidingWindowLog, Requests: 100, Window: second},
	} {
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			b.ReportAllocs()
			var state algorithm.State
			now, admitted := 1_800_000_000*second, 0
			for b.Loop() {
				next, result := limit.Take(state, now, 1)
				if result.Allowed {
					admitted++
				}
				state = next
				now += 5 * ms
			}
			b.ReportMetric(float64(admitted)/float64(b.N), "admitted/op")
		})
	}
}

// BenchmarkMulDiv is the product that every other decision needs, within 64 bits
// and above.
func BenchmarkMulDiv(b *testing.B) {
	for name, n := range map[string][3]int64{
		"64 bits":  {100, 5 * ms, second},
		"128 bits": {999_999_937, 1_462_873_015_873, 31 * day},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				algorithm.MulDiv(n[0], n[1], n[2])
			}
		})
	}
}
