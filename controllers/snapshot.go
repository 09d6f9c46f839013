package controllers

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	// snapshotLabel is on every ConfigMap that the reconciler may touch; it sees no others.
	snapshotLabel, snapshotLabelValue = "ratelimit.weir.dev/snapshot", "true"
	// workloadAnnotation says whose snapshot it is; names of workloads can be longer than labels.
	workloadAnnotation = "ratelimit.weir.dev/workload"
	// unusedAnnotation says since when no policy has asked for it.
	unusedAnnotation = "ratelimit.weir.dev/unused-since"
	// snapshotKey is the file that pods find it in.
	snapshotKey = "row.json"

	// snapshotEvery is how often a ConfigMap is written at most for the sake of the count alone, unless it rises.
	snapshotEvery = 5 * time.Second
	// unusedLife is how long a snapshot stays that nobody asks for any more: pods must read that their limits are gone.
	unusedLife = 24 * time.Hour
	// retryConflict is how soon a write is tried again that met a newer object.
	retryConflict = time.Second
)

// snapshotState says what can be done with the ConfigMap of a workload.
type snapshotState int

const (
	// snapshotUnseen: nobody looked.
	snapshotUnseen snapshotState = iota
	// snapshotOff: the controller runs without snapshots.
	snapshotOff
	// snapshotOurs: there is none, or it is ours.
	snapshotOurs
	// snapshotTaken: an object of that name exists and is not ours.
	snapshotTaken
	// snapshotFailed: the API server refused to read or write it.
	snapshotFailed
)

// snapshotView is what one pass sees of the workload's ConfigMap.
type snapshotView struct {
	state   snapshotState
	failure error
	// object is nil when there is none of ours. row and replicas are what it holds, nil where that cannot be read.
	object   *corev1.ConfigMap
	row      *policy.Row
	replicas *policy.Replicas
	// again is when to try what had to wait; zero for never.
	again time.Duration
}

// asksForSnapshot says whether one of the policies wants the workload to have a snapshot.
func asksForSnapshot(policies []v1alpha1.RateLimitPolicy) bool {
	return slices.ContainsFunc(policies, func(p v1alpha1.RateLimitPolicy) bool {
		return p.Spec.Snapshot == v1alpha1.SnapshotConfigMap
	})
}

// viewSnapshot reads the ConfigMap from the cache, which has ours only. Whether there is somebody else's is asked live,
// and only where one of ours is wanted and missing.
func (r *Reconciler) viewSnapshot(ctx context.Context, w policy.Workload, asked bool) snapshotView {
	if !r.snapshots {
		return snapshotView{state: snapshotOff}
	}
	key := client.ObjectKey{Namespace: w.Namespace, Name: policy.SnapshotName(w.Name)}
	var found corev1.ConfigMap
	err := r.client.Get(ctx, key, &found)
	if apierrors.IsNotFound(err) && asked {
		err = r.live.Get(ctx, key, &found)
	}
	switch {
	case apierrors.IsNotFound(err):
		return snapshotView{state: snapshotOurs}
	case err != nil:
		return snapshotView{state: snapshotFailed, failure: fmt.Errorf("reading ConfigMap %s: %w", key, err)}
	case found.Labels[snapshotLabel] != snapshotLabelValue || found.Annotations[workloadAnnotation] != w.String():
		return snapshotView{state: snapshotTaken}
	}
	view := snapshotView{state: snapshotOurs, object: &found}
	snapshot, err := policy.DecodeSnapshot([]byte(found.Data[snapshotKey]), w.String())
	if err != nil {
		return view // it will be replaced
	}
	if row, _, err := policy.DecodeRow(snapshot.Row); err == nil {
		view.row = &row
	}
	if replicas, err := policy.DecodeReplicas(snapshot.Replicas); err == nil {
		view.replicas = &replicas
	}
	return view
}

// snapshotPlan is what is to become of a workload's ConfigMap. The zero value leaves it alone.
type snapshotPlan struct {
	write, remove bool
	row           policy.Row
	// fresh says that the row needs a revision: it is in no table.
	fresh    bool
	replicas *policy.Replicas
	// unusedSince is zero while a policy asks for it.
	unusedSince time.Time
}

