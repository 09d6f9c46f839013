package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// upsert counts in one row for each key and window, in one round trip: what is written by hand.
const upsert = `insert into %[1]s (key, win, used) values ($1, $2, 1) on conflict (key) do update set
	used = case when %[1]s.win = excluded.win then %[1]s.used + 1 else 1 end, win = excluded.win returning used`

// postgresPeers are the upsert into a table that is logged, as tables are, and into one that is not, as ours.
func postgresPeers(ctx context.Context, pool *pgxpool.Pool, k keys) ([]*subject, error) {
	var all []*subject
	for table, kind := range map[string]string{"plain_logged": "", "plain_unlogged": "unlogged"} {
		create := fmt.Sprintf("create %s table if not exists %s (key text primary key, win bigint not null, used bigint not null)",
			kind, table)
		if _, err := pool.Exec(ctx, create); err != nil {
			return all, fmt.Errorf("creating table %s: %w", table, err)
		}
		statement := fmt.Sprintf(upsert, table)
		name := "upsert"
		if kind != "" {
			name = kind + "-" + name
		}
		all = append(all, &subject{name: name, role: peer, take: one(func(ctx context.Context, key int) error {
			var used int64
			window := time.Now().Unix() / int64(hour.Seconds())
			if err := pool.QueryRow(ctx, statement, k.names[key], window).Scan(&used); err != nil {
				return err
			}
			return want(used <= perHour, false)
		})})
	}
	return all, nil
}
