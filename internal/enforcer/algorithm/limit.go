// Package algorithm owns the pure arithmetic of the rate-limit algorithms.
package algorithm

// Algorithm names how a limit is counted.
type Algorithm uint8

const (
	TokenBucket Algorithm = iota
	FixedWindow
	SlidingWindowCounter
	SlidingWindowLog
)

// Limit is one limit in exact units.
type Limit struct {
	Algorithm Algorithm
	Requests  int64
	Window    int64 // µs
	Burst     int64 // TokenBucket only
}

// Result is what one limit says of a request.
type Result struct {
	Allowed     bool
	Satisfiable bool
	Remaining   int64
	RetryAfter  int64 // µs
	ResetAfter  int64 // µs
}
