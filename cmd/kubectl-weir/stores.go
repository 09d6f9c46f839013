package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/pgstore"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/internal/scenario"
)

// stores are the real ones whose addresses were given.
func (o *testOptions) stores() (map[scenario.StoreName]scenario.OpenStore, func()) {
	stores := make(map[scenario.StoreName]scenario.OpenStore)
	var shut []func()
	if o.redis != "" {
		redis.SetLogger(silent{}) // what there is to say is in the errors
		client := redisstore.NewClient(&redis.UniversalOptions{Addrs: strings.Split(o.redis, ",")})
		shut = append(shut, func() { _ = client.Close() }) // nothing is left to lose
		stores[scenario.Redis] = openRedis(client)
	}
	if o.postgres != "" {
		p := &database{url: o.postgres, schema: "weir_scenario_" + strings.ToLower(rand.Text()[:12])}
		shut = append(shut, p.shut)
		stores[scenario.Postgres] = p.open
	}
	return stores, func() {
		for _, f := range shut {
			f()
		}
	}
}

// silent is a logger of the driver.
type silent struct{}

// Printf does nothing.
func (silent) Printf(context.Context, string, ...any) {}

// openRedis gives each run a table of its own.
func openRedis(client redis.UniversalClient) scenario.OpenStore {
	return func(ctx context.Context, namespace string, clock func() int64) (enforcer.Store, func(), error) {
		if err := client.Ping(ctx).Err(); err != nil {
			return nil, nil, fmt.Errorf("asking Redis: %w", err)
		}
		store := redisstore.NewStore(redisstore.StoreOptions{
			Client: client, Table: "scenario-" + strings.ToLower(rand.Text()[:12]), Namespace: namespace, Time: clock,
		})
		return store, func() {}, nil
	}
}

// database is a schema of a PostgreSQL, made for the first run and dropped after the last one. Each run forgets its own
// counters, so that the next one may use the same.
type database struct {
	url    string
	schema string
	pool   *pgxpool.Pool
}

func (d *database) open(ctx context.Context, _ string, clock func() int64) (enforcer.Store, func(), error) {
	first := d.pool == nil
	if first {
		pool, err := pgxpool.New(ctx, d.url)
		if err != nil {
			return nil, nil, fmt.Errorf("connecting to PostgreSQL: %w", err)
		}
		d.pool = pool
	}
	store := pgstore.New(d.pool, pgstore.Options{Schema: d.schema, Time: clock})
	if first {
		if err := store.Prepare(ctx); err != nil {
			return nil, nil, err
		}
	}
	return store, func() {}, nil
}

// shut drops the schema, also when the call was interrupted.
func (d *database) shut() {
	if d.pool == nil {
		return
	}
	defer d.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	// What cannot be dropped now has a name that says what it is, and nothing else depends on it.
	_, _ = d.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.schema}.Sanitize()+" CASCADE")
}

const dropTimeout = 10 * time.Second
