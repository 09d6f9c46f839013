// Package scenario owns policy scenario files: unit tests for rate limits. A file says which requests come when, what
// happens to the store and the replicas meanwhile, and what must be admitted. It runs on a virtual clock, so a day
// passes in a moment and every count is exact, through the same compiler, row and enforcer as in production.
//
// Load reads the files, whose format docs/schema/scenario.schema.json describes to editors, and a Runner runs them. A
// run has one enforcer for each replica, whose waits and deadlines go by the virtual clock ([enforcer.Runtime]); one
// store that they share, in memory or real, through a layer that makes its faults; and a policy table, controller and
// kubelet of which only the pure parts are real.
package scenario