// planSnapshot is pure. The snapshot follows the table; while there is none, or it does not answer, the row is made for
// the snapshot alone.
func planSnapshot(in *input, d *decision, installation string) snapshotPlan {
	s := &in.snapshot
	asked := asksForSnapshot(in.policies)
	switch {
	case s.state != snapshotOurs, in.table.state == tableElsewhere, in.table.newer:
		return snapshotPlan{}
	case s.object == nil && (!asked || in.deployment.UID == ""):
		return snapshotPlan{} // nobody asks, or nobody could own it
	}
	p := snapshotPlan{row: d.row, replicas: d.replicas}
	if !asked {
		p.unusedSince = in.now
		if since, err := time.Parse(time.RFC3339, s.object.Annotations[unusedAnnotation]); err == nil {
			p.unusedSince = since
		}
		// Where policies remain, pods hear of them from the table. Otherwise this is how they hear that limits are gone.
		told := in.table.state != tableNone && len(in.policies) > 0
		if told || !in.now.Before(p.unusedSince.Add(unusedLife)) {
			p.remove = true
			return p
		}
	}
	switch held := in.table.row; {
	case in.table.state == tableOurs && held != nil && held.Owner == installation:
		p.row = *held
	case s.row != nil && s.row.Owner == installation && sameBody(*s.row, d.row):
		p.row = *s.row
	default:
		p.fresh = true
	}
	if !p.fresh && s.row != nil && p.row.Revision.Compare(s.row.Revision) < 0 {
		return snapshotPlan{} // the table goes on above it with its next write
	}
	p.write = true
	return p
}

// snapshotHold says how long a write has to wait that is about nothing but the count; zero when it need not.
func snapshotHold(in *input, p *snapshotPlan) time.Duration {
	s := &in.snapshot
	if p.fresh || s.row == nil || s.replicas == nil || p.replicas == nil || p.row.Revision != s.row.Revision ||
		p.replicas.N > s.replicas.N {
		return 0
	}
	return wait(in.now, in.memory.snapshotWritten.Add(snapshotEvery))
}

// publishSnapshot writes or deletes the ConfigMap where it differs. What the API server refuses is a state, not an
// error: it must not keep the policies' status from being written.
func (r *Reconciler) publishSnapshot(ctx context.Context, in *input, d *decision) error {
	p := planSnapshot(in, d, r.leadership.Installation())
	switch {
	case p.remove:
		r.removeSnapshot(ctx, in)
		return nil
	case !p.write:
		return nil
	}
	if p.fresh {
		revision, err := r.freshRevision(ctx, in)
		if err != nil {
			return err
		}
		p.row.Revision = revision
	}
	wanted, err := snapshotObject(in, &p)
	if err != nil {
		return err
	}
	if in.snapshot.object != nil && sameObject(in.snapshot.object, wanted) {
		return nil
	}
	if hold := snapshotHold(in, &p); hold > 0 {
		in.snapshot.again = hold
		return nil
	}
	if in.snapshot.object == nil {
		err = r.client.Create(ctx, wanted)
	} else {
		err = r.client.Update(ctx, wanted)
	}
	if r.snapshotFailed(ctx, in, "writing", err) {
		return nil
	}
	r.metrics.snapshotWrites.Inc()
	if s := &in.snapshot; s.row == nil || s.row.Revision != p.row.Revision {
		log.FromContext(ctx).Info("Wrote snapshot", "configMap", wanted.Name, "revision", inStatus(p.row.Revision),
			"rules", len(p.row.Rules))
	}
	in.snapshot.object, in.snapshot.row, in.snapshot.replicas = wanted, &p.row, p.replicas
	in.memory.snapshotWritten = in.now
	return nil
}

