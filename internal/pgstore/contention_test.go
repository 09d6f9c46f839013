package pgstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// undo makes the next charges of a key end with a SQLSTATE, as many as the sequence says.
const undo = `
create sequence undone;
create function undo() returns trigger language plpgsql as $$
begin
    -- A sequence counts what is rolled back, too.
    if nextval('undone') <= tg_argv[1]::bigint then
        raise exception 'made by the test' using errcode = tg_argv[0];
    end if;
    return new;
end
$$;
create trigger undo before update on weir.counters for each row execute function undo('SQLSTATE', 'TIMES');`

func TestWhatTheDatabaseUndoesIsSentAgain(t *testing.T) {
	pool := prepared(t, env.Postgres(t).DSN, 4)
	store := New(pool, Options{StatementTimeout: patient})
	cases := map[string]struct {
		state, times string
		granted      int64 // -1 for an error
		reason       enforcer.Reason
	}{
		"a unique violation":                      {state: "23505", times: "2", granted: 3},
		"a serialization failure":                 {state: "40001", times: "2", granted: 3},
		"a deadlock":                              {state: "40P01", times: "2", granted: 3},
		"a unique violation without end":          {state: "23505", times: "1000", granted: -1, reason: enforcer.ReasonOther},
		"a serialization failure without end":     {state: "40001", times: "1000", granted: -1, reason: enforcer.ReasonOther},
		"a deadlock without end":                  {state: "40P01", times: "1000", granted: -1, reason: enforcer.ReasonOther},
		"an error of another kind is not retried": {state: "P0001", times: "1", granted: -1, reason: enforcer.ReasonScript},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			exec(t, pool, strings.NewReplacer("SQLSTATE", test.state, "TIMES", test.times).Replace(undo))
			defer exec(t, pool, "drop function undo cascade; drop sequence undone")
			one := counter(name, algorithm.Limit{Requests: 3, Window: hour})
			answers := make([]enforcer.Answer, 1)
			_, err := store.Take(t.Context(), []enforcer.Entry{entry(5, one)}, answers)
			if test.granted < 0 {
				reasonWanted(t, err, test.reason)
				var state *pgconn.PgError
				if errors.As(err, &state) && test.state != "P0001" {
					t.Errorf("the caller gets to see %s", state.Code)
				}
				return
			}
			if err != nil || answers[0].Granted != test.granted {
				t.Fatalf("%d of 5 granted, %v; want %d", answers[0].Granted, err, test.granted)
			}
			if used := number(t, pool, "select used from weir.counters where key = $1", keyOf(one)); used != test.granted {
				t.Errorf("%d are charged, want %d", used, test.granted)
			}
		})
	}
}

// A real deadlock, with somebody who does not lock rows in the order of their keys.
func TestDeadlockWithAStranger(t *testing.T) {
	// Whoever has waited for so long looks for a deadlock, once. It is the take: the stranger is more patient.
	pool := prepared(t, env.Postgres(t, "deadlock_timeout = 2s").DSN, 4)
	store := New(pool, Options{StatementTimeout: patient, Time: func() int64 { return noon }})
	limit := algorithm.Limit{Requests: 10, Window: hour}
	first, second := counter("a", limit), counter("b", limit)
	if string(keyOf(first)) > string(keyOf(second)) {
		first, second = second, first
	}
	take(t, store, entry(1, first, second))
	stranger, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Rollback(context.Background()) }()
	for _, sql := range []string{"set deadlock_timeout = '1min'", "select from weir.counters where key = $1 for update"} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, keyOf(second))
		}
		if _, err := stranger.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	granted := make(chan int64, 1)
	go func() {
		answers := make([]enforcer.Answer, 1)
		if _, err := store.Take(t.Context(), []enforcer.Entry{entry(4, first, second)}, answers); err != nil {
			t.Error(err)
		}
		granted <- answers[0].Granted
	}()
	// The take holds the first row and waits for the second; then the stranger wants the first, and the take has to give
	// way.
	waitFor(t, "the take to wait", func() bool {
		return number(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock'") > 0
	})
	if _, err := stranger.Exec(t.Context(), "select from weir.counters where key = $1 for update", keyOf(first)); err != nil {
		t.Fatal(err)
	}
	if err := stranger.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-granted; got != 4 {
		t.Errorf("%d of 4 granted", got)
	}
	waitFor(t, "the deadlock to be counted", func() bool {
		return number(t, pool, "select deadlocks from pg_stat_database where datname = current_database()") >= 1
	})
	for _, c := range []enforcer.Counter{first, second} {
		if used := number(t, pool, "select used from weir.counters where key = $1", keyOf(c)); used != 5 {
			t.Errorf("%d are charged, want 5", used)
		}
	}
}

