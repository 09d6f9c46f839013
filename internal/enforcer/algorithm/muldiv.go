package algorithm

import "math/bits"

// MulDiv returns ⌊a·b/m⌋ and a·b mod m, for a, b ≥ 0 and m > 0. The product is
// held in 128 bits, so both are exact; a quotient above [MaxWait] is returned as
// MaxWait, and the rest stays exact.
//
// Products leave the 53 bits of a double early: 1e9 requests in 31 days make
// 2.7e21, and 2^53 is 9.0e15.
func MulDiv(a, b, m int64) (q, r int64) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	divisor := uint64(m)
	if high == 0 {
		quotient := low / divisor
		return int64(min(quotient, MaxWait)), int64(low - quotient*divisor)
	}
	if high >= divisor { // a quotient of 2^64 or more
		return MaxWait, int64(bits.Rem64(high, low, divisor))
	}
	quotient, rest := bits.Div64(high, low, divisor)
	return int64(min(quotient, MaxWait)), int64(rest)
}
