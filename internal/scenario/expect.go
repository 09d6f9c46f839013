package scenario

import "github.com/weir-dev/weir/internal/enforcer"

// Expect is what must come. Beside a Send: all fields but Status and Share; alone: only these.
type Expect struct {
	// Admitted and Denied are numbers of requests.
	Admitted *Number `json:"admitted"`
	Denied   *Number `json:"denied"`
	// Decisions are A for an admitted and D for a denied request, in order.
	Decisions string `json:"decisions"`
	// First and Last are about the first and the last request.
	First *DecisionFields `json:"first"`
	Last  *DecisionFields `json:"last"`
	// Sources are how many decisions came from where. Those that are not named are not looked at.
	Sources map[Source]Number `json:"sources"`
	// Charged is by rule what the store was charged, refunds taken off.
	Charged map[string]Number `json:"charged"`

	// Status is about fields of a policy's status, as the controller would write them.
	Status *StatusFields `json:"status"`
	// Share is about what a replica would admit on its own.
	Share *ShareFields `json:"share"`
}

// Number is an exact number or bounds of one.
type Number struct {
	Exactly *int64
	AtLeast *int64 `json:"atLeast"`
	AtMost  *int64 `json:"atMost"`
}

// DecisionFields are fields of one decision; those that are absent are not looked at.
type DecisionFields struct {
	Allowed *bool `json:"allowed"`
	// Status is the HTTP status.
	Status *int `json:"status"`
	// Rule that decided, as namespace/policy/rule, policy/rule or rule; "" for none.
	Rule       *string   `json:"rule"`
	Limit      *int64    `json:"limit"`
	Remaining  *int64    `json:"remaining"`
	RetryAfter *Duration `json:"retryAfter"`
	ResetAfter *Duration `json:"resetAfter"`
	Source     *Source   `json:"source"`
	// Headers of the response; "" says that there is none.
	Headers map[string]string `json:"headers"`
}

// Source says who decided.
type Source string

// Supported implements manifest.Enum.
func (Source) Supported() []string {
	return []string{
		enforcer.SourceStore, enforcer.SourceLease, enforcer.SourceDenyCache, enforcer.SourcePrefilter,
		enforcer.SourceLocalShare, enforcer.SourceFailOpen, enforcer.SourceFailClosed, enforcer.SourceExempt, enforcer.SourceNoRule, enforcer.SourceKeyMissing,
	}
}

// StatusFields are fields of the status of one policy; those that are absent are not looked at.
type StatusFields struct {
	// Policy by its name. Default: the first one.
	Policy             string            `json:"policy"`
	Conditions         []ConditionFields `json:"conditions"`
	ObservedGeneration *int64            `json:"observedGeneration"`
	Replicas           *ReplicaFields    `json:"replicas"`
	Enforcers          *EnforcerFields   `json:"enforcers"`
}

// ConditionFields are fields of one condition.
type ConditionFields struct {
	Type string `json:"type"` // required
	// Status is True, False or Unknown; Absent says that there is no such condition.
	Status  ConditionStatus `json:"status"`
	Reason  string          `json:"reason"`
	Message string          `json:"message"`
}

// ConditionStatus is a status of a condition.
type ConditionStatus string

// ConditionAbsent says that there is no such condition.
const ConditionAbsent ConditionStatus = "Absent"

// Supported implements manifest.Enum.
func (ConditionStatus) Supported() []string {
	return []string{"True", "False", "Unknown", string(ConditionAbsent)}
}

// ReplicaFields are the fields of status.replicas.
type ReplicaFields struct {
	Counted     *int64 `json:"counted"`
	Ready       *int64 `json:"ready"`
	Desired     *int64 `json:"desired"`
	Terminating *int64 `json:"terminating"`
}

// EnforcerFields are the fields of status.enforcers.
type EnforcerFields struct {
	Reporting *int64  `json:"reporting"`
	Current   *int64  `json:"current"`
	Summary   *string `json:"summary"`
}

// ShareFields are about what one replica would admit on its own of a rule's first limit.
type ShareFields struct {
	Replica int    `json:"replica"`
	Rule    string `json:"rule"` // required
	// Key are the values of the parts of the rule's key: which replicas have the parts of a remainder differs from key
	// to key. Default: what is sure for every key.
	Key      Lines     `json:"key"`
	Requests *int64    `json:"requests"`
	Window   *Duration `json:"window"`
	Burst    *int64    `json:"burst"`
}
