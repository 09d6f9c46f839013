//go:build race

package otellimit_test

// forgets is how many allocations the race detector may add to a decision: it makes a sync.Pool forget at random.
const forgets = 2
