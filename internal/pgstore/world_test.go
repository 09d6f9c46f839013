package pgstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/storetest"
)

const (
	second = int64(1_000_000) // µs
	minute = 60 * second
	hour   = 60 * minute
	noon   = 1_800_014_400 * second

	// patient is a statement time-out for machines that do much else.
	patient = 30 * time.Second
)

// connect opens a pool that ends with the test.
func connect(t testing.TB, dsn string, connections int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// prepared is connect, and creates the schema.
func prepared(t testing.TB, dsn string, connections int32) *pgxpool.Pool {
	t.Helper()
	pool := connect(t, dsn, connections)
	if err := New(pool, Options{}).Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return pool
}

// exec runs SQL that must succeed.
func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// number reads one number.
func number(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// waitFor polls a condition of a real server.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := process.Poll(ctx, 5*time.Millisecond, func(context.Context) error {
		if !holds() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

func keyOf(c enforcer.Counter) []byte { return append(c.Identity[:], c.ID...) }

// counter is that of an API key under a limit of its own name.
func counter(apiKey string, limit algorithm.Limit) enforcer.Counter {
	hash := sha256.Sum256([]byte(apiKey))
	return enforcer.Counter{Identity: enforcer.Identity(hash[:16]), ID: limit.Algorithm.String(), Limit: limit, Cost: 1}
}

func entry(n int64, counters ...enforcer.Counter) enforcer.Entry {
	return enforcer.Entry{Counters: counters, Enforced: len(counters), N: n}
}

// take asks for entries that must be answered, and returns how many of each were granted.
func take(t testing.TB, store *Store, entries ...enforcer.Entry) []int64 {
	t.Helper()
	answers := make([]enforcer.Answer, len(entries))
	if _, err := store.Take(t.Context(), entries, answers); err != nil {
		t.Fatal(err)
	}
	granted := make([]int64, len(entries))
	for i, a := range answers {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		granted[i] = a.Granted
	}
	return granted
}

// reasonWanted fails the test unless err is a store's failure for that reason.
func reasonWanted(t testing.TB, err error, want enforcer.Reason) {
	t.Helper()
	var known *enforcer.StoreError
	if !errors.As(err, &known) || known.Reason != want {
		t.Errorf("error %v, want one with reason %q", err, want)
	}
}

// conformance is what the suite needs. The administrator's pool must not go through a pooler.
func conformance(dsn string, admin *pgxpool.Pool, options storetest.Options) (storetest.NewStore, storetest.Options) {
	newStore := func(t *testing.T, clock func() int64) enforcer.Store {
		t.Helper()
		return New(connect(t, dsn, 8), Options{Time: clock, StatementTimeout: patient})
	}
	options.TimeToLive = func(t *testing.T, c enforcer.Counter, now int64) (time.Duration, bool) {
		t.Helper()
		var expires int64
		err := admin.QueryRow(t.Context(), "select expires from weir.counters where key = $1", keyOf(c)).Scan(&expires)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, false
		}
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(expires-now) * time.Microsecond, true
	}
	options.Spoil = func(t *testing.T, c enforcer.Counter, what storetest.Spoil) {
		t.Helper()
		change := map[storetest.Spoil]string{
			storetest.NewerFormat: "format = 2",
			storetest.Garbage:     "used = -5, carry = -7",
		}[what]
		tag, err := admin.Exec(t.Context(), "update weir.counters set "+change+" where key = $1", keyOf(c))
		if err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("spoiling a row: %v, %v", tag, err)
		}
	}
	return newStore, options
}
