//go:build race

package sim

// underRace: the race detector makes a schedule take ten times as long.
const underRace = true
