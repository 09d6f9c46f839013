// Package controllers owns the reconciler: it reads the policies and the live replicas of one workload, compiles them,
// publishes the row, and reports what the pods do with it.
package controllers

import (
	"context"

	"github.com/weir-dev/weir/internal/policy"
)

// Table is what the reconciler needs of the policy table. Every write is fenced: see docs/architecture.md.
type Table interface {
	// Claim makes this installation the owner, or refreshes it. It returns the owner: another installation's when that
	// one was seen within five minutes.
	Claim(ctx context.Context, epoch string) (owner string, err error)
	// Evicts names the eviction policy of a store that may drop rows to make room; empty when none does.
	Evicts(ctx context.Context) (evictionPolicy string, err error)
	Read(ctx context.Context, w policy.Workload) (policy.Published, error)
	// Publish writes a row, with the workload entered in the set of workloads before it, and tells the enforcers.
	// A row without rules expires after 24 h.
	Publish(ctx context.Context, w policy.Workload, row policy.Row) (policy.Refusal, error)
	PublishReplicas(ctx context.Context, w policy.Workload, epoch string, replicas policy.Replicas) (policy.Refusal, error)
	// Workloads lists the workloads of this table that have or had a row.
	Workloads(ctx context.Context) ([]policy.Workload, error)
	// Forget drops a workload whose tombstone has expired from the set.
	Forget(ctx context.Context, w policy.Workload) error
	// Listen calls back with each workload whose enforcer misses its row or whose members changed, and with nil when
	// the connection came back, until ctx ends.
	Listen(ctx context.Context, hint func(*policy.Workload)) error
}
