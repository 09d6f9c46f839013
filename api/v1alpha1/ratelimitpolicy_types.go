package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RateLimitPolicy limits the requests that one workload serves. The limits are
// enforced inside the workload's own pods and mean the same number however many
// replicas run.
//
// All policies of a workload add up: every rule of every accepted policy
// applies and the strictest answer wins, so that another policy can only
// tighten. A workload can have up to 64 rules over all of its policies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rlp,categories=weir
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`,description="The workload that the policy limits"
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas.counted`,description="The live replicas that local shares are computed for"
// +kubebuilder:printcolumn:name="Enforced",type=string,JSONPath=`.status.enforcers.summary`,description="Pods that enforce this generation, of those that should"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.revision`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
type RateLimitPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the metadata that every object has.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the policy asks for.
	// +required
	Spec RateLimitPolicySpec `json:"spec,omitzero"`

	// status is what the controller and the pods report. Until the controller has
	// seen the policy, its observedGeneration is -1.
	// +default={"observedGeneration": -1}
	// +optional
	Status RateLimitPolicyStatus `json:"status,omitzero"`
}

// RateLimitPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type RateLimitPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RateLimitPolicy `json:"items"`
}

// RateLimitPolicySpec is what a policy asks for.
//
// +kubebuilder:validation:XValidation:rule="!has(self.evaluation) || self.evaluation != 'FirstMatch' || self.rules.all(r, has(r.match) || r.name == self.rules[self.rules.size() - 1].name)",fieldPath=".rules",message="under FirstMatch only the last rule may be without match: rules behind it would never be reached"
type RateLimitPolicySpec struct {
	// targetRef names the workload whose pods enforce the policy. It is in the
	// policy's own namespace. It need not exist yet.
	// +required
	TargetRef TargetRef `json:"targetRef,omitzero"`

	// evaluation says which of the rules that match a request apply to it.
	//
	// - All (default): every one.
	// - FirstMatch: the first one, in the order of the list. Rules in Shadow mode,
	//   and rules that are skipped because their key is missing, do not end the
	//   search. Only the last rule may be without match.
	// +optional
	Evaluation Evaluation `json:"evaluation,omitempty"`

	// mode says whether the rules deny. Rules that set no mode of their own
	// inherit it.
	//
	// - Enforce (default): requests over a limit are denied.
	// - Shadow: requests are counted and reported, and never denied.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// onStoreFailure says who answers while the shared store is slow or away.
	// Rules that set no onStoreFailure of their own inherit it.
	//
	// - LocalShare (default): each replica admits its share of the limit, so that
	//   the sum stays the limit.
	// - FailOpen: every request is admitted.
	// - FailClosed: every request that the rule matches is denied with status 503.
	// +optional
	OnStoreFailure OnStoreFailure `json:"onStoreFailure,omitempty"`

	// snapshot says whether the workload's compiled policies and its replica count
	// are also kept in a ConfigMap, which pods mount: so pods that start while the
	// store is away enforce, and local shares follow the replicas. One policy that
	// asks is enough for all policies of the workload.
	//
	// - None (default): they are in the policy table alone.
	// - ConfigMap: they are also in the ConfigMap weir-NAME, NAME being that of
	//   the workload.
	// +optional
	Snapshot SnapshotMode `json:"snapshot,omitempty"`

	// exempt lists requests that this policy never charges and never denies, such
	// as probes. A request is exempt when one item of the list holds. Other
	// policies of the workload still apply to it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Exempt []Exemption `json:"exempt,omitempty"` //nolint:kubeapilinter // arrayofstruct: any one of an item's fields is enough, MinProperties demands one

	// rules are the limits, each with the requests that it applies to and the
	// identity that it counts by.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +required
	Rules []Rule `json:"rules,omitempty"`
}

// TargetRef names a workload in the policy's own namespace.
type TargetRef struct {
	// group is the API group of the workload: apps.
	// +kubebuilder:validation:Enum=apps
	// +required
	Group string `json:"group,omitempty"`

	// kind is the kind of the workload: Deployment.
	// +kubebuilder:validation:Enum=Deployment
	// +required
	Kind string `json:"kind,omitempty"`

	// name is the name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +required
	Name string `json:"name,omitempty"`
}

// Evaluation says which of the rules that match a request apply to it.
//
// +kubebuilder:validation:Enum=All;FirstMatch
type Evaluation string

const (
	// EvaluationAll applies every rule that matches.
	EvaluationAll Evaluation = "All"
	// EvaluationFirstMatch applies the first enforced rule that matches.
	EvaluationFirstMatch Evaluation = "FirstMatch"
)

// Mode says whether a rule denies or only counts.
//
// +kubebuilder:validation:Enum=Enforce;Shadow
type Mode string

const (
	// ModeEnforce denies requests over a limit.
	ModeEnforce Mode = "Enforce"
	// ModeShadow counts and reports, and never denies.
	ModeShadow Mode = "Shadow"
)

// OnStoreFailure says who answers while the shared store is slow or away.
//
// +kubebuilder:validation:Enum=LocalShare;FailOpen;FailClosed
type OnStoreFailure string

const (
	// OnStoreFailureLocalShare lets each replica admit its share of the limit.
	OnStoreFailureLocalShare OnStoreFailure = "LocalShare"
	// OnStoreFailureFailOpen admits every request.
	OnStoreFailureFailOpen OnStoreFailure = "FailOpen"
	// OnStoreFailureFailClosed denies every request that the rule matches.
	OnStoreFailureFailClosed OnStoreFailure = "FailClosed"
)

// SnapshotMode says where a copy of the compiled policies is kept beside the
// policy table.
//
// +kubebuilder:validation:Enum=None;ConfigMap
type SnapshotMode string

const (
	// SnapshotNone keeps no copy.
	SnapshotNone SnapshotMode = "None"
	// SnapshotConfigMap keeps a copy in a ConfigMap.
	SnapshotConfigMap SnapshotMode = "ConfigMap"
)

// Exemption describes requests; all fields that are set must hold.
//
// +kubebuilder:validation:MinProperties=1
type Exemption struct {
	// methods are HTTP methods in upper case; the item holds for any one of them.
	// GET includes HEAD. Absent: all.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[A-Z][A-Z0-9_-]*$`
	// +listType=set
	// +optional
	Methods []string `json:"methods,omitempty"`

	// route is a path template, for example /healthz or /users/{id}. It has the
	// form described for the route of a rule's match.
	// +optional
	Route RouteTemplate `json:"route,omitempty"`

	// pathPrefix compares whole segments of the request's path, for example
	// /healthz. It has the form described for the pathPrefix of a rule's match.
	// +optional
	PathPrefix PathPrefix `json:"pathPrefix,omitempty"`
}
