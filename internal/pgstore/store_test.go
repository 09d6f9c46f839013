package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/storetest"
	"github.com/weir-dev/weir/test/env"
)

// newPool connects to a database and creates the schema.
func newPool(t testing.TB, dsn string, connections int32) *pgxpool.Pool {
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
	if err := New(pool, Options{}).Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return pool
}

// patient is a statement time-out for machines that do much else.
const patient = 30 * time.Second

func keyOf(c enforcer.Counter) []byte { return append(c.Identity[:], c.ID...) }

func conformance(pool func(t *testing.T) *pgxpool.Pool, admin *pgxpool.Pool, steps int) (storetest.NewStore, storetest.Options) {
	newStore := func(t *testing.T, clock func() int64) enforcer.Store {
		return New(pool(t), Options{Time: clock, StatementTimeout: patient})
	}
	return newStore, storetest.Options{
		Steps: steps,
		TimeToLive: func(t *testing.T, c enforcer.Counter, now int64) (time.Duration, bool) {
			t.Helper()
			var expires int64
			err := admin.QueryRow(t.Context(), "select expires from weir.counters where key = $1", keyOf(c)).Scan(&expires)
			if err == pgx.ErrNoRows {
				return 0, false
			}
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(expires-now) * time.Microsecond, true
		},
		Spoil: func(t *testing.T, c enforcer.Counter, what storetest.Spoil) {
			t.Helper()
			change := "format = 2"
			if what == storetest.Garbage {
				change = "used = -5, carry = -7"
			}
			tag, err := admin.Exec(t.Context(), "update weir.counters set "+change+" where key = $1", keyOf(c))
			if err != nil || tag.RowsAffected() != 1 {
				t.Fatalf("spoiling a row: %v, %v", tag, err)
			}
		},
	}
}

func TestConformance(t *testing.T) {
	server := env.Postgres(t)
	admin := newPool(t, server.DSN, 4)
	newStore, options := conformance(func(t *testing.T) *pgxpool.Pool { return newPool(t, server.DSN, 8) }, admin, 200_000)
	storetest.Run(t, newStore, options)
	if t.Failed() {
		return
	}
	t.Run("no identity is in a row", func(t *testing.T) {
		// Identities are hashes by contract; the raw bytes of a test's identity are a hash's place.
		var odd int
		if err := admin.QueryRow(t.Context(), "select count(*) from weir.counters where length(key) < 17").Scan(&odd); err != nil || odd != 0 {
			t.Fatalf("%d rows have a key without identity and limit, %v", odd, err)
		}
	})
	_ = strings.Contains
}
