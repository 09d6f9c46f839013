package simulate

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// compile returns the row of a workload and its form for the table.
func compile(w policy.Workload, policies []policy.Policy) (policy.Row, []byte, error) {
	row, verdicts := policy.Compile(w, "simulate", policies)
	for _, v := range verdicts {
		if !v.Accepted() {
			return row, nil, fmt.Errorf("policy %s/%s: %s: %s", w.Namespace, v.Name, v.Reason, v.Message)
		}
	}
	row.Revision = policy.Revision{Epoch: "1", N: 1}
	encoded, err := policy.EncodeRow(row)
	return row, encoded, err
}

// table holds the row that is replayed against, and has one member.
type table struct{ row []byte }

// Read returns the row.
func (t table) Read(context.Context) (enforcer.TableState, error) {
	return enforcer.TableState{Row: t.row, Owner: "simulate"}, nil
}

// Heartbeat answers that nobody else is there.
func (t table) Heartbeat(context.Context, policy.Report, time.Duration) (enforcer.Standing, error) {
	return enforcer.Standing{Count: 1, Version: 1}, nil
}

// Leave, Listen and AskForRow have nothing to do.
func (t table) Leave(context.Context, string) error { return nil }

// Listen waits for the end.
func (t table) Listen(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// AskForRow has nobody to ask.
func (t table) AskForRow(context.Context) error { return nil }
