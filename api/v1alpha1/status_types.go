package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RateLimitPolicyStatus is what the controller has done with a policy and what the pods report of it.
type RateLimitPolicyStatus struct {
	// conditions are Accepted, Programmed, Enforced and Ready; Reconciling and
	// Stalled only while they are True. Each names the generation that it was
	// observed for.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that this status is about;
	// -1 until there is one.
	// +kubebuilder:validation:Minimum=-1
	// +optional
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`

	// replicas are the live replica counts of the workload. Local shares follow
	// from counted.
	// +optional
	Replicas *ReplicasStatus `json:"replicas,omitempty"`

	// enforcers count the pods that report to the policy table.
	// +optional
	Enforcers *EnforcersStatus `json:"enforcers,omitempty"`

	// revision is the revision of the workload's row that was written last: the
	// epoch of the controller that led, a dot, and its count of writes, for
	// example 48213.7. The pods' revisions compare with it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Revision string `json:"revision,omitempty"`
}

// ReplicasStatus are the live replica counts of the workload.
type ReplicasStatus struct {
	// counted is the number of replicas that local shares are computed for. It
	// follows a rise at once and a fall when that has lasted 30 s; it is never
	// below 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Counted int32 `json:"counted,omitempty"`

	// ready is the number of ready pods.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Ready *int32 `json:"ready,omitempty"`

	// desired is the number of replicas that the workload asks for.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Desired *int32 `json:"desired,omitempty"`

	// terminating is the number of pods that are shutting down and may still
	// serve.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Terminating *int32 `json:"terminating,omitempty"`
}

// EnforcersStatus count the pods that report to the policy table.
type EnforcersStatus struct {
	// reporting is the number of live pods that report.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Reporting *int32 `json:"reporting,omitempty"`

	// current is the number of those that enforce this generation of the policy.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Current *int32 `json:"current,omitempty"`

	// summary is current/expected, for example 3/3; expected are the pods that
	// have been ready for 15 s, and at least those that report.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Summary string `json:"summary,omitempty"`
}
