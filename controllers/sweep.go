package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// retrySweep is how soon a sweep that failed is tried again.
const retrySweep = 2 * time.Second

// watchTable is the source of events from the table: a sweep over all of its workloads at the start and whenever the
// connection came back, and in between each workload whose enforcers have something to say.
func (r *Reconciler) watchTable(ctx context.Context, queue workqueue.TypedRateLimitingInterface[policy.Workload]) error {
	sweep := make(chan struct{}, 1)
	sweep <- struct{}{}
	go r.sweepOn(ctx, sweep, queue)
	if r.table == nil {
		return nil
	}
	go r.listen(ctx, func(w *policy.Workload) {
		switch {
		case w == nil:
			r.owner.back()
			select {
			case sweep <- struct{}{}:
			default: // one is waiting already
			}
		case r.looksAfter(*w):
			queue.Add(*w)
		}
	})
	return nil
}

func (r *Reconciler) listen(ctx context.Context, hint func(*policy.Workload)) {
	for ctx.Err() == nil {
		if err := r.table.Listen(ctx, hint); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(1).Info("Listening to the table ended", "error", err.Error())
		}
		pause(ctx, retrySweep)
	}
}

// sweepOn sweeps whenever asked, until it succeeds, and keeps the table ours in between, also while there is no policy.
// The caches have synced: the manager starts sources after them.
func (r *Reconciler) sweepOn(ctx context.Context, sweep <-chan struct{}, queue workqueue.TypedRateLimitingInterface[policy.Workload]) {
	claim := time.NewTicker(claimEvery)
	defer claim.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-claim.C:
			r.claim(ctx)
			continue
		case <-sweep:
		}
		r.claim(ctx)
		for ctx.Err() == nil {
			workloads, err := r.allWorkloads(ctx)
			enqueueLow(queue, workloads)
			if err == nil {
				break
			}
			log.FromContext(ctx).V(1).Info("Sweep failed and will be tried again", "error", err.Error())
			pause(ctx, retrySweep)
		}
	}
}

// claim says that this installation lives. What goes wrong is told by the passes, which meet it too.
func (r *Reconciler) claim(ctx context.Context) {
	if r.table == nil {
		return
	}
	if epoch, err := r.leadership.Epoch(ctx); err == nil {
		r.owner.check(ctx, epoch)
	}
}

// allWorkloads are those that policies target, those that have a snapshot and those that the table knows. With an error
// it returns what it found.
func (r *Reconciler) allWorkloads(ctx context.Context) (map[policy.Workload]bool, error) {
	found := map[policy.Workload]bool{}
	var list v1alpha1.RateLimitPolicyList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return found, fmt.Errorf("listing policies: %w", err)
	}
	for i := range list.Items {
		found[targetOf(&list.Items[i])] = true
	}
	if r.snapshots {
		var snapshots corev1.ConfigMapList
		if err := r.client.List(ctx, &snapshots, client.UnsafeDisableDeepCopy); err != nil {
			return found, fmt.Errorf("listing snapshots: %w", err)
		}
		for i := range snapshots.Items {
			for _, w := range r.workloadsOfSnapshot(ctx, &snapshots.Items[i]) {
				found[w] = true
			}
		}
	}
	if r.table == nil {
		return found, nil
	}
	inTable, err := r.table.Workloads(ctx)
	for _, w := range inTable {
		if r.looksAfter(w) {
			found[w] = true
		}
	}
	switch {
	case err == nil:
		return found, nil
	case inTable != nil: // names that are no workloads: nothing that another try would mend
		log.FromContext(ctx).Error(err, "Some names in the table are no workloads")
		return found, nil
	}
	return found, fmt.Errorf("listing the workloads of the table: %w", err)
}

func (r *Reconciler) looksAfter(w policy.Workload) bool {
	return r.namespaces == nil || r.namespaces[w.Namespace]
}

// enqueueLow makes way for what users change.
func enqueueLow(queue workqueue.TypedRateLimitingInterface[policy.Workload], workloads map[policy.Workload]bool) {
	for w := range workloads {
		if q, ok := queue.(priorityqueue.PriorityQueue[policy.Workload]); ok {
			q.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, w)
		} else {
			queue.Add(w)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
