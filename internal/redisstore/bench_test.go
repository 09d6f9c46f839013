package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// usage is what a server spent: µs in EVALSHA by its own count, and µs of its processor in all.
type usage struct{ script, processor float64 }

func usageOf(ctx context.Context, b *testing.B, client redis.UniversalClient) usage {
	b.Helper()
	var u usage
	for line := range strings.Lines(client.Info(ctx, "commandstats").Val() + client.Info(ctx, "cpu").Val()) {
		line = strings.TrimSpace(line)
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "cmdstat_evalsha":
			_, rest, _ := strings.Cut(value, "usec=")
			text, _, _ := strings.Cut(rest, ",")
			u.script, _ = strconv.ParseFloat(text, 64)
		case "used_cpu_user_main_thread", "used_cpu_sys_main_thread":
			seconds, _ := strconv.ParseFloat(value, 64)
			u.processor += seconds * 1e6
		}
	}
	return u
}

// BenchmarkTake takes distinct counters, 10,000 in all: 64 in a batch, or one, as a lone caller does.
func BenchmarkTake(b *testing.B) {
	w := newWorld(b, env.RedisOptions{})
	s := w.store(nil)
	for a := algorithm.TokenBucket; a <= algorithm.SlidingWindowLog; a++ {
		for name, requests := range map[string]int64{"admitted": maxRequests, "denied": 1} {
			if a == algorithm.SlidingWindowLog {
				requests = min(requests, algorithm.MaxLogEntries)
			}
			for _, size := range []int{1, 64} {
				b.Run(fmt.Sprintf("%v/%s/batch=%d", a, name, size), func(b *testing.B) {
					limit := algorithm.Limit{Algorithm: a, Requests: requests, Window: 3600e6}
					benchmarkTake(b, w, s, limit, size, 10_000)
				})
			}
		}
	}
}

func benchmarkTake(b *testing.B, w *world, s *Store, limit algorithm.Limit, size, keys int) {
	ctx := b.Context()
	entries := make([]enforcer.Entry, size)
	answers := make([]enforcer.Answer, size)
	for i := range entries {
		entries[i] = enforcer.Entry{
			Counters: []enforcer.Counter{{ID: fmt.Sprintf("counter%d", limit.Requests), Limit: limit, Cost: 1}}, Enforced: 1, N: 1,
		}
	}
	next := 0
	before := usageOf(ctx, b, w.admin)
	b.ReportAllocs()
	for b.Loop() {
		for i := range entries {
			entries[i].Counters[0].Identity = enforcer.Identity{byte(next), byte(next >> 8), byte(limit.Algorithm)}
			next = (next + 1) % keys
		}
		if _, err := s.Take(ctx, entries, answers); err != nil {
			b.Fatal(err)
		}
	}
	after := usageOf(ctx, b, w.admin)
	decisions := float64(b.N * size)
	b.ReportMetric((after.script-before.script)/decisions, "µs-script/decision")
	b.ReportMetric((after.processor-before.processor)/decisions, "µs-server/decision")
}

// BenchmarkLongLog takes one counter with many entries, each time at another time: one entry comes and one goes.
func BenchmarkLongLog(b *testing.B) {
	w := newWorld(b, env.RedisOptions{})
	for _, entries := range []int64{100, algorithm.MaxLogEntries} {
		b.Run(fmt.Sprint(entries, " entries"), func(b *testing.B) {
			ctx := b.Context()
			now := int64(start)
			s := w.store(func() int64 { return now })
			c := counterOf(fmt.Sprint("long", entries), algorithm.SlidingWindowLog, entries, time.Hour)
			step := c.Limit.Window / entries
			ask := []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1}}
			answers := make([]enforcer.Answer, 1)
			take := func() {
				now += step
				if _, err := s.Take(ctx, ask, answers); err != nil {
					b.Fatal(err)
				}
			}
			for range entries {
				take()
			}
			before := usageOf(ctx, b, w.admin)
			for b.Loop() {
				take()
			}
			after := usageOf(ctx, b, w.admin)
			b.ReportMetric((after.script-before.script)/float64(b.N), "µs-script/decision")
			b.ReportMetric(float64(w.admin.MemoryUsage(ctx, keyOf(s, c)).Val()), "bytes")
		})
	}
}
