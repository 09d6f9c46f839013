// Package redisstore owns everything that knows Redis: the names of keys, the scripts, the counters of enforcers
// (Store), the enforcer's side of the policy table (Member) and the controller's (Table).
//
// A Take is one round trip and one script. No command is ever sent twice, except a script that the server did not know
// and therefore did not run.
package redisstore
