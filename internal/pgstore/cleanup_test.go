package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// fill takes once from n counters of a window.
func fill(t testing.TB, store *Store, name string, n int, window int64) {
	t.Helper()
	var entries []enforcer.Entry
	for i := range n {
		entries = append(entries, entry(1, counter(fmt.Sprint(name, i), algorithm.Limit{Requests: 1, Window: window})))
		if len(entries) == 500 || i == n-1 {
			take(t, store, entries...)
			entries = entries[:0]
		}
	}
}

func TestCleanUp(t *testing.T) {
	pool := prepared(t, env.Postgres(t).DSN, 4)
	exec(t, pool, "alter table weir.counters set (autovacuum_enabled = off)") // pages must not come and go meanwhile
	var now atomic.Int64
	now.Store(noon)
	store := New(pool, Options{Time: now.Load, StatementTimeout: patient})
	fill(t, store, "short", 12_000, minute)
	fill(t, store, "long", 500, hour)
	rows := func() int64 { return number(t, pool, "select count(*) from weir.counters") }

	// around runs rounds until they have been everywhere.
	around := func(from int64) {
		t.Helper()
		for page, turns := from, 0; turns == 0; {
			next, err := store.cleanUpRound(t.Context(), page)
			if err != nil {
				t.Fatal(err)
			}
			if next <= page {
				turns++
			}
			page = next
		}
	}
	around(0)
	if got := rows(); got != 12_500 {
		t.Fatalf("%d rows are left of 12,500 that still weigh", got)
	}

	now.Add(minute + 2_000)
	pages, deleted, err := store.cleanUp(t.Context(), 0)
	if err != nil || deleted == 0 || pages <= cleanUpPages || 12_500-rows() != deleted || rows() == 500 {
		t.Fatalf("one step of %d pages on %d deleted %d, %v; %d rows are left", cleanUpPages, pages, deleted, err, rows())
	}
	if _, err := store.cleanUpRound(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	around(0)
	if got := rows(); got != 500 {
		t.Errorf("%d rows are left after a round, want the 500 that still weigh", got)
	}

	// Rows that a decision holds are left for the next time, and nobody waits.
	now.Add(hour)
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	held := keyOf(counter("long7", algorithm.Limit{Requests: 1, Window: hour}))
	if _, err := lock.Exec(t.Context(), "select from weir.counters where key = $1 for update", held); err != nil {
		t.Fatal(err)
	}
	around(0)
	if got := rows(); got != 1 {
		t.Errorf("%d rows are left, want the locked one", got)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// One replica at a time is enough.
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), "select weir.clean_up(0, 1, 0)"); err != nil {
		t.Fatal(err)
	}
	if pages, deleted, err := store.cleanUp(t.Context(), 0); err != nil || pages != 0 || deleted != 0 {
		t.Errorf("beside another clean-up: %d pages, %d deleted, %v", pages, deleted, err)
	}
}

func TestRunPreparesAndCleansUpUntilItsContextEnds(t *testing.T) {
	pool := connect(t, env.Postgres(t).DSN, 4)
	store := New(pool, Options{CleanUpInterval: time.Millisecond, StatementTimeout: patient})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	waitFor(t, "the schema", func() bool { return number(t, pool, "select count(*) from pg_proc where proname = 'clean_up'") > 0 })
	fill(t, store, "short", 10, second/10)
	fill(t, store, "long", 3, hour)
	waitFor(t, "the clean-up", func() bool { return number(t, pool, "select count(*) from weir.counters") == 3 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A server that is away for long is told of once, not with each attempt.
func TestAFailureThatLastsIsReportedOnce(t *testing.T) {
	pool := connect(t, env.Postgres(t).DSN, 1)
	exec(t, pool, "alter role weir set default_transaction_read_only = on")
	pool.Reset()
	var log safeBuffer
	store := New(pool, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithTimeout(t.Context(), 7*prepareRetry/2)
	defer cancel()
	if err := store.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "Preparing the counters failed"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
}

// safeBuffer is written to and read at the same time.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Hot updates: rows that change all the time neither grow the table nor its index.
func TestChangesStayWithinTheirPages(t *testing.T) {
	pool := prepared(t, env.Postgres(t, "autovacuum = off").DSN, 4)
	store := New(pool, Options{StatementTimeout: patient})
	var entries []enforcer.Entry
	for i := range 200 {
		entries = append(entries, entry(1, counter(fmt.Sprint(i), algorithm.Limit{Requests: 1_000_000, Window: hour})))
	}
	size := func() int64 { return number(t, pool, "select pg_total_relation_size('weir.counters')") }
	for range 20 {
		take(t, store, entries...)
	}
	before := size()
	for range 200 {
		take(t, store, entries...)
	}
	if after := size(); after > before {
		t.Errorf("40,000 changes of 200 rows took the table from %d to %d bytes without vacuum", before, after)
	}
	exec(t, pool, "select pg_stat_force_next_flush()")
	waitFor(t, "heap-only updates to be counted", func() bool {
		return number(t, pool, "select coalesce(sum(n_tup_hot_upd), 0) from pg_stat_user_tables where relname = 'counters'") >= 40_000
	})
}

// A batch of equal callers is one change of one row, and a batch of many keys one statement.
func TestOneChangeForABatch(t *testing.T) {
	pool := prepared(t, env.Postgres(t).DSN, 4)
	exec(t, pool, `create sequence rows_changed; create sequence statements;
		create function note() returns trigger language plpgsql as 'begin perform nextval(tg_argv[0]); return null; end';
		create trigger a after update on weir.counters for each row execute function note('rows_changed');
		create trigger b after update on weir.counters for each statement execute function note('statements');`)
	store := New(pool, Options{StatementTimeout: patient})
	changes := func() [2]int64 {
		return [2]int64{
			number(t, pool, "select case when is_called then last_value else 0 end from rows_changed"),
			number(t, pool, "select case when is_called then last_value else 0 end from statements"),
		}
	}
	hot := counter("hot", algorithm.Limit{Requests: 1_000, Window: hour})
	take(t, store, entry(64, hot))
	// The insert that locks rows counts as an update of none, for conflicts.
	first := changes()
	if first[0] != 1 {
		t.Errorf("64 equal callers changed %d rows, want 1", first[0])
	}
	var entries []enforcer.Entry
	for i := range 64 {
		entries = append(entries, entry(1, counter(fmt.Sprint(i), algorithm.Limit{Requests: 10, Window: hour})))
	}
	take(t, store, append(entries, entries...)...)
	second := changes()
	if second[0]-first[0] != 64 || second[1]-first[1] != first[1] {
		t.Errorf("two callers for each of 64 keys changed %d rows in %d statements, want 64 in %d",
			second[0]-first[0], second[1]-first[1], first[1])
	}
	take(t, store, entry(5_000, hot)) // 936 are left
	take(t, store, entry(1, hot), entry(0, hot))
	if third := changes(); third[0]-second[0] != 1 {
		t.Errorf("a denial and a peek changed %d rows", third[0]-second[0]-1)
	}
}
