package policy

// Report is what one live enforcer says of itself with each heartbeat. A member is a pod's name and the nonce of one
// limiter in it: "checkout-7d4b9-x2x8v/1f3a9c20".
type Report struct {
	Member string `json:"-"`
	Pod    string `json:"pod"`
	// Revision is the row in force in this enforcer; zero when none is.
	Revision Revision `json:"revision"`
	// Library is the version of the library; Features are the needs that it knows.
	Library  string   `json:"library"`
	Features []string `json:"features,omitempty"`
	// Skipped counts the rules of the row in force that it does not enforce, because it does not know their needs.
	Skipped int `json:"skipped,omitempty"`
	// Matched has a letter for each rule that it enforces, in the order of the row: Matched, Unmatched or MatchUnknown.
	// Each letter changes twice at most while the rule stays. Empty from a library that does not tell.
	Matched string `json:"matched,omitempty"`
	// ForwardedIgnored says that X-Forwarded-For of peers with private addresses was ignored, ForwardedIgnoredAfter times
	// or more: a proxy may be missing among those that are trusted.
	ForwardedIgnored bool `json:"forwardedIgnored,omitempty"`
	// Started is when the enforcer started, in µs on the store's clock.
	Started int64 `json:"started"`
}

// Replicas is the live count of a workload and its history, kept beside the row and without a revision, so that
// scaling does not rewrite policies.
type Replicas struct {
	Version int `json:"v"`
	// N is the number of replicas that shares are computed for, never below 1.
	N           int `json:"n"`
	Ready       int `json:"ready"`
	Desired     int `json:"desired"`
	Terminating int `json:"terminating"`
	// At is when N or MembersVersion last changed, in µs of the writer's clock, and later than the count before in any
	// case: of two counts the later one is the newer. MembersVersion is the version of the members then.
	At             int64 `json:"at"`
	MembersVersion int64 `json:"membersVersion"`
	// RaisedTo was asked for at RaisedAt: for 60 s N is at least that. Zero when nothing is pending.
	RaisedTo int   `json:"raisedTo,omitempty"`
	RaisedAt int64 `json:"raisedAt,omitempty"`
	// Serving is the number of pods that serve, without what RaisedTo and Falls add to it.
	Serving int `json:"serving,omitempty"`
	// Falls are the higher counts of the last 30 s, highest first: N is not below them yet.
	Falls []Fall `json:"falls,omitempty"`
	// Wanted is max(spec.replicas, status.replicas) when this was written: a rise is seen against it.
	Wanted int `json:"wanted,omitempty"`
	// UID is the target's, so that a recreated workload starts anew.
	UID string `json:"uid,omitempty"`
	// IdleSince is when the last replica went, zero while there is one.
	IdleSince int64 `json:"idleSince,omitempty"`
}

// Fall is a count that ended: at At, in µs, fewer than From pods served.
type Fall struct {
	From int   `json:"from"`
	At   int64 `json:"at"`
}
