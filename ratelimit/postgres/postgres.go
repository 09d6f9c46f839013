// Package postgres keeps the counters of a limiter in PostgreSQL 14 or newer, for applications that run no Redis: the
// limits are as exact, and hold over all replicas just the same.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	options.Counters = postgres.New(pool, postgres.Options{})
//	options.Policies, err = file.Files("policies.yaml")
//
// The table and its functions are in a schema of the database, "weir". Limiter.Run creates them if the role of the pool
// may do that; otherwise an owner of the database runs what `kubectl weir postgres-schema` prints, which also says what
// has to be granted to the role. It keeps no state in a session: a PgBouncer in transaction mode may stand in between,
// and nothing in the pool's configuration has to change for it.
//
// Decisions that come while a statement is under way share the next one, and equal ones share one change of one row.
// The table is unlogged: a database that crashed begins with full budgets. A transaction that stays open for long
// anywhere in the database keeps old versions of busy rows from being taken away, and slows decisions down.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/pgstore"
	"github.com/weir-dev/weir/ratelimit"
)

// Options says where and how counters are kept. The zero value is usable.
type Options struct {
	// Schema is the schema of the database that holds the table. Default "weir". Two clusters or installations that use
	// one database need one each.
	Schema string

	// StatementTimeout bounds one statement at the server, whatever has become of the application. Default 1 s. It is
	// not how long a decision waits, which is ratelimit.Options.StoreTimeout.
	StatementTimeout time.Duration

	// CleanUpInterval is the mean time between two steps of the clean-up by one replica, each of which reads 2 MB of the
	// table at most and goes on at once while there is much to delete. Default 10 s.
	CleanUpInterval time.Duration
}

// Counters are counters in a database, for ratelimit.Options.Counters.
type Counters struct {
	pool    *pgxpool.Pool
	options Options
}

var _ ratelimit.Counters = (*Counters)(nil)

// New returns counters in the database of a pool. The pool stays the caller's, who closes it after Limiter.Run has
// returned. Decisions need up to four of its connections at once.
func New(pool *pgxpool.Pool, options Options) *Counters { return &Counters{pool, options} }

// Schema returns the SQL that creates the table and its functions in a schema of a database, "weir" if empty. It can be
// run again.
func Schema(schema string) string { return pgstore.Schema(schema) }

// Prepare creates what is missing in the database. Limiter.Run does so too; a program that has to know calls it first.
func (c *Counters) Prepare(ctx context.Context) error {
	store, err := c.open(ratelimit.Options{})
	if err != nil {
		return err
	}
	return store.Prepare(ctx)
}

// OpenStore is called by ratelimit.New.
func (c *Counters) OpenStore(o ratelimit.Options) (enforcer.Store, error) {
	store, err := c.open(o)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func (c *Counters) open(o ratelimit.Options) (*pgstore.Store, error) {
	if c.pool == nil {
		return nil, errors.New("no pool of connections to PostgreSQL")
	}
	if len(c.options.Schema) > 63 || strings.Contains(c.options.Schema, "\x00") {
		return nil, fmt.Errorf("schema %q: PostgreSQL allows names of 63 bytes", c.options.Schema)
	}
	if c.options.StatementTimeout < 0 || c.options.CleanUpInterval < 0 {
		return nil, fmt.Errorf("StatementTimeout is %v and CleanUpInterval %v, want 0 for the defaults or more",
			c.options.StatementTimeout, c.options.CleanUpInterval)
	}
	return pgstore.New(c.pool, pgstore.Options{
		Schema:           c.options.Schema,
		StatementTimeout: c.options.StatementTimeout,
		CleanUpInterval:  c.options.CleanUpInterval,
		Logger:           o.Logger,
	}), nil
}
