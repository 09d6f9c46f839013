//go:build !race

package otellimit_test

const forgets = 0
