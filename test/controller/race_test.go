//go:build race

package controller

// buildFlags of the controller: it is checked for races when the tests are.
var buildFlags = []string{"-race"}
