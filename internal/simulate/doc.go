// Package simulate owns the replay of access logs against policies: who would have been denied, when, and how that
// changes with the limits.
//
// A replay decides as a pod does, by the compiled row, the enforcer and the store in memory, on a clock that stands at
// the time of the line that was read last. Logs are read as a stream, and everything that is kept is bounded.
package simulate
