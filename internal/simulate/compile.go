package simulate

import (
	"fmt"

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
