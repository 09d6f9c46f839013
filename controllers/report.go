package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	// statusEvery is how often the status of one policy is written at most.
	statusEvery = 2 * time.Second
	// answerTime is what pods that report get to run a new generation before the status tells of the waiting: usually
	// they do in a fraction of it, and one write tells both.
	answerTime = time.Second
	// statusesPerPass bounds how long a pass takes: until it ends, nothing else is done for the workload.
	statusesPerPass = 8
	// outageGrace is how long the table must have been away before the statuses of what was written say so.
	outageGrace = 15 * time.Second
)

// report writes the status of every policy of the workload where it differs. rest says that it left some for another pass;
// again, after how long the passing of time alone may change one, zero for never.
func (r *Reconciler) report(ctx context.Context, in *input, d decision) (again time.Duration, rest bool, err error) {
	m := in.memory
	written, first := 0, false
	m.hadPolicies = len(in.policies) > 0 || m.hadPolicies && !in.table.hasTombstone()
	if m.faults > 0 && in.table.state == tableOurs {
		m.faults = 0
		log.FromContext(ctx).Info("Policy table serves this workload again")
	}
	m.ready = m.ready.observe(int(in.deployment.Ready), in.now)
	m.forgetOthers(in.policies)
	again = wait(in.now, m.ready.changes())
	if in.table.state == tableOurs {
		m.reporting = m.reporting.observe(in.table.published.Members, in.now)
	}
	said := heard(in)
	for _, p := range unseenFirst(in.policies) {
		f, remembered := observe(in, d, p, m.policies[p.UID], said)
		status := statusOf(f)
		if !remembered.reported && conditionIs(status.Conditions, v1alpha1.ConditionEnforced, metav1.ConditionTrue) {
			r.metrics.propagation.Observe(in.now.Sub(remembered.seen).Seconds())
			remembered.reported = true
		}
		due, later := statusDue(f, status, remembered)
		switch {
		case due && first && observedBefore(p):
			later = statusEvery // behind the first statuses of other workloads
		case due && written == statusesPerPass:
			rest = true
		case due:
			written++
			first = first || !observedBefore(p)
			remembered.statusWritten = in.now
			var failed error
			later, failed = r.writeStatus(ctx, p, status)
			err = errors.Join(err, failed) // one that is refused keeps no other policy from its status
		}
		m.policies[p.UID] = remembered
		again = sooner(again, later)
		if f.standing.reporting() > 0 || f.ready > 0 {
			again = sooner(again, wait(in.now, remembered.overdueAt()))
		}
		if f.overdue && f.rolls() {
			again = sooner(again, wait(in.now, said.joinedChanges))
		}
	}
	return again, rest, err
}

// unseenFirst puts the policies first whose status does not tell of their generation yet.
func unseenFirst(policies []v1alpha1.RateLimitPolicy) []*v1alpha1.RateLimitPolicy {
	ordered := make([]*v1alpha1.RateLimitPolicy, 0, len(policies))
	for _, seen := range []bool{false, true} {
		for i := range policies {
			if p := &policies[i]; observedBefore(p) == seen {
				ordered = append(ordered, p)
			}
		}
	}
	return ordered
}

// hearsay is what the pods' reports say beside the policies that they enforce. It is the same for all policies.
type hearsay struct {
	unmatched        []policy.RuleName // if told
	told             bool
	forwardedIgnored bool
	joined           int
	joinedChanges    time.Time
}

func heard(in *input) hearsay {
	var h hearsay
	members := in.table.published.Members
	if in.table.row != nil {
		h.unmatched, h.told = policy.UnmatchedRules(*in.table.row, members)
	}
	h.forwardedIgnored = slices.ContainsFunc(members, func(m policy.Report) bool { return m.ForwardedIgnored })
	h.joined, h.joinedChanges = in.memory.reporting.joined(in.now)
	return h
}

// observe turns what a pass knows into the facts of one policy, and into what to remember of it.
func observe(
	in *input, d decision, p *v1alpha1.RateLimitPolicy, remembered policyMemory, said hearsay,
) (facts, policyMemory) {
	if remembered.generation != p.Generation {
		remembered = policyMemory{
			generation:    p.Generation,
			seen:          in.now,
			statusWritten: remembered.statusWritten,
			reported:      observedBefore(p),
		}
	}
	f := facts{
		generation: p.Generation,
		workload:   in.workload,
		exists:     in.deployment.UID != "",
		refusal:    d.refusals[p.Name],
		table:      in.table,
		replicas:   d.replicas,
		ready:      int(in.deployment.Ready),
		settled:    in.memory.ready.settled(),
		previous:   p.Status,
		now:        in.now,
		snapshot: snapshotFacts{
			asked:   p.Spec.Snapshot == v1alpha1.SnapshotConfigMap,
			state:   in.snapshot.state,
			failure: in.snapshot.failure,
		},
	}
	f.joined = said.joined
	if row := in.snapshot.row; row != nil {
		f.snapshot.has, f.snapshot.revision = has(*row, p), row.Revision
	}
	if row := in.table.row; row != nil && has(*row, p) {
		f.written = true
		if remembered.since.IsZero() {
			remembered.since = row.Revision
		}
		f.standing = standingOf(remembered.since, needsOf(*row, p.Name), in.table.published.Members)
	} else {
		remembered.since = policy.Revision{}
		f.standing = standingOf(policy.Revision{}, nil, in.table.published.Members)
	}
	if said.told {
		remembered.unmatched = nil
		for _, rule := range said.unmatched {
			if rule.Policy == p.Name {
				remembered.unmatched = append(remembered.unmatched, rule.Rule)
			}
		}
	}
	f.unmatched, f.forwardedIgnored = remembered.unmatched, said.forwardedIgnored
	switch {
	case in.table.state != tableOurs || len(f.standing.current) >= max(f.ready, 1):
		remembered.short = time.Time{}
	case remembered.short.IsZero():
		remembered.short = in.now
	}
	f.overdue = !remembered.short.IsZero() && !in.now.Before(remembered.overdueAt())
	return f, remembered
}

