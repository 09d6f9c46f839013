//go:build race

package enforcer_test

// underRace: the race detector has pools forget things at random.
const underRace = true
