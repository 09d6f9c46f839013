package controllers

import (
	"context"
	"math/rand/v2"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	// defaultResync is how often a workload is compared with the table although nothing has happened.
	defaultResync = 30 * time.Second
	// tombstoneResync is the same for a workload without policies, whose tombstone expires after 24 h.
	tombstoneResync = time.Hour
	// lookPriority is that of looking again although nothing has happened: behind what a sweep found, and so behind the first
	// statuses of new policies.
	lookPriority = handler.LowPriority - 1
	// retryTable is how soon a workload is tried again whose table did not answer.
	retryTable = 5 * time.Second
	// maxFaultDoublings bounds how often that doubles while the table fails over this workload alone: up to 160 s, or the
	// resync.
	maxFaultDoublings = 5
)

// Reconciler keeps one workload at a time as its policies want it: row and replicas in the table, and in the policies'
// status what the pods do with them.
type Reconciler struct {
	client     client.Client // reads from caches
	live       client.Reader
	recorder   recorder.EventRecorder
	table      Table // nil: none
	snapshots  bool
	leadership *Leadership
	owner      *ownership
	metrics    *metrics
	listed     *listed
	memories   memories
	namespaces map[string]bool // nil means all
	resync     time.Duration
}

// Reconcile compares what a workload should have with what it has, writes the difference and reports.
func (r *Reconciler) Reconcile(ctx context.Context, w policy.Workload) (reconcile.Result, error) {
	return r.reconcile(ctx, w, time.Now())
}

func (r *Reconciler) reconcile(ctx context.Context, w policy.Workload, now time.Time) (reconcile.Result, error) {
	in, err := r.read(ctx, w, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	d := decide(in, r.leadership.Installation())
	if d.removes && (in.table.state == tableOurs || in.snapshot.object != nil) {
		if err := r.confirm(ctx, in); err != nil {
			return reconcile.Result{}, err
		}
		d = decide(in, r.leadership.Installation())
	}
	wrote, err := r.publish(ctx, in, &d)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.publishSnapshot(ctx, in, &d); err != nil {
		return reconcile.Result{}, err
	}
	if wrote {
		return behindOthers(), nil
	}
	again, rest, err := r.report(ctx, in, d)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case rest:
		return behindOthers(), nil
	}
	return r.next(in, d, again), nil
}

// behindOthers comes back for statuses, which may wait for the row of another workload: ten of them take longer. It keeps
// the priority, so that the statuses of an edit do not wait for those of a sweep.
func behindOthers() reconcile.Result { return reconcile.Result{RequeueAfter: time.Millisecond} }

// next is the one place that says when to look at the workload again although nothing has happened: at the latest at
// the jittered resync, earlier when the passing of time alone changes something.
//
// Looking again makes way for changes and for the first statuses of other workloads, unless pods wait for what may come of
// it. There is one wait, so it is urgent if anything that is waited for is, even if something else comes earlier.
func (r *Reconciler) next(in *input, d decision, again time.Duration) reconcile.Result {
	if d.forget {
		return reconcile.Result{}
	}
	resync := r.resync
	if len(in.policies) == 0 && (in.table.state == tableOurs || in.table.state == tableNone) {
		resync = max(resync, tombstoneResync)
	}
	after, priority := jitter(resync), lookPriority
	within := func(wait time.Duration) {
		if wait > 0 {
			after = min(after, wait)
		}
	}
	urgent := func(wait time.Duration) {
		if wait > 0 {
			priority = 0
		}
		within(wait)
	}
	if in.table.state == tableUnreachable {
		retry := retryTable
		if in.table.fault != nil {
			retry <<= min(in.memory.faults-1, maxFaultDoublings)
		}
		within(jitter(retry))
	}
	if in.table.state == tableElsewhere {
		within(jitter(askEvery))
	}
	within(again)
	urgent(in.snapshot.again)
	if d.replicas != nil {
		urgent(d.lookAgain)
		if held := in.table.published.Replicas; in.table.state == tableOurs && !in.table.newer && d.writeReplicas &&
			(held == nil || !sameJSON(*held, *d.replicas)) {
			urgent(max(in.memory.written.Add(replicasEvery).Sub(in.now), time.Millisecond))
		}
	}
	return reconcile.Result{RequeueAfter: after, Priority: &priority}
}

// jitter spreads a wait over ±10 %, so that workloads that began together do not stay together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
