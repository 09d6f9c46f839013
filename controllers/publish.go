package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	// maxPublishAttempts bounds how often one pass answers a refusal: with a newer list, without a list, with a higher
	// epoch.
	maxPublishAttempts = 4
	// replicasEvery is how often the replicas of one workload are written at most, after the first change.
	replicasEvery = time.Second
	// tellRepairsEvery is how often the log tells at most that keys of one workload were repaired.
	tellRepairsEvery = time.Minute
)

// view reads what the table holds for the workload. A failing table is a state, not an error; an error says that this
// process cannot tell whether it leads.
func (r *Reconciler) view(ctx context.Context, w policy.Workload) (tableView, error) {
	if r.table == nil {
		return tableView{state: tableNone}, nil
	}
	epoch, err := r.leadership.Epoch(ctx)
	if err != nil {
		return tableView{}, err
	}
	state, outage := r.owner.check(ctx, epoch)
	if state != tableOurs {
		return tableView{state: state, outage: outage}, nil
	}
	published, repaired, err := r.table.Read(ctx, w)
	if err != nil {
		return r.failed(ctx, w, tableView{}, fmt.Errorf("reading the table: %w", err)), nil
	}
	r.owner.answered()
	r.repaired(ctx, w, repaired)
	view := tableView{state: tableOurs, published: published, evicts: r.owner.eviction()}
	if published.Row == nil {
		return view, nil
	}
	row, skipped, err := policy.DecodeRow(published.Row)
	switch {
	case errors.Is(err, policy.ErrNewerVersion), len(skipped) > 0:
		// Whoever wrote it knows more of the policies than this code, which would write the limits without that.
		view.newer = true
	case err != nil:
		log.FromContext(ctx).Error(err, "Row in the table cannot be read and will be replaced")
	default:
		view.row = &row
	}
	return view, nil
}

// publish writes what differs, and leaves in in what the table holds afterwards. wrote says that the row is a new one,
// and was taken at once: from what this process sees in its caches, so that another pass comes to the same row.
func (r *Reconciler) publish(ctx context.Context, in *input, d *decision) (wrote bool, err error) {
	if d.forget {
		r.forget(ctx, in)
		return false, nil
	}
	if in.table.state != tableOurs || in.table.newer {
		return false, nil
	}
	if d.writeRow {
		if wrote, err = r.publishRow(ctx, in, d); err != nil {
			return wrote, err
		}
	}
	if d.writeReplicas && in.table.state == tableOurs && !in.now.Before(in.memory.written.Add(replicasEvery)) {
		return wrote, r.publishReplicas(ctx, in, *d.replicas)
	}
	return wrote, nil
}

