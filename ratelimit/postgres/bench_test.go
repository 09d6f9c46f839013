package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-dev/weir/ratelimit/postgres"
	"github.com/weir-dev/weir/test/env"
)

// BenchmarkDecide is the whole decision through the public API, and beside it what one would write by hand: an upsert of
// one fixed-window row for each request.
func BenchmarkDecide(b *testing.B) {
	server := env.Postgres(b, "fsync = on", "full_page_writes = on")
	pool := connect(b, server.DSN+"&pool_max_conns=16")
	counters := postgres.New(pool, postgres.Options{StatementTimeout: patience})
	if err := counters.Prepare(b.Context()); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), "create table plain (key text primary key, win bigint not null, used bigint not null)"); err != nil {
		b.Fatal(err)
	}
	const upsert = `insert into plain (key, win, used) values ($1, $2, 1) on conflict (key) do update set
		used = case when plain.win = excluded.win then plain.used + 1 else 1 end, win = excluded.win returning used`
	for _, keys := range []int{1, 10_000} {
		for _, goroutines := range []int{1, 64, 512} {
			if keys > 1 && goroutines > 256 {
				continue // more different callers than wait for the store at once: the rest are answered by their shares
			}
			name := func(subject string) string { return fmt.Sprintf("%s/keys=%d/goroutines=%d", subject, keys, goroutines) }
			b.Run(name("weir"), func(b *testing.B) {
				// Long enough for this machine; a quarter of it is when a second batch may leave beside the first.
				limiter := start(b, counters, time.Second/5)
				parallel(b, goroutines, func(random *rand.Rand) error {
					d := limiter.Decide(b.Context(), request(http.MethodGet, "/free", fmt.Sprint(random.IntN(keys))))
					if d.Source != "Store" {
						return fmt.Errorf("answered by %s: %v", d.Source, d.Cause)
					}
					return nil
				})
			})
			b.Run(name("upsert"), func(b *testing.B) {
				parallel(b, goroutines, func(random *rand.Rand) error {
					var used int64
					window := time.Now().Unix() / 3600
					return pool.QueryRow(b.Context(), upsert, fmt.Sprint(random.IntN(keys)), window).Scan(&used)
				})
			})
		}
	}
}

// parallel shares b.N calls among goroutines.
func parallel(b *testing.B, goroutines int, call func(*rand.Rand) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	failed := make(chan error, goroutines)
	for seed := range goroutines {
		go func() {
			random := rand.New(rand.NewPCG(uint64(seed), 0))
			for left.Add(-1) >= 0 {
				if err := call(random); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range goroutines {
		if err := <-failed; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}
