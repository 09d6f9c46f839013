package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"

	"github.com/weir-dev/weir/ratelimit/postgres"
)

// plan is one case: the same load for all of its subjects, which take turns.
type plan struct {
	name       string
	keys       keys
	goroutines []int
	every      int
	rate       int
	redis      *redisServer
	open       func(ctx context.Context) ([]*subject, error)
}

// everyInMemory is how many decisions one of is timed, of all subjects of a case in which ours are in memory: reading the
// clock twice for each took a third of a denial's time.
const everyInMemory = 64

// bench is one invocation.
type bench struct {
	redis    *redisServer
	postgres *postgresServer
	duration time.Duration // of one run of one subject
	runs     int
	quick    bool
	subjects string // what their names begin with
	log      io.Writer
}

func (b *bench) do(ctx context.Context, p plan) ([]result, error) {
	if b.redis != nil {
		if err := b.redis.admin.FlushAll(ctx).Err(); err != nil {
			return nil, fmt.Errorf("emptying Redis: %w", err)
		}
	}
	subjects, err := p.open(ctx)
	defer func() {
		for _, s := range subjects {
			if s.release != nil {
				s.release()
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(slices.Clone(subjects), func(s *subject) bool { return !strings.HasPrefix(s.name, b.subjects) })
	var all []result
	for _, goroutines := range p.goroutines {
		results, err := b.compare(ctx, p, wanted, goroutines)
		if err != nil {
			return all, fmt.Errorf("case %s, %s, %d goroutines: %w", p.name, p.keys.name, goroutines, err)
		}
		printTable(b.log, results)
		all = append(all, results...)
	}
	return all, nil
}

// compare lets the subjects take turns, there and back, so that what else the machine does meets all of them alike.
func (b *bench) compare(ctx context.Context, p plan, subjects []*subject, goroutines int) ([]result, error) {
	l := load{
		keys: p.keys, goroutines: goroutines, duration: b.duration, every: max(1, p.every), rate: p.rate, redis: p.redis,
	}
	warm := l
	warm.duration = b.duration / 4
	for _, s := range subjects {
		if _, err := run(ctx, s, warm); err != nil {
			return nil, err
		}
	}
	samples := make([][]sample, len(subjects))
	for r := range b.runs {
		for i := range subjects {
			if r%2 == 1 {
				i = len(subjects) - 1 - i
			}
			s, err := run(ctx, subjects[i], l)
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], s)
		}
	}
	results := make([]result, len(subjects))
	for i, s := range subjects {
		results[i] = summarise(result{
			Case: p.name, Goroutines: goroutines, Keys: p.keys.name, Subject: s.name, role: s.role,
		}, samples[i])
	}
	compareWithPeers(results)
	return results, nil
}

// plans are all cases, or the main ones.
func (b *bench) plans() []plan {
	many, hot, skewed := uniform(10_000), uniform(1), zipf(10_000, 1.1)
	plans := []plan{
		b.onRedis(many, b.pick([]int{1, 64}, []int{1, 8, 64, 512})...),
		b.onRedis(hot, b.pick([]int{64, 512}, []int{1, 8, 64, 512})...),
		b.onRedis(skewed, b.pick([]int{512}, []int{1, 8, 64, 512})...),
		b.denied(hot, b.pick([]int{64}, []int{1, 8, 64, 512})...),
		b.leased(hot, b.pick([]int{64}, []int{1, 8, 64, 512})...),
		b.leased(many, b.pick([]int{64}, []int{1, 8, 64, 512})...),
		b.flooded(hot, b.pick([]int{64}, []int{1, 8, 64, 512})...),
		b.inMemory(many, b.pick([]int{1, 64}, []int{1, 8, 64})...),
		b.rules(many),
	}
	if !b.quick {
		plans = append(plans,
			b.inMemory(hot, 1, 64),
			b.inMemory(skewed, 1, 64),
			b.openLoop(many, 2_000),
			b.openLoop(many, 10_000),
		)
	}
	if b.postgres != nil {
		plans = append(plans, b.onPostgres(hot, b.pick([]int{64}, []int{1, 8, 64, 512})...))
		if !b.quick {
			plans = append(plans, b.onPostgres(many, 1, 64))
		}
	}
	return plans
}

func (b *bench) pick(quick, full []int) []int {
	if b.quick {
		return quick
	}
	return full
}

// redisSubjects are ours, the ceiling if a batch makes sense, and the peers: in a quick run the best known one only.
func (b *bench) redisSubjects(ctx context.Context, k keys, deny, withCeiling bool) ([]*subject, error) {
	limit, right := outOfReach, admitted
	if deny {
		limit, right = exhausted, denied
	}
	first, err := weir(ctx, "weir", policies(1, limit), k, right, []string{"Store", "DenyCache"}, onRedis(b.redis.address))
	if err != nil {
		return nil, err
	}
	all := []*subject{first}
	peers, err := redisPeers(b.redis.address, k, deny)
	for _, p := range peers {
		if b.quick && p.name != "redis_rate-defaults" && p.name != "redis_rate-safe" {
			p.release()
			continue
		}
		all = append(all, p)
	}
	if err != nil || !withCeiling {
		return all, err
	}
	top, err := pipelined(ctx, b.redis.address, k)
	if err != nil {
		return all, err
	}
	return append(all, top), nil
}

// onRedis is the exact path: every decision is the server's.
func (b *bench) onRedis(k keys, goroutines ...int) plan {
	return plan{name: "redis", keys: k, goroutines: goroutines, redis: b.redis, open: func(ctx context.Context) ([]*subject, error) {
		return b.redisSubjects(ctx, k, false, true)
	}}
}

// denied floods a key that has nothing left.
func (b *bench) denied(k keys, goroutines ...int) plan {
	return plan{name: "redis-denied", keys: k, goroutines: goroutines, every: everyInMemory, redis: b.redis, open: func(ctx context.Context) ([]*subject, error) {
		return b.redisSubjects(ctx, k, true, false)
	}}
}

// leased takes 100 requests at a time.
func (b *bench) leased(k keys, goroutines ...int) plan {
	return plan{name: "redis-leased", keys: k, goroutines: goroutines, every: everyInMemory, redis: b.redis, open: func(ctx context.Context) ([]*subject, error) {
		text := policies(1, outOfReach, "lease: {tokens: 100}")
		first, err := weir(ctx, "weir", text, k, admitted, []string{"Store", "Lease"}, onRedis(b.redis.address))
		if err != nil {
			return nil, err
		}
		peers, err := redisRates(b.redis.address, k, redis_rate.Limit{Rate: perHour, Burst: perHour, Period: hour}, admitted)
		return append([]*subject{first}, peers...), err
	}}
}

// flooded asks far more often than the limit admits, whose waits are too short to be remembered: with a prefilter, and
// without.
func (b *bench) flooded(k keys, goroutines ...int) plan {
	return plan{name: "redis-flood", keys: k, goroutines: goroutines, every: everyInMemory, redis: b.redis, open: func(ctx context.Context) ([]*subject, error) {
		var all []*subject
		for name, text := range map[string]string{
			"weir": policies(1, flooded, "prefilter: {multiple: 2}"), "weir-without": policies(1, flooded),
		} {
			s, err := weir(ctx, name, text, k, either, []string{"Store", "DenyCache", "Prefilter"}, onRedis(b.redis.address))
			if err != nil {
				return all, err
			}
			all = append(all, s)
		}
		peers, err := redisRates(b.redis.address, k, redis_rate.PerSecond(1000), either)
		return append(all, peers...), err
	}}
}

// openLoop offers a fixed load, which all subjects can bear, from many callers.
func (b *bench) openLoop(k keys, rate int) plan {
	return plan{
		name: fmt.Sprintf("redis-open-loop-%d", rate), keys: k, goroutines: []int{256}, rate: rate, redis: b.redis,
		open: func(ctx context.Context) ([]*subject, error) { return b.redisSubjects(ctx, k, false, false) },
	}
}

func (b *bench) inMemory(k keys, goroutines ...int) plan {
	return plan{name: "memory", keys: k, goroutines: goroutines, every: everyInMemory, open: func(ctx context.Context) ([]*subject, error) {
		first, err := weir(ctx, "weir", policies(1, outOfReach), k, admitted, []string{"Store"}, inMemory(0))
		if err != nil {
			return nil, err
		}
		peers, err := memoryPeers(k)
		return append([]*subject{first}, peers...), err
	}}
}

// rules compares one rule that applies with ten that do, each with a counter of its own.
func (b *bench) rules(k keys) plan {
	return plan{name: "memory-rules", keys: k, goroutines: []int{1}, every: everyInMemory, open: func(ctx context.Context) ([]*subject, error) {
		var all []*subject
		for _, n := range []int{1, 10} {
			s, err := weir(ctx, fmt.Sprintf("weir-%d-rules", n), policies(n, outOfReach), k, admitted, []string{"Store"}, inMemory(1_000_000))
			if err != nil {
				return all, err
			}
			all = append(all, s)
		}
		return all, nil
	}}
}

func (b *bench) onPostgres(k keys, goroutines ...int) plan {
	return plan{name: "postgres", keys: k, goroutines: goroutines, open: func(ctx context.Context) ([]*subject, error) {
		if err := postgres.New(b.postgres.pool, postgres.Options{}).Prepare(ctx); err != nil {
			return nil, fmt.Errorf("creating the tables: %w", err)
		}
		first, err := weir(ctx, "weir", policies(1, outOfReach), k, admitted, []string{"Store"}, onPostgres(b.postgres.pool))
		if err != nil {
			return nil, err
		}
		peers, err := postgresPeers(ctx, b.postgres.pool, k)
		return append([]*subject{first}, peers...), err
	}}
}
