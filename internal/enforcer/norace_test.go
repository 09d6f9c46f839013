//go:build !race

package enforcer_test

const underRace = false
