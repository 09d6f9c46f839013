package controllers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// refusal is why a policy is not in the row. The zero value is no refusal.
type refusal struct {
	reason  v1alpha1.ConditionReason
	message string
}

// facts is all that the status of one policy is decided from.
type facts struct {
	generation int64
	workload   policy.Workload
	exists     bool // the target
	refusal    refusal

	table tableView
	// written says that the row in the table has this generation.
	written  bool
	snapshot snapshotFacts
	replicas *policy.Replicas

	standing standing
	// unmatched are rules that no request matches, and forwardedIgnored says that some pod ignores proxies.
	unmatched        []string
	forwardedIgnored bool
	// settled is the number of pods that have been ready for 15 s, ready the number of those that are now.
	settled, ready int
	// joined is the number of pods that began to report less than 15 s ago.
	joined int
	// overdue says that for 15 s fewer pods than are ready have run this generation.
	overdue bool

	previous v1alpha1.RateLimitPolicyStatus
	now      time.Time
}

// snapshotFacts are what the status tells of the workload's snapshot.
type snapshotFacts struct {
	// asked says that this very policy wants it, and has that it has this generation of the policy.
	asked, has bool
	state      snapshotState
	failure    error
	// revision is that of its row; zero when there is none.
	revision policy.Revision
}

// maxNamedPods bounds how many pods a message names.
const maxNamedPods = 3

// reportedConditions are those that every policy has, in the order of the status.
var reportedConditions = []v1alpha1.ConditionType{
	v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionEnforced, v1alpha1.ConditionReady,
}

// statusOf gives the status that the facts call for; it is the previous one when nothing has changed.
func statusOf(f facts) v1alpha1.RateLimitPolicyStatus {
	accepted := acceptedOf(f)
	programmed := programmedOf(f)
	enforced := enforcedOf(f, programmed)
	conditions := []verdict{accepted, programmed, enforced, readyOf(f, accepted, programmed, enforced)}
	if v, ok := snapshotWrittenOf(f); ok {
		conditions = append(conditions, v)
	}
	if v, ok := reconcilingOf(programmed, enforced); ok {
		conditions = append(conditions, v)
	}
	if v, ok := stalledOf(f); ok {
		conditions = append(conditions, v)
	}

	status := v1alpha1.RateLimitPolicyStatus{
		ObservedGeneration: &f.generation,
		Replicas:           replicasStatus(f.replicas),
		Enforcers:          enforcersStatus(f),
		Revision:           f.previous.Revision,
	}
	if f.table.row != nil && f.written {
		status.Revision = inStatus(f.table.row.Revision)
	} else if f.table.state == tableNone && f.snapshot.has {
		status.Revision = inStatus(f.snapshot.revision)
	}
	for _, v := range conditions {
		status.Conditions = append(status.Conditions, v.condition(f))
	}
	return status
}

// verdict is a condition without its times.
type verdict struct {
	condType v1alpha1.ConditionType
	status   metav1.ConditionStatus
	reason   v1alpha1.ConditionReason
	message  string
}

// condition dates a verdict: the time of the last transition moves only when the status flips.
func (v verdict) condition(f facts) metav1.Condition {
	c := metav1.Condition{
		Type:               string(v.condType),
		Status:             v.status,
		ObservedGeneration: f.generation,
		LastTransitionTime: metav1.NewTime(f.now.Truncate(time.Second)),
		Reason:             string(v.reason),
		Message:            v.message,
	}
	if before := findCondition(f.previous.Conditions, v.condType); before != nil && before.Status == v.status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c
}

func acceptedOf(f facts) verdict {
	v := verdict{condType: v1alpha1.ConditionAccepted, status: metav1.ConditionFalse}
	switch {
	case f.refusal.reason != "":
		v.reason, v.message = f.refusal.reason, f.refusal.message
	case !f.exists:
		v.reason = v1alpha1.ReasonTargetNotFound
		v.message = fmt.Sprintf("%s %s does not exist in namespace %s", f.workload.Kind, f.workload.Name, f.workload.Namespace)
	default:
		v.status, v.reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
		v.message = "The policy is valid and its target exists"
	}
	return v
}

