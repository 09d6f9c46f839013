package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

func BenchmarkTake(b *testing.B) {
	server := env.Redis(b, env.RedisOptions{})
	client := NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}})
	defer client.Close()
	store := NewStore(StoreOptions{Client: client, Namespace: "shop"})
	for alg := algorithm.TokenBucket; alg <= algorithm.SlidingWindowCounter; alg++ {
		for _, denied := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/denied=%v", alg, denied), func(b *testing.B) {
				entries := make([]enforcer.Entry, 64)
				answers := make([]enforcer.Answer, 64)
				for i := range entries {
					l := algorithm.Limit{Algorithm: alg, Requests: 1000000000, Window: 3600e6, Burst: 1000000000}
					if denied {
						l.Requests = 3
						l.Burst = 3
					}
					entries[i] = enforcer.Entry{Counters: []enforcer.Counter{{Identity: enforcer.Identity{byte(i), byte(alg)}, ID: fmt.Sprint("abcdefghij", denied), Limit: l, Cost: 1}}, Enforced: 1, N: 1}
				}
				ctx := b.Context()
				client.ConfigResetStat(ctx)
				for b.Loop() {
					if _, err := store.Take(ctx, entries, answers); err != nil {
						b.Fatal(err)
					}
				}
				info := client.Info(ctx, "commandstats").Val()
				for line := range strings.Lines(info) {
					if strings.HasPrefix(line, "cmdstat_evalsha:") {
						var calls, usec int64
						fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d", &calls, &usec)
						b.ReportMetric(float64(usec)/float64(calls)/64, "µs/decision")
					}
				}
				b.Log(answers[0], answers[0].Err)
			})
		}
	}
}