// freshRevision is one for a row that is in no table.
func (r *Reconciler) freshRevision(ctx context.Context, in *input) (policy.Revision, error) {
	for range maxPublishAttempts {
		epoch, err := r.leadership.Epoch(ctx)
		if err != nil {
			return policy.Revision{}, err
		}
		revision, highest, ok := nextRevision(epoch, in.memory.revision, seenRevisions(in))
		if ok {
			in.memory.revision = revision
			return revision, nil
		}
		if err := r.raise(ctx, highest); err != nil {
			return policy.Revision{}, err
		}
	}
	return policy.Revision{}, fmt.Errorf("finding a revision for %s: no epoch is high enough", in.workload)
}

func (r *Reconciler) removeSnapshot(ctx context.Context, in *input) {
	object := in.snapshot.object
	err := r.client.Delete(ctx, object, client.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion})
	if r.snapshotFailed(ctx, in, "deleting", client.IgnoreNotFound(err)) {
		return
	}
	r.metrics.snapshotWrites.Inc()
	log.FromContext(ctx).Info("Deleted snapshot", "configMap", object.Name)
	in.snapshot = snapshotView{state: snapshotOurs}
}

// snapshotFailed turns an error into a state of the input.
func (r *Reconciler) snapshotFailed(ctx context.Context, in *input, what string, err error) bool {
	switch {
	case err == nil:
		return false
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err): // the cache is behind
		in.snapshot.again = retryConflict
		return true
	}
	r.metrics.snapshotFailures.Inc()
	err = fmt.Errorf("%s ConfigMap %s: %w", what, policy.SnapshotName(in.workload.Name), err)
	log.FromContext(ctx).Error(err, "Snapshot could not be changed")
	in.snapshot.state, in.snapshot.failure, in.snapshot.again = snapshotFailed, err, retryTable
	return true
}

// snapshotObject is the ConfigMap as it should be, made of the one that is there.
func snapshotObject(in *input, p *snapshotPlan) (*corev1.ConfigMap, error) {
	data, err := encodeSnapshot(p)
	if err != nil {
		return nil, err
	}
	object := &corev1.ConfigMap{}
	if in.snapshot.object != nil {
		object = in.snapshot.object.DeepCopy()
	}
	object.Namespace, object.Name = in.workload.Namespace, policy.SnapshotName(in.workload.Name)
	object.Data, object.BinaryData = map[string]string{snapshotKey: string(data)}, nil
	object.Labels = with(object.Labels, snapshotLabel, snapshotLabelValue)
	object.Annotations = with(object.Annotations, workloadAnnotation, in.workload.String())
	if p.unusedSince.IsZero() {
		delete(object.Annotations, unusedAnnotation)
	} else {
		object.Annotations = with(object.Annotations, unusedAnnotation, p.unusedSince.UTC().Format(time.RFC3339))
	}
	if in.deployment.UID != "" {
		object.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: appsv1.SchemeGroupVersion.String(), Kind: in.workload.Kind, Name: in.workload.Name,
			UID: types.UID(in.deployment.UID),
		}}
	}
	return object, nil
}

func encodeSnapshot(p *snapshotPlan) ([]byte, error) {
	row, err := policy.EncodeRow(p.row)
	if err != nil {
		return nil, err
	}
	snapshot := policy.Snapshot{Row: row}
	if p.replicas != nil {
		if snapshot.Replicas, err = policy.EncodeReplicas(*p.replicas); err != nil {
			return nil, err
		}
	}
	return policy.EncodeSnapshot(snapshot)
}

func with(m map[string]string, key, value string) map[string]string {
	if m = maps.Clone(m); m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// sameObject compares what the reconciler writes of a ConfigMap.
func sameObject(a, b *corev1.ConfigMap) bool {
	return maps.Equal(a.Data, b.Data) && len(a.BinaryData) == len(b.BinaryData) && maps.Equal(a.Labels, b.Labels) &&
		maps.Equal(a.Annotations, b.Annotations) && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// workloadsOfSnapshot is the workload that a ConfigMap of ours is about.
func (r *Reconciler) workloadsOfSnapshot(_ context.Context, object *corev1.ConfigMap) []policy.Workload {
	w, err := policy.ParseWorkload(object.Annotations[workloadAnnotation])
	if err != nil || w.Namespace != object.Namespace || policy.SnapshotName(w.Name) != object.Name {
		return nil // somebody else has set our label
	}
	return []policy.Workload{w}
}