// Where transactions refuse to wait for each other, a hot row would undo one statement for each that succeeds. The store
// learns from the first refusals what it has to ask for.
func TestHotRowUnderSerializable(t *testing.T) {
	pool := prepared(t, env.Postgres(t, "default_transaction_isolation = serializable").DSN, 16)
	store := New(pool, Options{StatementTimeout: patient, Time: func() int64 { return noon }})
	one := counter("acme", algorithm.Limit{Requests: 1_000, Window: hour})
	var admitted atomic.Int64
	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			for range 20 {
				answers := make([]enforcer.Answer, 1)
				if _, err := store.Take(t.Context(), []enforcer.Entry{entry(1, one)}, answers); err != nil {
					t.Error(err)
				}
				admitted.Add(answers[0].Granted)
			}
		})
	}
	wait.Wait()
	if got := admitted.Load(); got != 1_000 {
		t.Errorf("%d of 1,280 admitted, want 1,000", got)
	}
	const connections = 16
	var undone int64
	waitFor(t, "each connection to tell of what it undid", func() bool { // which it does when it is idle for a while
		exec(t, pool, "select pg_stat_force_next_flush()")
		undone = number(t, pool, "select xact_rollback from pg_stat_database where datname = current_database()")
		return undone > 0
	})
	if undone > 3*connections {
		t.Errorf("%d statements were undone, want some at first and then none", undone)
	}
}

func TestStatementTimeout(t *testing.T) {
	pool := prepared(t, env.Postgres(t).DSN, 4)
	store := New(pool, Options{StatementTimeout: 50 * time.Millisecond})
	one := counter("acme", algorithm.Limit{Requests: 3, Window: hour})
	patience := New(pool, Options{StatementTimeout: patient})
	take(t, patience, entry(1, one))
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "select from weir.counters for update"); err != nil {
		t.Fatal(err)
	}
	_, err = store.Take(t.Context(), []enforcer.Entry{entry(1, one)}, make([]enforcer.Answer, 1))
	reasonWanted(t, err, enforcer.ReasonTimeout)
	reasonWanted(t, store.Refund(t.Context(), []enforcer.Refund{{Counters: []enforcer.Counter{one}, N: 1}}), enforcer.ReasonTimeout)
	reasonWanted(t, store.Reset(t.Context(), []enforcer.Counter{one}), enforcer.ReasonTimeout)
	// Whoever only looks does not wait.
	if got := take(t, patience, entry(0, one)); got[0] != 0 {
		t.Errorf("a peek granted %d", got[0])
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := take(t, patience, entry(9, one)); got[0] != 2 {
		t.Errorf("%d of 9 granted, want 2: what timed out has charged nothing", got[0])
	}
	// The time-out was the statement's, not the connection's.
	for range 8 {
		var timeout string
		if err := pool.QueryRow(t.Context(), "show statement_timeout").Scan(&timeout); err != nil || timeout != "0" {
			t.Fatalf("statement_timeout is %q on a connection that was used, %v", timeout, err)
		}
	}
}

func TestFailuresHaveReasons(t *testing.T) {
	server := env.Postgres(t)
	pool := prepared(t, server.DSN, 1)
	store := New(pool, Options{StatementTimeout: patient})
	limit := algorithm.Limit{Requests: 3, Window: hour}
	entries, answers := []enforcer.Entry{entry(1, counter("acme", limit))}, make([]enforcer.Answer, 1)
	wanted := func(t *testing.T, ctx context.Context, store *Store, want enforcer.Reason) {
		t.Helper()
		_, err := store.Take(ctx, entries, answers)
		reasonWanted(t, err, want)
	}
	t.Run("no schema", func(t *testing.T) {
		wanted(t, t.Context(), New(pool, Options{Schema: "elsewhere"}), enforcer.ReasonNoScript)
	})
	t.Run("no permission", func(t *testing.T) {
		exec(t, pool, "create role stranger login")
		dsn := strings.Replace(server.DSN, "weir@", "stranger@", 1)
		wanted(t, t.Context(), New(connect(t, dsn, 1), Options{}), enforcer.ReasonAuth)
	})
	t.Run("read only", func(t *testing.T) {
		exec(t, pool, "alter role weir set default_transaction_read_only = on")
		defer exec(t, pool, "alter role weir reset default_transaction_read_only")
		stuck := connect(t, server.DSN, 1)
		before := number(t, stuck, "select pg_backend_pid()")
		wanted(t, t.Context(), New(stuck, Options{}), enforcer.ReasonReadOnly)
		if after := number(t, stuck, "select pg_backend_pid()"); after == before {
			t.Error("the connection to a server that takes no writes was kept")
		}
	})
	t.Run("all connections busy", func(t *testing.T) {
		busy, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Release()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		wanted(t, ctx, store, enforcer.ReasonClients)
	})
	t.Run("a caller who hangs up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wanted(t, ctx, store, enforcer.ReasonOther)
	})
	t.Run("a limit out of bounds", func(t *testing.T) {
		for _, bad := range []algorithm.Limit{
			{Requests: -1, Window: hour}, {Requests: 1}, {Requests: 1, Window: 32 * 24 * hour},
			{Requests: 2_000_000_000, Window: hour}, {Algorithm: 9, Requests: 1, Window: hour},
		} {
			if _, err := store.Take(t.Context(), []enforcer.Entry{entry(1, counter("acme", bad))}, answers); !errors.Is(err, errLimit) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	})
	t.Run("no server", func(t *testing.T) {
		server.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		// The first may find the old connection, which has ended.
		_, _ = store.Take(ctx, entries, answers)
		wanted(t, ctx, store, enforcer.ReasonRefused)
		server.Start()
		waitFor(t, "an answer", func() bool {
			_, err := store.Take(t.Context(), entries, answers)
			return err == nil
		})
	})
}
