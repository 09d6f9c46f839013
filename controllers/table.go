// Package controllers owns the reconciler: it reads the policies and the live replicas of one workload, compiles them,
// publishes the row, and reports what the pods do with it.
package controllers

import (
	"context"
	"errors"

	"github.com/weir-dev/weir/internal/policy"
)

// Table is what the reconciler needs of the policy table. Every write is fenced: see docs/architecture.md.
//
// An error of Read, Publish or PublishReplicas that has a method OfWorkload which returns true is about what the table
// holds for that workload, while the table answers; any other error is an outage of the whole table.
type Table interface {
	// Claim makes this installation the owner, or refreshes it. It returns the owner: another installation's when that
	// one was seen within five minutes.
	Claim(ctx context.Context, epoch string) (owner string, err error)
	// Evicts names the eviction policy of a store that may drop rows to make room; empty when none does.
	Evicts(ctx context.Context) (evictionPolicy string, err error)
	// Read also deletes what stands in the place of the workload's keys and can be none of them. repaired has the kinds of
	// these keys, of RepairedKeys.
	Read(ctx context.Context, w policy.Workload) (published policy.Published, repaired []string, err error)
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

// RepairedKeys are the kinds of keys of one workload that Read may delete.
var RepairedKeys = []string{"row", "replicas", "fence", "members", "deadlines", "reports", "membership"}

// ofWorkload says that an error of the table is about one workload alone.
func ofWorkload(err error) bool {
	var fault interface{ OfWorkload() bool }
	return errors.As(err, &fault) && fault.OfWorkload()
}
