package v1alpha1

// ConditionType names a condition of a RateLimitPolicy.
type ConditionType string

// ConditionReason names why a condition has its status. Each condition lists the reasons that it may carry.
type ConditionReason string

const (
	// ConditionAccepted says whether the policy is part of what the workload enforces. True is good.
	//
	// Reasons when True:
	//
	// * "Accepted"
	//
	// Reasons when False:
	//
	// * "Invalid"
	// * "TargetNotFound"
	// * "TooManyRules"
	// * "RowTooLarge"
	ConditionAccepted ConditionType = "Accepted"

	// ReasonAccepted means: the policy is valid and its target exists.
	ReasonAccepted ConditionReason = "Accepted"

	// ReasonInvalid means: the spec breaks a rule of the schema that the API server did not see, for example because
	// the policy is older than the schema. The message names the field. It needs an edit.
	ReasonInvalid ConditionReason = "Invalid"

	// ReasonTargetNotFound means: the target does not exist. The policy is written to the table nevertheless, so that
	// the first pod of the target finds it; it is accepted when the target appears.
	ReasonTargetNotFound ConditionReason = "TargetNotFound"

	// ReasonTooManyRules means: with this policy the workload would have more than 64 rules; older policies go first.
	// It needs an edit of this policy or of another one.
	ReasonTooManyRules ConditionReason = "TooManyRules"

	// ReasonRowTooLarge means: with this policy the workload's row would be larger than 512 KiB; older policies go
	// first. It needs an edit of this policy or of another one.
	ReasonRowTooLarge ConditionReason = "RowTooLarge"
)

const (
	// ConditionProgrammed says whether this generation was written to the policy table; with a controller that runs
	// without a store, whether it was written to the ConfigMap with the workload's snapshot. True is good. An outage of
	// the store does not take it back.
	//
	// Reasons when True:
	//
	// * "Programmed"
	//
	// Reasons when False:
	//
	// * "NotAccepted"
	// * "TableOwnedElsewhere"
	// * "NewerTable"
	//
	// Reasons when Unknown:
	//
	// * "Pending"
	// * "StoreUnreachable"
	// * "TableFault"
	// * "NoTable"
	ConditionProgrammed ConditionType = "Programmed"

	// ReasonProgrammed means: this generation is in the workload's row, or in its snapshot where there is no store.
	ReasonProgrammed ConditionReason = "Programmed"

	// ReasonNotAccepted means: a policy that is not accepted is not written; see the condition Accepted.
	ReasonNotAccepted ConditionReason = "NotAccepted"

	// ReasonTableOwnedElsewhere means: another installation owns the table and was seen within five minutes. Give one
	// of them a table of its own.
	ReasonTableOwnedElsewhere ConditionReason = "TableOwnedElsewhere"

	// ReasonNewerTable means: a newer version of the controller wrote the workload's row in a form that this one does
	// not know.
	ReasonNewerTable ConditionReason = "NewerTable"

	// ReasonPending means: the write is on its way.
	ReasonPending ConditionReason = "Pending"
)

const (
	// ConditionEnforced says whether the pods enforce this generation. True is good.
	//
	// Reasons when True:
	//
	// * "Enforced"
	//
	// Reasons when False:
	//
	// * "ReplicasNotReporting"
	// * "ReplicasBehind"
	// * "EnforcerTooOld"
	//
	// Reasons when Unknown:
	//
	// * "NoReplicas"
	// * "NoTable"
	// * "StoreUnreachable"
	// * "TableFault"
	// * "NotAccepted"
	// * "Pending"
	ConditionEnforced ConditionType = "Enforced"

	// ReasonEnforced means: at least as many pods as have been ready for 15 s run this generation.
	ReasonEnforced ConditionReason = "Enforced"

	// ReasonReplicasNotReporting means: pods that have been ready for 15 s do not report. Up to three are named. The
	// library is not in them, or it uses another store, table, namespace or workload.
	ReasonReplicasNotReporting ConditionReason = "ReplicasNotReporting"

	// ReasonReplicasBehind means: pods report an older generation for more than 15 s. Up to three are named.
	ReasonReplicasBehind ConditionReason = "ReplicasBehind"

	// ReasonEnforcerTooOld means: the library in some pods is too old for a rule of this policy and skips it. Up to
	// three are named.
	ReasonEnforcerTooOld ConditionReason = "EnforcerTooOld"

	// ReasonNoReplicas means: the workload has no ready pods, or they have just started.
	ReasonNoReplicas ConditionReason = "NoReplicas"

	// ReasonNoTable means: the controller runs without a store, so pods cannot report, and hear only of policies whose
	// workload has a snapshot.
	ReasonNoTable ConditionReason = "NoTable"

	// ReasonStoreUnreachable means: the store does not answer the controller, so nothing is known of the pods.
	ReasonStoreUnreachable ConditionReason = "StoreUnreachable"

	// ReasonTableFault means: the store answers, but fails over the keys of this workload, so nothing is known of the
	// pods. The message has its answer. It is tried again, and no other workload waits for it.
	ReasonTableFault ConditionReason = "TableFault"
)

const (
	// ConditionSnapshotWritten says whether this generation was written to the ConfigMap with the workload's snapshot.
	// It is present only while the policy asks for one. True is good.
	//
	// Reasons when True:
	//
	// * "SnapshotWritten"
	//
	// Reasons when False:
	//
	// * "SnapshotsDisabled"
	// * "ConfigMapTaken"
	// * "SnapshotFailed"
	// * "TargetNotFound"
	// * "NotAccepted"
	// * "TableOwnedElsewhere"
	// * "NewerTable"
	//
	// Reasons when Unknown:
	//
	// * "Pending"
	ConditionSnapshotWritten ConditionType = "SnapshotWritten"

	// ReasonSnapshotWritten means: this generation is in the ConfigMap.
	ReasonSnapshotWritten ConditionReason = "SnapshotWritten"

	// ReasonSnapshotsDisabled means: the controller runs without --snapshots.
	ReasonSnapshotsDisabled ConditionReason = "SnapshotsDisabled"

	// ReasonConfigMapTaken means: a ConfigMap of that name exists and is not Weir's, so it is left alone. Rename or
	// delete it.
	ReasonConfigMapTaken ConditionReason = "ConfigMapTaken"

	// ReasonSnapshotFailed means: the API server refused to read or write the ConfigMap. The message says why; it is
	// tried again.
	ReasonSnapshotFailed ConditionReason = "SnapshotFailed"
)

const (
	// ConditionReady is True when the policy is accepted and programmed and no pod is known not to enforce it. True is
	// good.
	//
	// Reasons when True:
	//
	// * "Ready"
	//
	// Reasons when False or Unknown: the reason of the condition that stands in the way, of Accepted, Programmed and
	// Enforced in this order.
	ConditionReady ConditionType = "Ready"

	// ReasonReady means: nothing stands in the way.
	ReasonReady ConditionReason = "Ready"
)

const (
	// ConditionReconciling is present, and True, only while the controller or the pods are on their way to the newest
	// generation. Absent is good.
	//
	// Reasons when True:
	//
	// * "Progressing"
	ConditionReconciling ConditionType = "Reconciling"

	// ReasonProgressing means: work is going on; nobody needs to do anything.
	ReasonProgressing ConditionReason = "Progressing"
)

const (
	// ConditionStalled is present, and True, only while the policy cannot make progress without an edit by the user.
	// Absent is good.
	//
	// Reasons when True:
	//
	// * "Invalid"
	// * "TooManyRules"
	// * "RowTooLarge"
	ConditionStalled ConditionType = "Stalled"
)
