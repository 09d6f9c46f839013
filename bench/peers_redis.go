package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// settings are how a peer's client is set up.
type settings struct {
	name   string
	client func(address string) *redis.Client
	// bound gives a call the deadline; nil gives none.
	bound func(ctx context.Context) (context.Context, context.CancelFunc)
}

// bySettings are the driver's defaults, under which a call may be sent up to four times and may take seconds, and those
// under which it is sent once and is over by the deadline, as every decision of ours is.
var bySettings = []settings{
	{
		name:   "defaults",
		client: func(address string) *redis.Client { return redis.NewClient(&redis.Options{Addr: address}) },
	},
	{
		name: "safe",
		client: func(address string) *redis.Client {
			return redis.NewClient(&redis.Options{
				Addr: address, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			})
		},
		bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, deadline)
		},
	},
}

const hour = time.Hour

// perHour is the limit that no case reaches, and exhaustedPerHour the one that is gone at once.
const (
	perHour          = 1_000_000_000
	exhaustedPerHour = 1
)

func rateFor(deny bool) int {
	if deny {
		return exhaustedPerHour
	}
	return perHour
}

// redisPeers are all peers under all settings.
func redisPeers(address string, k keys, deny bool) ([]*subject, error) {
	var all []*subject
	for _, s := range bySettings {
		for _, open := range []func(settings, *redis.Client, keys, bool) (*subject, error){redisRate, ulule, throttledRedis} {
			client := s.client(address)
			made, err := open(s, client, k, deny)
			if err != nil {
				return all, err
			}
			made.name += "-" + s.name
			made.role = peer
			made.release = func() { _ = client.Close() }
			all = append(all, made)
		}
	}
	return all, nil
}

// bounded calls take under the deadline of the settings.
func (s settings) bounded(take func(ctx context.Context, key int) error) func(context.Context, []int) (int, error) {
	if s.bound == nil {
		return one(take)
	}
	return one(func(ctx context.Context, key int) error {
		ctx, cancel := s.bound(ctx)
		defer cancel()
		return take(ctx, key)
	})
}

func redisRate(s settings, client *redis.Client, k keys, deny bool) (*subject, error) {
	limit := redis_rate.Limit{Rate: rateFor(deny), Burst: rateFor(deny), Period: hour}
	return redisRateOf(s, client, k, limit, func(allowed bool) error { return want(allowed, deny) }), nil
}

func redisRateOf(s settings, client *redis.Client, k keys, limit redis_rate.Limit, right func(bool) error) *subject {
	l := redis_rate.NewLimiter(client)
	return &subject{name: "redis_rate", take: s.bounded(func(ctx context.Context, key int) error {
		result, err := l.Allow(ctx, k.names[key], limit)
		if err != nil {
			return err
		}
		return right(result.Allowed > 0)
	})}
}

// redisRates are redis_rate under all settings.
func redisRates(address string, k keys, limit redis_rate.Limit, right func(bool) error) ([]*subject, error) {
	var all []*subject
	for _, s := range bySettings {
		client := s.client(address)
		made := redisRateOf(s, client, k, limit, right)
		made.name += "-" + s.name
		made.role = peer
		made.release = func() { _ = client.Close() }
		all = append(all, made)
	}
	return all, nil
}

func ulule(s settings, client *redis.Client, k keys, deny bool) (*subject, error) {
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, fmt.Errorf("opening ulule's store: %w", err)
	}
	l := limiter.New(store, limiter.Rate{Period: hour, Limit: int64(rateFor(deny))})
	return &subject{name: "ulule", take: s.bounded(func(ctx context.Context, key int) error {
		result, err := l.Get(ctx, k.names[key])
		if err != nil {
			return err
		}
		return want(!result.Reached, deny)
	})}, nil
}

func throttledRedis(s settings, client *redis.Client, k keys, deny bool) (*subject, error) {
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, fmt.Errorf("opening throttled's store: %w", err)
	}
	l, err := throttledLimiter(store, deny)
	if err != nil {
		return nil, err
	}
	return &subject{name: "throttled", take: s.bounded(func(ctx context.Context, key int) error {
		limited, _, err := l.RateLimitCtx(ctx, k.names[key], 1)
		if err != nil {
			return err
		}
		return want(!limited, deny)
	})}, nil
}

func throttledLimiter(store throttled.GCRAStoreCtx, deny bool) (*throttled.GCRARateLimiterCtx, error) {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerHour(rateFor(deny)), MaxBurst: rateFor(deny) - 1,
	})
	if err != nil {
		return nil, fmt.Errorf("making throttled's limiter: %w", err)
	}
	return l, nil
}

// plainScript is a cell rate in integers, as short as it can be: one key, one time, no answer but yes or no.
var plainScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local new = tat + ARGV[1]
if new - ARGV[2] > now then return 0 end
redis.call('SET', KEYS[1], string.format('%d', new), 'PX', ARGV[3])
return 1
`)

// pipelined sends one EVALSHA for each decision, up to 64 in a pipeline, by hand: nobody waits for a call of his own, so
// it is no limiter, but what Redis does at most with one script a decision.
func pipelined(ctx context.Context, address string, k keys) (*subject, error) {
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, PoolSize: 10 * runtime.GOMAXPROCS(0)})
	if err := plainScript.Load(ctx, client).Err(); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("loading the plain script: %w", err)
	}
	const emission = 1 // µs, and a burst of 1,000 s: out of reach
	return &subject{
		name:    "evalsha-pipeline",
		role:    ceiling,
		release: func() { _ = client.Close() },
		batch:   func(outstanding int) int { return min(64, outstanding) },
		take: func(ctx context.Context, keys []int) (int, error) {
			pipeline := client.Pipeline()
			for _, key := range keys {
				pipeline.EvalSha(ctx, plainScript.Hash(), []string{"plain:" + k.names[key]}, emission, 1_000_000_000, 3_600_000)
			}
			results, err := pipeline.Exec(ctx)
			if err != nil {
				return 0, err
			}
			return len(results), nil
		},
	}, nil
}
