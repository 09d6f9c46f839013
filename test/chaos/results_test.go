package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// result is a row of the table. Counts are sums over all windows and keys of the row.
type result struct {
	Fault string `json:"fault"`
	Mode  string `json:"mode"`
	// Admitted must lie between Least and Bound, and so in every single window; Worst… is the window nearest to its
	// bound, or farthest beyond it.
	Admitted      int64 `json:"admitted"`
	Bound         int64 `json:"bound"`
	Least         int64 `json:"least"`
	WorstAdmitted int64 `json:"worst_window_admitted"`
	WorstBound    int64 `json:"worst_window_bound"`
	Windows       int   `json:"windows"`

	Decisions int     `json:"decisions"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Max       float64 `json:"max_ms"`
	// Noise is by how much the machine woke a goroutine too late that did nothing but wait, at the 99.9th percentile.
	Noise float64 `json:"noise_p999_ms"`
	// Open is how long a whole decision took while the breaker was open, in µs.
	Open float64 `json:"open_us,omitempty"`
	// Recovered is the time from the end of the fault until every replica decided by the store again, or, of faults of
	// the controller, by the policy that was edited.
	Recovered float64 `json:"recovered_s"`
	Replicas  int     `json:"replicas"`
	// Disturbed counts the replicas that went without a healthy store once, because the machine was too busy: in such
	// windows L·(1 + k/N) is promised instead of L.
	Disturbed int64 `json:"disturbed"`

	Pass   bool     `json:"pass"`
	Broken []string `json:"broken,omitempty"`
}

// results collects the rows of all rounds.
type results struct {
	mu   sync.Mutex
	rows []result
}

// add takes a row; one of the same fault and mode from an earlier round becomes the worse of both.
func (r *results) add(row result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.rows, func(o result) bool { return o.Fault == row.Fault && o.Mode == row.Mode })
	if i < 0 {
		r.rows = append(r.rows, row)
		return
	}
	sum := &r.rows[i]
	if row.WorstAdmitted*max(1, sum.WorstBound) > sum.WorstAdmitted*max(1, row.WorstBound) {
		sum.WorstAdmitted, sum.WorstBound = row.WorstAdmitted, row.WorstBound
	}
	sum.Admitted, sum.Bound, sum.Least = sum.Admitted+row.Admitted, sum.Bound+row.Bound, sum.Least+row.Least
	sum.Windows, sum.Decisions = sum.Windows+row.Windows, sum.Decisions+row.Decisions
	sum.P99, sum.P999, sum.Max = max(sum.P99, row.P99), max(sum.P999, row.P999), max(sum.Max, row.Max)
	sum.Noise = max(sum.Noise, row.Noise)
	sum.Open, sum.Recovered = max(sum.Open, row.Open), max(sum.Recovered, row.Recovered)
	sum.Disturbed += row.Disturbed
	sum.Pass = sum.Pass && row.Pass
	sum.Broken = append(sum.Broken, row.Broken...)
}

// print shows the table in the order of the faults.
func (r *results) print(t *testing.T, seed uint64) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tMODE\tADMITTED\tBOUND\tWORST WINDOW\tP99\tP99.9\tMAX\tNOISE P99.9\tOPEN\tRECOVERED\tDISTURBED\tPASS")
	for _, row := range r.rows {
		open := "-"
		if row.Open > 0 {
			open = fmt.Sprintf("%.1f µs", row.Open)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d of %d\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\t%s\t%.1f s\t%d\t%v\n", row.Fault, row.Mode,
			row.Admitted, row.Bound, row.WorstAdmitted, row.WorstBound, row.P99, row.P999, row.Max, row.Noise, open, row.Recovered, row.Disturbed, row.Pass)
	}
	_ = w.Flush()
	promised, within, quiet := *timeoutFlag+overTime, 0, 0
	for _, row := range r.rows {
		if row.P999 <= milliseconds(int64(promised)) {
			within++
		}
		if row.P999-row.Noise <= milliseconds(int64(promised)) {
			quiet++
		}
	}
	t.Logf("seed %d\n%sp99.9 within %v in %d of %d rows, and in %d without the machine's own noise",
		seed, out.String(), promised, within, len(r.rows), quiet)
}

// write writes the rows as JSON.
func (r *results) write(t *testing.T, path string) {
	data, err := json.MarshalIndent(r.rows, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Errorf("writing the results: %v", err)
	}
}

func (r *results) sort() {
	slices.SortStableFunc(r.rows, func(a, b result) int {
		return cmp.Or(cmp.Compare(place(a.Fault), place(b.Fault)), cmp.Compare(b.Mode, a.Mode))
	})
}

// place is a fault's in the table; those of the controller come last.
func place(name string) int {
	i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
	if i < 0 {
		return len(faults)
	}
	return i
}
