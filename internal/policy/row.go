package policy

// RowVersion is the version of the row's encoding that this code writes. Within a version the encoding only grows:
// a reader ignores fields that it does not know and skips rules whose needs it does not know.
const RowVersion = 1

// MaxRowBytes bounds an encoded row.
const MaxRowBytes = 512 << 10

// MaxRules bounds the rules of one workload, over all of its policies.
const MaxRules = 64

// Row is all that an enforcer needs to know about one workload: its policies, compiled, with every default applied.
// A Row without rules is a tombstone: the workload had limits and has none now.
type Row struct {
	Version  int    `json:"v"`
	Workload string `json:"workload"`
	// Owner is the installation that wrote the row.
	Owner    string   `json:"owner"`
	Revision Revision `json:"revision"`
	// PolicyList is the resourceVersion of the list of policies that the row was compiled from; empty for a file.
	PolicyList string      `json:"policyList,omitempty"`
	Policies   []RowPolicy `json:"policies"`
	Rules      []RowRule   `json:"rules"`
}

// Revision orders the rows of one workload: the epoch of the leader that wrote it, then its count of writes.
type Revision struct {
	Epoch string `json:"epoch"`
	N     int64  `json:"n"`
}

// RowPolicy is what the rules of one policy share.
type RowPolicy struct {
	Name       string      `json:"name"`
	UID        string      `json:"uid"`
	Generation int64       `json:"generation"`
	Evaluation Evaluation  `json:"evaluation"`
	Exempt     []Exemption `json:"exempt,omitempty"`
}

// RowRule is one rule with its defaults applied. Rules of one policy stand together, in the order of the policy.
type RowRule struct {
	Policy string `json:"policy"`
	Name   string `json:"name"`
	// Needs names features beyond version 1 that an enforcer must know to enforce this rule.
	Needs          []string       `json:"needs,omitempty"`
	Mode           Mode           `json:"mode"`
	Match          []Match        `json:"match,omitempty"`
	Key            []KeyPart      `json:"key,omitempty"`
	WhenKeyMissing WhenKeyMissing `json:"whenKeyMissing"`
	Limits         []RowLimit     `json:"limits"`
	Overrides      []RowOverride  `json:"overrides,omitempty"`
	Cost           *Cost          `json:"cost,omitempty"`
	OnStoreFailure OnStoreFailure `json:"onStoreFailure"`
	Rounding       Rounding       `json:"rounding,omitempty"`
	// Lease is the tokens of a lease, and Prefilter the multiple of a share that is let pass; 0 is none. They are no
	// needs: a library that knows neither asks the store for every request, which is exact.
	Lease     int64 `json:"lease,omitempty"`
	Prefilter int64 `json:"prefilter,omitempty"`
}

// RowLimit is one limit in exact units.
type RowLimit struct {
	// ID is a short hash of workload, policy name, rule, algorithm, window and state format: what makes a counter
	// this limit's. It does not depend on Requests or Burst, so a changed number keeps its counters.
	ID        string    `json:"id"`
	Algorithm Algorithm `json:"algorithm"`
	Requests  int64     `json:"requests"`
	Window    int64     `json:"window"`          // µs
	Burst     int64     `json:"burst,omitempty"` // TokenBucket only
}

// RowOverride is an override in exact units. Its limits share the IDs, and so the counters, of limits of the rule
// that have the same algorithm and window.
type RowOverride struct {
	When      AttributeMatch `json:"when"`
	Limits    []RowLimit     `json:"limits,omitempty"`
	Unlimited bool           `json:"unlimited,omitempty"`
}

// CompareEpochs orders two epochs, which are decimal strings: longer wins, then bytes.
func CompareEpochs(a, b string) int {
	switch {
	case len(a) != len(b):
		if len(a) < len(b) {
			return -1
		}
		return 1
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Compare orders two revisions of one workload: -1 when r is older than o, 0 when equal, 1 when newer.
func (r Revision) Compare(o Revision) int {
	if c := CompareEpochs(r.Epoch, o.Epoch); c != 0 {
		return c
	}
	switch {
	case r.N < o.N:
		return -1
	case r.N > o.N:
		return 1
	}
	return 0
}

// IsZero says that there is no revision.
func (r Revision) IsZero() bool { return r == Revision{} }