func programmedOf(f facts) verdict {
	v := verdict{condType: v1alpha1.ConditionProgrammed, status: metav1.ConditionUnknown}
	before := f.conditionOfThisGeneration(v1alpha1.ConditionProgrammed)
	switch {
	case f.refusal.reason != "":
		v.status, v.reason = metav1.ConditionFalse, v1alpha1.ReasonNotAccepted
		v.message = "A policy that is not accepted is not written"
	case f.table.state == tableElsewhere:
		v.status, v.reason = metav1.ConditionFalse, v1alpha1.ReasonTableOwnedElsewhere
		v.message = "Another installation owns the policy table and was seen within five minutes"
	case f.table.newer:
		v.status, v.reason = metav1.ConditionFalse, v1alpha1.ReasonNewerTable
		v.message = "A newer version of the controller wrote the row of this workload"
	case f.written, f.table.state == tableUnreachable && before != nil && before.Status == metav1.ConditionTrue:
		v.status, v.reason = metav1.ConditionTrue, v1alpha1.ReasonProgrammed
		v.message = "This generation is in the policy table" + f.table.warning()
	case f.table.state == tableUnreachable:
		v.reason, v.message = f.table.unreachable("")
		if f.snapshot.has {
			v.message += "; this generation is in ConfigMap " + f.configMap()
		}
	case f.table.state == tableNone:
		return programmedWithoutTable(f)
	default:
		v.reason, v.message = v1alpha1.ReasonPending, "This generation is about to be written"
	}
	return v
}

// programmedWithoutTable goes by the snapshot, by which alone pods hear of the policy.
func programmedWithoutTable(f facts) verdict {
	v := verdict{condType: v1alpha1.ConditionProgrammed, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNoTable}
	written, asked := snapshotWrittenOf(f)
	switch {
	case f.snapshot.has:
		v.status, v.reason = metav1.ConditionTrue, v1alpha1.ReasonProgrammed
		v.message = "This generation is in ConfigMap " + f.configMap()
	case !asked:
		v.message = "The controller has no policy table, and no policy of the workload asks for a snapshot"
	case written.status == metav1.ConditionUnknown:
		v.reason, v.message = written.reason, written.message
	default:
		v.message = "The controller has no policy table. " + written.message
	}
	return v
}

// snapshotWrittenOf is a verdict only of policies that ask for a snapshot.
func snapshotWrittenOf(f facts) (verdict, bool) {
	v := verdict{condType: v1alpha1.ConditionSnapshotWritten, status: metav1.ConditionFalse}
	if !f.snapshot.asked || f.snapshot.state == snapshotUnseen {
		return v, false
	}
	switch {
	case f.refusal.reason != "":
		v.reason, v.message = v1alpha1.ReasonNotAccepted, "A policy that is not accepted is not written"
	case f.snapshot.state == snapshotOff:
		v.reason, v.message = v1alpha1.ReasonSnapshotsDisabled, "The controller runs without --snapshots"
	case f.snapshot.state == snapshotTaken:
		v.reason = v1alpha1.ReasonConfigMapTaken
		v.message = fmt.Sprintf("ConfigMap %s exists and is not Weir's, so it is left alone", f.configMap())
	case f.snapshot.state == snapshotFailed:
		v.reason, v.message = v1alpha1.ReasonSnapshotFailed, firstBytes(f.snapshot.failure.Error(), maxFailure)
	case !f.exists:
		v.reason, v.message = v1alpha1.ReasonTargetNotFound, "The ConfigMap belongs to the target, which does not exist"
	case f.snapshot.has:
		v.status, v.reason = metav1.ConditionTrue, v1alpha1.ReasonSnapshotWritten
		v.message = fmt.Sprintf("ConfigMap %s has this generation", f.configMap())
	case f.table.state == tableElsewhere:
		v.reason, v.message = v1alpha1.ReasonTableOwnedElsewhere, "Another installation owns the policy table"
	case f.table.newer:
		v.reason, v.message = v1alpha1.ReasonNewerTable, "A newer version of the controller wrote the row of this workload"
	default:
		v.status, v.reason = metav1.ConditionUnknown, v1alpha1.ReasonPending
		v.message = fmt.Sprintf("ConfigMap %s is about to be written", f.configMap())
	}
	return v, true
}

