package ratelimit

import (
	"context"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// PolicySource gives policies without a policy table. Package ratelimit/file has one for files.
//
// A replica that reads its policies from elsewhere does not hear of the other replicas: while the store is away, it
// admits a whole limit on its own, and it does not notice when a store that nobody asked came back empty. Replicas that
// are several in an outage need the policy table or Options.SnapshotFile.
type PolicySource interface {
	// ReadRow returns the policies of the workload "namespace/group/kind/name", in the form that the policy table
	// holds: see package ratelimit/file. It is called at every poll. A row of a lower or the same revision as the last
	// one changes nothing; nil means that there is none.
	ReadRow(ctx context.Context, workload string) ([]byte, error)
}

// sourceTable is a policy table with one reader.
type sourceTable struct {
	source   PolicySource
	workload policy.Workload
}

var _ enforcer.Table = sourceTable{}

func (t sourceTable) Read(ctx context.Context) (enforcer.TableState, error) {
	row, err := t.source.ReadRow(ctx, t.workload.String())
	return enforcer.TableState{Row: row, Replicas: aloneFromTheStart, Owner: "policy source"}, err
}

// aloneFromTheStart is a count of one replica before which none ran: nobody tells of others.
var aloneFromTheStart = []byte(`{"v":1,"n":1,"ready":0,"desired":1,"terminating":0,"at":0,"membersVersion":0,"idleSince":1}`)

func (sourceTable) Heartbeat(context.Context, policy.Report, time.Duration) (enforcer.Standing, error) {
	return enforcer.Standing{Count: 1}, nil
}

func (sourceTable) Leave(context.Context, string) error { return nil }

func (sourceTable) Listen(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

func (sourceTable) AskForRow(context.Context) error { return nil }
