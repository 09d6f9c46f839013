package skew

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
)

// limiter is a library of today that polls fast and waits for a busy machine.
func limiter(t *testing.T, addr string, r prometheus.Registerer) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Options{
		Namespace: checkout.Namespace, Workload: checkout.Name, Table: table,
		Redis:        &redis.UniversalOptions{Addrs: []string{addr}},
		PollInterval: 50 * time.Millisecond, StoreTimeout: 5 * time.Second, Registerer: r,
		SnapshotFile: filepath.Join(t.TempDir(), "none"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := l.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// value sums the series of a name, of those alone that have a label with this value if one is given.
func value(t *testing.T, r *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	found := false
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || label != "" && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
				continue
			}
			found = true
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if !found {
		t.Fatalf("no series %s %s", name, label)
	}
	return sum
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.After(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("after 30 s it does not hold that %s", what)
		case <-tick.C:
		}
	}
}

// A library of today enforces all of an old row, and counts each request where the old library counted it.
func TestNewLibraryOldRow(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			addr, client := server(t)
			put(t, client, c.row)
			r := prometheus.NewPedanticRegistry()
			l := limiter(t, addr, r)
			if got := value(t, r, "weir_rules_skipped", ""); got != 0 {
				t.Errorf("%v rules are skipped", got)
			}
			for i := range c.requests {
				request := &c.requests[i]
				before := keysNow(t, client)
				if d := request.decide(t, l); !d.Allowed || d.Source != ratelimit.SourceStore {
					t.Fatalf("request %d: %+v", i, d)
				}
				for _, key := range request.Keys {
					if n, err := client.Exists(t.Context(), key).Result(); err != nil || n == 0 {
						t.Errorf("request %d: %s is not counted any more (%v)", i, key, err)
					}
				}
				added := slices.DeleteFunc(keysNow(t, client), func(key string) bool {
					return slices.Contains(before, key) || slices.Contains(request.Keys, key)
				})
				if len(added) > 0 {
					t.Errorf("request %d: counted at %q, where the old library does not", i, added)
				}
			}
		})
	}
}

func keysNow(t *testing.T, client redis.UniversalClient) []string {
	t.Helper()
	keys, err := client.Keys(t.Context(), "weir:"+table+":c:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// What a later controller may write while a library of today enforces a good row.
func TestOldLibraryNewRow(t *testing.T) {
	// The rules of the row in force are those of good, unless taken says that the new one is enforced.
	cases := map[string]struct {
		problem string // what weir_row_problems_total calls it; empty when the row is taken
		skipped float64
		rules   float64
	}{
		"row-next-version.json":      {problem: "newer_version", rules: 5},
		"row-unknown-algorithm.json": {problem: "corrupt", rules: 5}, // it should have carried needs
		"row-no-rules-list.json":     {problem: "corrupt", rules: 5}, // a list under another name is no empty one
		"row-unknown-fields.json":    {rules: 1},
		"row-needs.json":             {skipped: 1, rules: 1},
		"row-only-needs.json":        {skipped: 1, rules: 0},
	}
	files, err := filepath.Glob(filepath.Join("testdata", "future", "row-*.json"))
	if err != nil || len(files) != len(cases) {
		t.Fatalf("%d rows in testdata/future, and %d cases (%v)", len(files), len(cases), err)
	}
	good := versions(t)[0]
	for file, want := range cases {
		t.Run(file, func(t *testing.T) {
			addr, client := server(t)
			put(t, client, good.row)
			r := prometheus.NewPedanticRegistry()
			l := limiter(t, addr, r)
			put(t, client, future(t, file))
			eventually(t, "the new row was read", func() bool {
				if want.problem != "" {
					return value(t, r, "weir_row_problems_total", want.problem) > 0
				}
				return value(t, r, "weir_rules", "") == want.rules && value(t, r, "weir_rules_skipped", "") == want.skipped
			})
			if got := value(t, r, "weir_rules", ""); got != want.rules {
				t.Errorf("%v rules in force, want %v", got, want.rules)
			}
			d := good.requests[0].decide(t, l) // exports
			if limited := want.rules > 0; d.Rule != map[bool]string{true: "exports"}[limited] || !d.Allowed {
				t.Errorf("decided by %+v", d)
			}
			// The next good row is taken again.
			later := strings.Replace(string(good.row), `"n":7}`, `"n":99}`, 1)
			put(t, client, []byte(later))
			eventually(t, "the good row is in force again", func() bool {
				return value(t, r, "weir_rules", "") == 5 && value(t, r, "weir_rules_skipped", "") == 0
			})
		})
	}
}

// Counts and owners of a later version: the last good count stays, and a table with an owner of any form has one.
func TestOldLibraryNewCountAndOwner(t *testing.T) {
	addr, client := server(t)
	c := versions(t)[0]
	put(t, client, c.row)
	if err := client.Set(t.Context(), key("replicas"), c.replicas, 0).Err(); err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	limiter(t, addr, r)
	if got := value(t, r, "weir_replicas", ""); got != 3 {
		t.Fatalf("%v replicas, want 3", got)
	}
	for key, file := range map[string]string{key("replicas"): "replicas-next-version.json", "weir:" + table + ":owner": "owner.json"} {
		if err := client.Set(t.Context(), key, future(t, file), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	later := strings.Replace(string(c.row), `"n":7}`, `"n":8}`, 1)
	later = strings.Replace(later, `"name":"tried"`, `"name":"tested"`, 1)
	if err := client.Set(t.Context(), key("row"), later, 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the library polled", func() bool {
		families, err := r.Gather()
		return err == nil && slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
			return f.GetName() == "weir_limit_requests" && strings.Contains(f.String(), `"tested"`)
		})
	})
	if got := value(t, r, "weir_replicas", ""); got != 3 {
		t.Errorf("%v replicas after a count of a later version, want the last good one, 3", got)
	}
	if got := value(t, r, "weir_table_owned", ""); got != 1 {
		t.Error("the owner's record of a later version reads as no owner")
	}
	if err := client.Set(t.Context(), key("replicas"), future(t, "replicas-unknown-fields.json"), 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a count with unknown fields is taken", func() bool { return value(t, r, "weir_replicas", "") == 4 })
}

// A snapshot that an old controller wrote, and one of a later version.
func TestNewLibraryOldSnapshot(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "row.json")
			write(t, filepath.Dir(file), "row.json", c.snapshot)
			r := prometheus.NewPedanticRegistry()
			l, err := ratelimit.New(ratelimit.Options{
				Namespace: checkout.Namespace, Workload: checkout.Name, SnapshotFile: file, Counters: ratelimit.Memory(),
				PollInterval: 50 * time.Millisecond, Registerer: r,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			defer func() {
				cancel()
				<-ended
			}()
			if err := l.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := []float64{value(t, r, "weir_rules", ""), value(t, r, "weir_replicas", "")}
			if diff := cmp.Diff([]float64{5, 3}, got); diff != "" {
				t.Errorf("rules and replicas (-want +got):\n%s", diff)
			}
			write(t, filepath.Dir(file), "row.json", future(t, "snapshot-next-version.json"))
			eventually(t, "the snapshot of a later version is told", func() bool {
				return value(t, r, "weir_snapshot_problems_total", "newer_version") > 0
			})
			if got := value(t, r, "weir_rules", ""); got != 5 {
				t.Errorf("%v rules in force, want the 5 of the last good snapshot", got)
			}
		})
	}
}
