package policy

import "time"

// Policy is a RateLimitPolicy as plain types: what the API server, a policy file or a scenario holds.
// Its JSON form is the resource's; package api converts by JSON.
type Policy struct {
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata is the part of an object's metadata that Weir reads.
type Metadata struct {
	Namespace         string    `json:"namespace,omitempty"`
	Name              string    `json:"name"`
	UID               string    `json:"uid,omitempty"`
	Generation        int64     `json:"generation,omitempty"`
	CreationTimestamp time.Time `json:"creationTimestamp,omitzero"`
}

// Spec is what the user wrote. Absent fields stay absent: Compile applies the defaults, never the schema.
type Spec struct {
	TargetRef TargetRef `json:"targetRef"`
	// Evaluation is All (default) or FirstMatch.
	Evaluation Evaluation `json:"evaluation,omitempty"`
	// Mode is Enforce (default) or Shadow; rules inherit it.
	Mode Mode `json:"mode,omitempty"`
	// OnStoreFailure is LocalShare (default), FailOpen or FailClosed; rules inherit it.
	OnStoreFailure OnStoreFailure `json:"onStoreFailure,omitempty"`
	// Snapshot is None (default) or ConfigMap. One policy that asks is enough for the whole workload.
	Snapshot SnapshotMode `json:"snapshot,omitempty"`
	// Exempt requests are never charged and never denied by this policy.
	Exempt []Exemption `json:"exempt,omitempty"`
	Rules  []Rule      `json:"rules"`
}

// TargetRef names the workload, in the policy's own namespace.
type TargetRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// Evaluation says which of the matching rules of a policy apply.
type Evaluation string

// The values of Evaluation; All is the default.
const (
	EvaluationAll        Evaluation = "All"
	EvaluationFirstMatch Evaluation = "FirstMatch"
)

// Mode says whether a rule denies or only counts.
type Mode string

// The values of Mode; Enforce is the default.
const (
	ModeEnforce Mode = "Enforce"
	ModeShadow  Mode = "Shadow"
)

// OnStoreFailure says who answers when the store cannot.
type OnStoreFailure string

// The values of OnStoreFailure; LocalShare is the default.
const (
	OnStoreFailureLocalShare OnStoreFailure = "LocalShare"
	OnStoreFailureFailOpen   OnStoreFailure = "FailOpen"
	OnStoreFailureFailClosed OnStoreFailure = "FailClosed"
)

// SnapshotMode says where a copy of the workload's row is kept beside the policy table.
type SnapshotMode string

// The values of SnapshotMode; None is the default.
const (
	SnapshotNone      SnapshotMode = "None"
	SnapshotConfigMap SnapshotMode = "ConfigMap"
)

// WhenKeyMissing says what happens to a request that lacks a part of the rule's key.
type WhenKeyMissing string

// The values of WhenKeyMissing; ClientIP is the default.
const (
	WhenKeyMissingClientIP  WhenKeyMissing = "ClientIP"
	WhenKeyMissingAnonymous WhenKeyMissing = "Anonymous"
	WhenKeyMissingDeny      WhenKeyMissing = "Deny"
	WhenKeyMissingSkip      WhenKeyMissing = "Skip"
)

// Rounding says how a local share is rounded while replicas come and go.
type Rounding string

// The values of Rounding; NeverZero is the default.
const (
	RoundingNeverZero   Rounding = "NeverZero"
	RoundingNeverExceed Rounding = "NeverExceed"
)

// Algorithm names how a limit is counted.
type Algorithm string

// The values of Algorithm; TokenBucket is the default.
const (
	TokenBucket          Algorithm = "TokenBucket"
	FixedWindow          Algorithm = "FixedWindow"
	SlidingWindowCounter Algorithm = "SlidingWindowCounter"
	SlidingWindowLog     Algorithm = "SlidingWindowLog"
)

// Exemption describes requests by methods, route and pathPrefix; all that are set must hold, and at least one is set.
type Exemption struct {
	Methods    []string `json:"methods,omitempty"`
	Route      string   `json:"route,omitempty"`
	PathPrefix string   `json:"pathPrefix,omitempty"`
}

// Match describes requests; all that are set must hold, and at least one is set.
type Match struct {
	// Methods are upper case; GET includes HEAD.
	Methods []string `json:"methods,omitempty"`
	// Route is a template in ServeMux path form, without method and host, for example /users/{id}.
	Route string `json:"route,omitempty"`
	// PathPrefix compares whole segments: /api holds for /api and /api/x, not for /apix.
	PathPrefix string        `json:"pathPrefix,omitempty"`
	Headers    []HeaderMatch `json:"headers,omitempty"`
}

// HeaderMatch holds when one line of the header has exactly this value.
type HeaderMatch struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Rule is one list of limits with the requests that it applies to and the identity that it counts by.
type Rule struct {
	Name string `json:"name"`
	// Match is a list of alternatives; absent, the rule matches every request.
	Match []Match `json:"match,omitempty"`
	// Key is a list of parts that together are the identity; absent, the whole workload is one identity.
	Key            []KeyPart      `json:"key,omitempty"`
	WhenKeyMissing WhenKeyMissing `json:"whenKeyMissing,omitempty"` // default ClientIP
	Limits         []Limit        `json:"limits"`
	// Overrides are other numbers for some callers, by attributes; the first that holds replaces Limits.
	Overrides      []Override     `json:"overrides,omitempty"`
	Cost           *Cost          `json:"cost,omitempty"` // default 1 per request
	LocalShare     *LocalShare    `json:"localShare,omitempty"`
	Lease          *Lease         `json:"lease,omitempty"`     // default none
	Prefilter      *Prefilter     `json:"prefilter,omitempty"` // default none
	Mode           Mode           `json:"mode,omitempty"`
	OnStoreFailure OnStoreFailure `json:"onStoreFailure,omitempty"`
}

// KeyPart is one part of an identity; exactly one field is set.
type KeyPart struct {
	Header    string     `json:"header,omitempty"`
	Attribute string     `json:"attribute,omitempty"`
	ClientIP  *ClientIP  `json:"clientIP,omitempty"`
	Request   RequestKey `json:"request,omitempty"`
	// FirstOf takes the first part that the request has. Its items are not FirstOf themselves.
	FirstOf []KeyPart `json:"firstOf,omitempty"`
}

// ClientIP masks the client's address.
type ClientIP struct {
	IPv4PrefixLength *int32 `json:"ipv4PrefixLength,omitempty"` // default 32
	IPv6PrefixLength *int32 `json:"ipv6PrefixLength,omitempty"` // default 64
}

// RequestKey names a property of the request itself.
type RequestKey string

// The values of RequestKey.
const (
	RequestKeyRoute  RequestKey = "Route"
	RequestKeyMethod RequestKey = "Method"
)

// Limit is what the user wrote of one limit: a number of requests in a window.
type Limit struct {
	// Requests is how many are admitted in a window; 0 denies everything. Nil is refused: a number that was forgotten
	// must not deny everything.
	Requests  *int64    `json:"requests"`
	Window    string    `json:"window"`              // a GEP-2257 duration, kept byte for byte
	Algorithm Algorithm `json:"algorithm,omitempty"` // default TokenBucket
	Burst     *int64    `json:"burst,omitempty"`     // TokenBucket only; default Requests
}

// Override replaces the limits of its rule for requests whose attributes hold; same counters, other numbers.
type Override struct {
	When      AttributeMatch `json:"when"`
	Limits    []Limit        `json:"limits,omitempty"`
	Unlimited bool           `json:"unlimited,omitempty"`
}

// AttributeMatch holds when the attribute has one of the values.
type AttributeMatch struct {
	Attribute string   `json:"attribute"`
	Values    []string `json:"values"`
}

// Cost reads the price of a request from an attribute; a value that is absent, not a whole number, or below 1 is 1,
// and one above Max is Max.
type Cost struct {
	Attribute string `json:"attribute"`
	Max       int64  `json:"max"`
}

// LocalShare tunes what a replica admits on its own while the store is away.
type LocalShare struct {
	Rounding Rounding `json:"rounding,omitempty"` // default NeverZero
}

// Lease lets a replica take several requests of one identity at once.
type Lease struct {
	Tokens int64 `json:"tokens"`
}

// Prefilter has each replica refuse what is above a multiple of its share before the store is asked.
type Prefilter struct {
	Multiple int64 `json:"multiple"`
}

// Workload is what the policy targets.
func (p Policy) Workload() Workload {
	t := p.Spec.TargetRef
	return Workload{Namespace: p.Metadata.Namespace, Group: t.Group, Kind: t.Kind, Name: t.Name}
}
