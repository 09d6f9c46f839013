package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// byTarget indexes policies by the string form of the workload that they target.
const byTarget = "spec.targetRef"

// input is all that one pass knows before it decides.
type input struct {
	now      time.Time
	workload policy.Workload
	// policies target the workload, ordered by name; list is the resourceVersion that they were listed at.
	policies   []v1alpha1.RateLimitPolicy
	list       string
	confirmed  bool // the list was read live
	deployment policy.DeploymentStatus
	table      tableView
	snapshot   snapshotView
	memory     *memory
}

// read collects the input from the caches and the table. An unreachable table is no error: it is part of the input.
func (r *Reconciler) read(ctx context.Context, w policy.Workload, now time.Time) (*input, error) {
	in := &input{now: now, workload: w, memory: r.memories.of(w)}
	in.list = r.listed.version()
	var err error
	in.policies, _, err = policiesOf(ctx, r.client, w, client.MatchingFields{byTarget: w.String()})
	if err != nil {
		return nil, err
	}
	for i := range in.policies {
		in.list = newer(in.list, in.policies[i].ResourceVersion)
	}
	in.deployment, err = deploymentStatus(ctx, r.client, w)
	if err != nil {
		return nil, err
	}
	in.snapshot = r.viewSnapshot(ctx, w, asksForSnapshot(in.policies))
	in.table, err = r.view(ctx, w)
	in.memory.replicas = policy.LaterReplicas(in.table.published.Replicas, in.memory.replicas)
	return in, err
}

// confirm reads the policies again, live: nobody loses limits because a cache was behind.
func (r *Reconciler) confirm(ctx context.Context, in *input) error {
	policies, version, err := policiesOf(ctx, r.live, in.workload)
	if err != nil {
		return err
	}
	in.policies, in.list, in.confirmed = policies, version, true
	return nil
}

// policiesOf lists the policies that target a workload and are not being deleted, ordered by name, and the
// resourceVersion of the list where the reader tells it.
func policiesOf(
	ctx context.Context, reader client.Reader, w policy.Workload, options ...client.ListOption,
) ([]v1alpha1.RateLimitPolicy, string, error) {
	var list v1alpha1.RateLimitPolicyList
	if err := reader.List(ctx, &list, append(options, client.InNamespace(w.Namespace))...); err != nil {
		return nil, "", fmt.Errorf("listing the policies of %s: %w", w, err)
	}
	policies := slices.DeleteFunc(list.Items, func(p v1alpha1.RateLimitPolicy) bool {
		return targetOf(&p) != w || p.DeletionTimestamp != nil
	})
	slices.SortFunc(policies, func(a, b v1alpha1.RateLimitPolicy) int { return strings.Compare(a.Name, b.Name) })
	return policies, list.ResourceVersion, nil
}

// targetOf is the workload that a policy limits.
func targetOf(p *v1alpha1.RateLimitPolicy) policy.Workload {
	return policy.Workload{
		Namespace: p.Namespace,
		Group:     p.Spec.TargetRef.Group,
		Kind:      p.Spec.TargetRef.Kind,
		Name:      p.Spec.TargetRef.Name,
	}
}

func deploymentStatus(ctx context.Context, reader client.Reader, w policy.Workload) (policy.DeploymentStatus, error) {
	var d appsv1.Deployment
	err := reader.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, &d)
	if apierrors.IsNotFound(err) {
		return policy.DeploymentStatus{}, nil
	}
	if err != nil {
		return policy.DeploymentStatus{}, fmt.Errorf("reading Deployment %s/%s: %w", w.Namespace, w.Name, err)
	}
	return countsOf(&d), nil
}

// countsOf is what is counted of a Deployment.
func countsOf(d *appsv1.Deployment) policy.DeploymentStatus {
	counts := policy.DeploymentStatus{
		UID:      string(d.UID),
		Observed: d.Status.ObservedGeneration > 0,
		Desired:  d.Spec.Replicas,
		Replicas: d.Status.Replicas,
		Ready:    d.Status.ReadyReplicas,
	}
	if d.Status.TerminatingReplicas != nil {
		counts.Terminating = *d.Status.TerminatingReplicas
	}
	return counts
}

// workloadOf is the workload that a Deployment is.
func workloadOf(d *appsv1.Deployment) policy.Workload {
	return policy.Workload{Namespace: d.Namespace, Group: appsv1.GroupName, Kind: "Deployment", Name: d.Name}
}
