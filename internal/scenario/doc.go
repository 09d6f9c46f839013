// Package scenario owns policy scenario files: unit tests for rate limits. It reads them strictly, runs them on a virtual
// clock through the same compile, row and enforcer as production, one enforcer for each replica, and says where what came
// differs from what was expected.
package scenario
