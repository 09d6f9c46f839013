// Package policy owns the language that every part of Weir shares: the spec of a RateLimitPolicy as plain types, its
// validation and compilation into a row of the policy table, the row's versioned encoding, matching, live replica
// counts and local shares.
//
// Everything here is pure: no log, no metric, no clock, no client. The controller, the enforcer, the CLI and scenario
// files all use this one Compile and this one matcher, so that they cannot disagree.
package policy
