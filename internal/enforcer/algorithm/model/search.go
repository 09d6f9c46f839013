package model

import (
	"math/big"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// first returns the lowest d from 0 to MaxWait − 1 for which holds is true, and
// MaxWait if there is none. Once true, holds must stay true.
func first(holds func(d int64) bool) int64 {
	low, high := int64(-1), int64(0) // holds is false at low
	for !holds(high) {
		low = high
		if high = 2*high + 1; high >= algorithm.MaxWait {
			high = algorithm.MaxWait
			break
		}
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		if holds(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// isFirst reports whether d is what first would return.
func isFirst(d int64, holds func(d int64) bool) bool {
	if d < 0 || d > algorithm.MaxWait {
		return false
	}
	return (d == 0 || !holds(d-1)) && (d == algorithm.MaxWait || holds(d))
}

func integer(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func positive(r *big.Rat) *big.Rat {
	if r.Sign() < 0 {
		return new(big.Rat)
	}
	return r
}

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// floor rounds down a number that is not negative and fits an int64.
func floor(r *big.Rat) int64 {
	return new(big.Int).Quo(r.Num(), r.Denom()).Int64()
}
