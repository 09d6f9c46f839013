//go:build !race

package enforcer_test

const forgets = 0