// maxFailure bounds what a message quotes of the API server.
const maxFailure = 512

func firstBytes(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// configMap is the name of the workload's snapshot.
func (f facts) configMap() string { return policy.SnapshotName(f.workload.Name) }

func enforcedOf(f facts, programmed verdict) verdict {
	v := verdict{condType: v1alpha1.ConditionEnforced, status: metav1.ConditionUnknown}
	before := f.conditionOfThisGeneration(v1alpha1.ConditionEnforced)
	current, due := len(f.standing.current), f.expected()
	switch {
	case f.refusal.reason != "":
		v.reason, v.message = v1alpha1.ReasonNotAccepted, "A policy that is not accepted is not enforced"
	case f.table.state == tableUnreachable:
		v.reason, v.message = f.table.unreachable(", so nothing is known of the pods")
	case f.table.state == tableNone:
		v.reason, v.message = v1alpha1.ReasonNoTable, "The controller has no policy table, so nothing is known of the pods"
	case programmed.status != metav1.ConditionTrue:
		v.reason, v.message = v1alpha1.ReasonPending, "This generation is not in the policy table"
	case f.ready == 0 && f.standing.reporting() == 0:
		v.reason, v.message = v1alpha1.ReasonNoReplicas, "The workload has no ready pods"
	case current > 0 && current >= f.settled:
		v.status, v.reason = metav1.ConditionTrue, v1alpha1.ReasonEnforced
		v.message = fmt.Sprintf("%d of %d pods enforce this generation", current, due)
	case f.settled == 0 && f.standing.reporting() == 0:
		v.reason, v.message = v1alpha1.ReasonNoReplicas, "The ready pods have just started"
	case f.overdue && !f.rolls():
		return shortfall(f)
	case before != nil && before.Status != metav1.ConditionUnknown:
		v.status, v.reason, v.message = before.Status, v1alpha1.ConditionReason(before.Reason), before.Message
	default:
		v.reason = v1alpha1.ReasonPending
		v.message = "Waiting for the pods to report this generation"
	}
	return v
}

// shortfall says why too few pods enforce the policy.
func shortfall(f facts) verdict {
	v := verdict{condType: v1alpha1.ConditionEnforced, status: metav1.ConditionFalse}
	s, due := f.standing, f.expected()
	switch {
	case s.reporting() < f.settled:
		v.reason = v1alpha1.ReasonReplicasNotReporting
		v.message = fmt.Sprintf("%d of %d pods do not report", due-s.reporting(), due)
		if s.reporting() == 0 {
			v.message += ": do they run the library, with this Redis and this table?"
		} else {
			v.message += "; those that do: " + named(slices.Sorted(slices.Values(slices.Concat(s.current, s.old, s.behind))))
		}
	case len(s.old) > 0 && len(s.current)+len(s.old) >= f.settled:
		v.reason = v1alpha1.ReasonEnforcerTooOld
		v.message = fmt.Sprintf("The library in %d of %d pods is too old for a rule of this policy: %s", len(s.old), due, named(s.old))
	default:
		late := slices.Sorted(slices.Values(slices.Concat(s.old, s.behind)))
		v.reason = v1alpha1.ReasonReplicasBehind
		v.message = fmt.Sprintf("%d of %d pods run an older generation: %s", len(late), due, named(late))
	}
	return v
}

func readyOf(f facts, accepted, programmed, enforced verdict) verdict {
	v := verdict{condType: v1alpha1.ConditionReady, status: metav1.ConditionTrue, reason: v1alpha1.ReasonReady}
	v.message = enforced.message + f.table.warning() + f.warning()
	for _, part := range []verdict{accepted, programmed, enforced} {
		inTheWay := part.status == metav1.ConditionFalse ||
			part.status == metav1.ConditionUnknown && part.condType != v1alpha1.ConditionEnforced
		if inTheWay {
			v.status, v.reason, v.message = part.status, part.reason, part.message
			break
		}
	}
	return v
}

func reconcilingOf(programmed, enforced verdict) (verdict, bool) {
	v := verdict{condType: v1alpha1.ConditionReconciling, status: metav1.ConditionTrue, reason: v1alpha1.ReasonProgressing}
	switch {
	case programmed.reason == v1alpha1.ReasonNoTable:
		return verdict{}, false // nothing is on its way
	case programmed.status == metav1.ConditionUnknown:
		v.message = programmed.message
	case enforced.reason == v1alpha1.ReasonPending && programmed.status == metav1.ConditionTrue:
		v.message = enforced.message
	default:
		return verdict{}, false
	}
	return v, true
}

func stalledOf(f facts) (verdict, bool) {
	return verdict{
		condType: v1alpha1.ConditionStalled,
		status:   metav1.ConditionTrue,
		reason:   f.refusal.reason,
		message:  f.refusal.message,
	}, f.refusal.reason != ""
}

// expected are the pods that should enforce: those that have been ready for 15 s, and at least those that report.
func (f facts) expected() int { return max(f.settled, f.standing.reporting()) }

// rolls says that pods come and go faster than they settle: there are always some that are ready and have not reported yet,
// but no more than those that have just begun to, so none of them need have been ready for 15 s.
func (f facts) rolls() bool {
	missing := f.settled - f.standing.reporting()
	return len(f.standing.behind)+len(f.standing.old) == 0 && missing > 0 && missing <= f.joined
}

// conditionOfThisGeneration is the condition that the status has, if it is about the present generation.
func (f facts) conditionOfThisGeneration(condType v1alpha1.ConditionType) *metav1.Condition {
	c := findCondition(f.previous.Conditions, condType)
	if c == nil || c.ObservedGeneration != f.generation {
		return nil
	}
	return c
}

func replicasStatus(r *policy.Replicas) *v1alpha1.ReplicasStatus {
	if r == nil {
		return nil
	}
	return &v1alpha1.ReplicasStatus{
		Counted:     int32(r.N),
		Ready:       new(int32(r.Ready)),
		Desired:     new(int32(r.Desired)),
		Terminating: new(int32(r.Terminating)),
	}
}

// enforcersStatus is absent while nothing is known of the pods.
func enforcersStatus(f facts) *v1alpha1.EnforcersStatus {
	if f.table.state != tableOurs {
		return nil
	}
	current := len(f.standing.current)
	return &v1alpha1.EnforcersStatus{
		Reporting: new(int32(f.standing.reporting())),
		Current:   new(int32(current)),
		Summary:   fmt.Sprintf("%d/%d", current, f.expected()),
	}
}

// inStatus is the form of a revision in status and log: epoch, a dot, count.
func inStatus(r policy.Revision) string { return fmt.Sprintf("%s.%d", r.Epoch, r.N) }

// named joins the first names of a sorted list.
func named(pods []string) string {
	if len(pods) <= maxNamedPods {
		return strings.Join(pods, ", ")
	}
	return strings.Join(pods[:maxNamedPods], ", ") + ", …"
}

func findCondition(conditions []metav1.Condition, condType v1alpha1.ConditionType) *metav1.Condition {
	for i := range conditions {
		if conditions[i].Type == string(condType) {
			return &conditions[i]
		}
	}
	return nil
}