// overdueAt is when pods that do not report the generation are late; zero when enough do.
func (m policyMemory) overdueAt() time.Time {
	if m.short.IsZero() {
		return time.Time{}
	}
	return m.short.Add(settleTime)
}

// has says whether the row has this very generation of this very policy.
func has(row policy.Row, p *v1alpha1.RateLimitPolicy) bool {
	for _, in := range row.Policies {
		if in.Name == p.Name {
			return in.UID == string(p.UID) && in.Generation == p.Generation
		}
	}
	return false
}

// observedBefore says that the status already tells of this generation: its way to the pods began before this process
// led, and cannot be measured.
func observedBefore(p *v1alpha1.RateLimitPolicy) bool {
	return p.Status.ObservedGeneration != nil && *p.Status.ObservedGeneration == p.Generation
}

func (m *memory) forgetOthers(policies []v1alpha1.RateLimitPolicy) {
	present := map[types.UID]bool{}
	for i := range policies {
		present[policies[i].UID] = true
	}
	for uid := range m.policies {
		if !present[uid] {
			delete(m.policies, uid)
		}
	}
}

// statusDue says whether a status must be written, or after how long if it has to wait; zero if it does not differ.
func statusDue(f facts, status v1alpha1.RateLimitPolicyStatus, remembered policyMemory) (due bool, later time.Duration) {
	if equality.Semantic.DeepEqual(f.previous, status) {
		return false, 0
	}
	later = holdBack(f, status, remembered)
	return later == 0, later
}

// writeStatus writes a status, and says after how long to try again if the policy has changed in the meantime.
func (r *Reconciler) writeStatus(
	ctx context.Context, p *v1alpha1.RateLimitPolicy, status v1alpha1.RateLimitPolicyStatus,
) (time.Duration, error) {
	changed := p.DeepCopy()
	changed.Status = status
	patch := client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})
	err := r.client.Status().Patch(ctx, changed, patch)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		return statusEvery, nil // the policy has changed since it was read; what changed enqueues, or the next look sees it
	case err != nil:
		return 0, fmt.Errorf("writing the status of %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.metrics.statusWrites.Inc()
	log.FromContext(ctx).V(1).Info("Wrote status", "policy", p.Name, "generation", p.Generation)
	r.tell(p, changed)
	return 0, nil
}

// holdBack says how long a status that differs has to wait before it is written; zero when it need not.
func holdBack(f facts, status v1alpha1.RateLimitPolicyStatus, remembered policyMemory) time.Duration {
	hold := wait(f.now, remembered.statusWritten.Add(statusEvery))
	if f.table.state == tableUnreachable && f.table.fault == nil && f.table.outage < outageGrace &&
		f.conditionOfThisGeneration(v1alpha1.ConditionEnforced) != nil {
		hold = max(hold, outageGrace-f.table.outage)
	}
	enforced := findCondition(status.Conditions, v1alpha1.ConditionEnforced)
	if f.written && enforced.Reason == string(v1alpha1.ReasonPending) && f.standing.reporting() > 0 {
		hold = max(hold, wait(f.now, remembered.seen.Add(answerTime)))
	}
	return hold
}

// toldConditions are those whose changes are events; Ready follows from them.
var toldConditions = []v1alpha1.ConditionType{
	v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionEnforced, v1alpha1.ConditionSnapshotWritten,
}

// tell emits an event for each condition that flipped to True or False. A policy that is written as soon as it is accepted is
// told of once.
func (r *Reconciler) tell(before, after *v1alpha1.RateLimitPolicy) {
	for _, condType := range toldConditions {
		is := flipped(before, after, condType)
		if is == nil || is.Status == metav1.ConditionUnknown {
			continue
		}
		if condType == v1alpha1.ConditionAccepted && is.Status == metav1.ConditionTrue {
			if p := flipped(before, after, v1alpha1.ConditionProgrammed); p != nil && p.Status == metav1.ConditionTrue {
				continue
			}
		}
		eventType := corev1.EventTypeNormal
		if is.Status == metav1.ConditionFalse {
			eventType = corev1.EventTypeWarning
		}
		r.recorder.Eventf(after, nil, eventType, is.Reason, string(condType), "%s", is.Message)
	}
}

// flipped is a condition whose status is another one than before; nil if it is the same or absent.
func flipped(before, after *v1alpha1.RateLimitPolicy, condType v1alpha1.ConditionType) *metav1.Condition {
	was, is := findCondition(before.Status.Conditions, condType), findCondition(after.Status.Conditions, condType)
	if is == nil || was != nil && was.Status == is.Status {
		return nil
	}
	return is
}

func conditionIs(conditions []metav1.Condition, condType v1alpha1.ConditionType, status metav1.ConditionStatus) bool {
	c := findCondition(conditions, condType)
	return c != nil && c.Status == status
}

// wait is the time until at, zero when at is past or zero.
func wait(now, at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(now), 0)
}

// sooner is the shorter of two waits, of which zero means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
