package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/pgstore"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/internal/scenario"
)

// stores are the real ones whose addresses were given. The function deletes what was left in them.
func (o *testOptions) stores() (stores map[scenario.StoreName]scenario.OpenStore, cleanUp func()) {
	stores = make(map[scenario.StoreName]scenario.OpenStore)
	name := strings.ToLower(rand.Text()[:12])
	var shut []func()
	if o.redis != "" {
		redis.SetLogger(silent{}) // what there is to say is in the errors
		client := redisstore.NewClient(&redis.UniversalOptions{Addrs: strings.Split(o.redis, ",")})
		r := &tables{client: client, name: "scenario-" + name}
		shut = append(shut, r.cleanUp)
		stores[scenario.Redis] = r.open
	}
	if o.postgres != "" {
		p := &database{url: o.postgres, schema: "weir_scenario_" + name}
		shut = append(shut, p.cleanUp)
		stores[scenario.Postgres] = p.open
	}
	return stores, func() {
		for _, f := range shut {
			f()
		}
	}
}

// cleanUpTimeout bounds what is done after the last run, also when the call was interrupted.
const cleanUpTimeout = 30 * time.Second

// silent is a logger of the driver.
type silent struct{}

// Printf does nothing.
func (silent) Printf(context.Context, string, ...any) {}

// tables are tables in a Redis, one for each store that a run opens.
type tables struct {
	client redis.UniversalClient
	name   string
	opened int
}

func (r *tables) open(ctx context.Context, namespace string, clock func() int64) (scenario.Store, error) {
	if r.opened == 0 {
		if err := r.client.Ping(ctx).Err(); err != nil {
			return nil, fmt.Errorf("asking Redis: %w", err)
		}
	}
	r.opened++
	table := r.name + "." + strconv.Itoa(r.opened)
	store := redisstore.NewStore(redisstore.StoreOptions{Client: r.client, Table: table, Namespace: namespace, Time: clock})
	return newExpiring(store, clock), nil
}

// cleanUp deletes the keys of the tables. What it does not get to expires by itself.
func (r *tables) cleanUp() {
	defer r.client.Close()
	if r.opened == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	drop := func(ctx context.Context, node *redis.Client) error {
		keys := node.Scan(ctx, 0, "weir:"+r.name+".*", 1000).Iterator()
		for keys.Next(ctx) {
			if err := node.Unlink(ctx, keys.Val()).Err(); err != nil {
				return err
			}
		}
		return keys.Err()
	}
	switch client := r.client.(type) {
	case *redis.ClusterClient:
		_ = client.ForEachMaster(ctx, drop)
	case *redis.Client:
		_ = drop(ctx, client)
	}
}

// database is a schema of a PostgreSQL, made for the first run and dropped after the last one. Runs follow each other,
// so they can use the same tables.
type database struct {
	url    string
	schema string
	pool   *pgxpool.Pool
}

func (d *database) open(ctx context.Context, _ string, clock func() int64) (scenario.Store, error) {
	if d.pool == nil {
		pool, err := pgxpool.New(ctx, d.url)
		if err != nil {
			return nil, fmt.Errorf("connecting to PostgreSQL: %w", err)
		}
		d.pool = pool
	}
	store := pgstore.New(d.pool, pgstore.Options{Schema: d.schema, Time: clock})
	if err := store.Prepare(ctx); err != nil {
		return nil, err
	}
	return store, d.empty(ctx)
}

// empty deletes what is in the tables.
func (d *database) empty(ctx context.Context) error {
	rows, err := d.pool.Query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = $1", d.schema)
	if err != nil {
		return fmt.Errorf("emptying PostgreSQL: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("emptying PostgreSQL: %w", err)
	}
	for i, name := range names {
		names[i] = pgx.Identifier{d.schema, name}.Sanitize()
	}
	if _, err := d.pool.Exec(ctx, "TRUNCATE "+strings.Join(names, ", ")); err != nil {
		return fmt.Errorf("emptying PostgreSQL: %w", err)
	}
	return nil
}

// cleanUp drops the schema. One that cannot be dropped has a name that says what it is, and nothing depends on it.
func (d *database) cleanUp() {
	if d.pool == nil {
		return
	}
	defer d.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	_, _ = d.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.schema}.Sanitize()+" CASCADE")
}
