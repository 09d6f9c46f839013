package postgres_test

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
	"github.com/weir-dev/weir/test/env"
)

// Replicas whose counters are in PostgreSQL need no Redis for their policies: they mount the controller's ConfigMap.
func TestPoliciesFromAMountedSnapshot(t *testing.T) {
	server := env.Postgres(t)
	mount := &env.Mount{Dir: t.TempDir()}
	source, err := file.Text(policies)
	if err != nil {
		t.Fatal(err)
	}
	row, err := source.ReadRow(t.Context(), "shop/apps/Deployment/checkout")
	if err != nil {
		t.Fatal(err)
	}
	project := func(row []byte) {
		t.Helper()
		data, err := policy.EncodeSnapshot(policy.Snapshot{Row: row})
		if err != nil {
			t.Fatal(err)
		}
		if err := mount.Project(map[string]string{"row.json": string(data)}); err != nil {
			t.Fatal(err)
		}
	}
	project(row)

	var replicas []*ratelimit.Limiter
	for range 2 {
		limiter, err := ratelimit.New(ratelimit.Options{
			Namespace: "shop", Workload: "checkout", SnapshotFile: filepath.Join(mount.Dir, "row.json"),
			Counters:     postgres.New(connect(t, server.DSN), postgres.Options{StatementTimeout: patience}),
			StoreTimeout: patience, PollInterval: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- limiter.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		if err := limiter.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		replicas = append(replicas, limiter)
	}
	admitted := 0
	for i := range 100 {
		d := replicas[i%2].Decide(t.Context(), request(http.MethodPost, "/exports", "acme"))
		if d.Allowed {
			admitted++
		}
		if d.Source != "Store" && d.Source != "DenyCache" {
			t.Fatalf("answered by %s: %s", d.Source, d.Cause)
		}
	}
	if admitted != 60 {
		t.Errorf("two replicas admitted %d, want 60", admitted)
	}

	edited := bytes.Replace(row, []byte(`"n":1`), []byte(`"n":2`), 1)
	edited = bytes.ReplaceAll(edited, []byte(`"requests":60,`), []byte(`"requests":70,`))
	project(edited)
	for _, limiter := range replicas {
		waitFor(t, "the edit", func() bool {
			return limiter.Peek(t.Context(), request(http.MethodPost, "/exports", "globex")).Limit == 70
		})
	}
}