func (r *Reconciler) publishRow(ctx context.Context, in *input, d *decision) (wrote bool, err error) {
	for attempt := range maxPublishAttempts {
		epoch, err := r.leadership.Epoch(ctx)
		if err != nil {
			return false, err
		}
		revision, highest, ok := nextRevision(epoch, in.memory.revision, seenRevisions(in))
		if !ok {
			if err := r.raise(ctx, highest); err != nil {
				return false, err
			}
			continue
		}
		row := d.row
		row.Revision = revision
		in.memory.revision = revision // tried: it may have been written even if no answer comes
		refusal, err := r.table.Publish(ctx, in.workload, row)
		if err != nil {
			in.table = r.failed(ctx, in.workload, in.table, fmt.Errorf("writing the row: %w", err))
			return false, nil
		}
		if refusal == policy.Accepted {
			r.metrics.rowWritten(row)
			log.FromContext(ctx).Info("Wrote row", "revision", inStatus(revision),
				"policies", len(row.Policies), "rules", len(row.Rules))
			in.table.row = &row
			in.memory.hadPolicies = in.memory.hadPolicies || len(row.Policies) > 0
			return attempt == 0, nil
		}
		if done, err := r.refused(ctx, in, d, refusal, revision); done || err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("writing the row of %s: refused %d times", in.workload, maxPublishAttempts)
}

// refused answers a refusal; done says that trying again is useless for now.
func (r *Reconciler) refused(
	ctx context.Context, in *input, d *decision, refusal policy.Refusal, revision policy.Revision,
) (done bool, err error) {
	r.metrics.refusals.WithLabelValues(string(refusal)).Inc()
	log.FromContext(ctx).Info("Table refused the row", "refusal", refusal, "revision", inStatus(revision))
	switch refusal {
	case policy.RefusedOwner:
		r.owner.doubt()
		in.table.state = tableElsewhere
		return true, nil
	case policy.RefusedVersion:
		in.table.newer = true
		return true, nil
	case policy.RefusedStale:
		return r.refusedStale(ctx, in, d)
	default:
		in.table, err = r.view(ctx, in.workload)
		if err != nil || in.table.state != tableOurs {
			return true, err
		}
		_, highest, _ := nextRevision(revision.Epoch, revision, seenRevisions(in))
		return false, r.raise(ctx, highest)
	}
}

// refusedStale answers that the list of policies is older than the one in the table. The cache may be behind; if the
// live list is older too, the API server was restored from a backup, and the live list is the truth: written without a
// version it is compared by its revision alone.
func (r *Reconciler) refusedStale(ctx context.Context, in *input, d *decision) (done bool, err error) {
	wasLive := in.confirmed
	if err := r.confirm(ctx, in); err != nil {
		return false, err
	}
	if wasLive {
		log.FromContext(ctx).Info("API server is behind the table and is taken at its word", "list", in.list)
		in.list = ""
	}
	*d = decide(in, r.leadership.Installation())
	return !d.writeRow, nil
}

// raise goes on with a higher epoch, if this process still leads.
func (r *Reconciler) raise(ctx context.Context, highest string) error {
	epoch, err := r.leadership.Raise(ctx, highest)
	if err != nil {
		return err
	}
	r.owner.doubt()
	log.FromContext(ctx).Info("Continuing with a higher epoch", "epoch", epoch, "seen", highest)
	return nil
}

func (r *Reconciler) publishReplicas(ctx context.Context, in *input, replicas policy.Replicas) error {
	for range maxPublishAttempts {
		epoch, err := r.leadership.Epoch(ctx)
		if err != nil {
			return err
		}
		if _, highest, ok := nextRevision(epoch, in.memory.revision, seenRevisions(in)); !ok {
			if err := r.raise(ctx, highest); err != nil {
				return err
			}
			continue
		}
		refusal, err := r.table.PublishReplicas(ctx, in.workload, epoch, replicas)
		if err != nil {
			in.table = r.failed(ctx, in.workload, in.table, fmt.Errorf("writing the replicas: %w", err))
			return nil
		}
		switch refusal {
		case policy.Accepted:
			r.metrics.rowsWritten.WithLabelValues(kindReplicas).Inc()
			if held := in.table.published.Replicas; held == nil || held.N != replicas.N {
				log.FromContext(ctx).Info("Counted replicas", "replicas", replicas.N, "ready", replicas.Ready,
					"desired", replicas.Desired, "terminating", replicas.Terminating)
			}
			in.table.published.Replicas = &replicas
			in.memory.replicas, in.memory.written = &replicas, in.now
			return nil
		case policy.RefusedOwner:
			r.metrics.refusals.WithLabelValues(string(refusal)).Inc()
			r.owner.doubt()
			in.table.state = tableElsewhere
			return nil
		default:
			r.metrics.refusals.WithLabelValues(string(refusal)).Inc()
			if err := r.raise(ctx, epoch); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("writing the replicas of %s: refused %d times", in.workload, maxPublishAttempts)
}

// forget drops a workload that has no policy, no row and no enforcer.
func (r *Reconciler) forget(ctx context.Context, in *input) {
	if r.table != nil {
		if err := r.table.Forget(ctx, in.workload); err != nil {
			in.table = r.failed(ctx, in.workload, in.table, fmt.Errorf("forgetting the workload: %w", err))
			return
		}
	}
	r.memories.forget(in.workload)
}

// failed turns an error of the table into a state of the view. What was read or written before stays known. A fault of
// this workload alone is no outage: the others go on.
func (r *Reconciler) failed(ctx context.Context, w policy.Workload, view tableView, err error) tableView {
	view.state = tableUnreachable
	if !ofWorkload(err) {
		view.outage = r.owner.fail(err)
		return view
	}
	r.owner.answered()
	r.metrics.tableFaults.Inc()
	view.fault = err
	m := r.memories.of(w)
	if m.faults == 0 {
		log.FromContext(ctx).Error(err, "Policy table fails over this workload alone")
	}
	m.faults++
	return view
}

// repaired tells what the table deleted of a workload, at most once a minute: who damages keys can do so all the time.
func (r *Reconciler) repaired(ctx context.Context, w policy.Workload, kinds []string) {
	if len(kinds) == 0 {
		return
	}
	for _, kind := range kinds {
		r.metrics.repairs.WithLabelValues(kind).Inc()
	}
	m, now := r.memories.of(w), r.owner.clock()
	if now.Before(m.repairTold.Add(tellRepairsEvery)) {
		return
	}
	m.repairTold = now
	log.FromContext(ctx).Info("Deleted keys of the workload that were of another type; who may write to them?", "keys", kinds)
}
