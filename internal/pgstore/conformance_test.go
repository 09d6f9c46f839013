package pgstore

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-dev/weir/hack/dev/deps"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/storetest"
	"github.com/weir-dev/weir/test/env"
)

func TestConformance(t *testing.T) {
	dsn := env.Postgres(t).DSN
	admin := prepared(t, dsn, 2)
	newStore, options := conformance(dsn, admin, storetest.Options{Steps: 200_000, Pusher: true})
	storetest.Run(t, newStore, options)
	// Rows are locked in one order, so the races above cannot have deadlocked and been saved by the second attempt.
	if n := number(t, admin, "select deadlocks from pg_stat_database where datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// Behind a PgBouncer in transaction mode, each statement may run on another server connection, of which there are
// fewer than clients.
func TestConformanceBehindPgBouncer(t *testing.T) {
	dsn := env.Postgres(t).DSN
	admin := prepared(t, dsn, 2)
	pooled := pgBouncer(t, dsn)
	newStore, options := conformance(pooled, admin, storetest.Options{Steps: 10_000, Rounds: 10, Pusher: true})
	storetest.Run(t, newStore, options)

	t.Run("the schema is created through it", func(t *testing.T) {
		exec(t, admin, "drop schema weir cascade")
		store := New(connect(t, pooled, 4), Options{StatementTimeout: patient})
		for range 3 { // the second and third find it, perhaps on another connection
			if err := store.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		one := counter("acme", algorithm.Limit{Requests: 2, Window: hour})
		if got := take(t, store, entry(3, one)); got[0] != 2 {
			t.Errorf("%d of 3 granted, want 2", got[0])
		}
		if pages, _, err := store.cleanUp(t.Context(), 0); err != nil || pages == 0 {
			t.Errorf("cleaning up: %d pages, %v", pages, err)
		}
	})
}

func FuzzStepEqualsPure(f *testing.F) {
	dsn := env.Postgres(f).DSN
	pool := prepared(f, dsn, 2)
	open := func(clock func() int64) enforcer.Store {
		return New(pool, Options{Time: clock, StatementTimeout: patient})
	}
	storetest.Fuzz(f, open, storetest.Options{})
}

// pgBouncer starts a PgBouncer in transaction mode before a database, with two connections to it, and returns its DSN.
func pgBouncer(t *testing.T, dsn string) string {
	t.Helper()
	program, err := deps.Find("pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weir-pgbouncer-") // t.TempDir is closed to the user that it changes to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[5]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
`, config.Database, config.Host, config.Port, config.User, port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{file}
	if os.Geteuid() == 0 { // which it refuses to be
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		args = []string{"-u", "nobody", file}
	}
	started, err := process.Start(process.Command{
		Name: "pgbouncer", Path: program, Args: args, Dir: dir, Log: filepath.Join(dir, "pgbouncer.log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { started.Stop(time.Second) })
	pooled := "postgres://weir@" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/" + config.Database + "?sslmode=disable"
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = started.WaitReady(ready, func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, started.LogTail())
	}
	return pooled
}
