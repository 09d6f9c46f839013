package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"
)

// footprints prints what a key costs: in Redis and in this process, and what is left of very many keys.
func (b *bench) footprints(ctx context.Context) error {
	table := tabwriter.NewWriter(b.log, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "footprint\tkeys\tsubject\tbytes per key\tMiB in all")
	if err := b.redisFootprints(ctx, table); err != nil {
		return err
	}
	if err := b.memoryFootprints(ctx, table); err != nil {
		return err
	}
	return table.Flush()
}

const million = 1_000_000

func (b *bench) redisFootprints(ctx context.Context, table *tabwriter.Writer) error {
	k := uniform(million)
	subjects, err := b.redisSubjects(ctx, k, false, false)
	defer func() {
		for _, s := range subjects {
			s.release()
		}
	}()
	if err != nil {
		return err
	}
	for _, s := range subjects {
		if s.name != "weir" && s.name != "redis_rate-defaults" && s.name != "ulule-defaults" {
			continue
		}
		if err := b.redis.admin.FlushAll(ctx).Err(); err != nil {
			return fmt.Errorf("emptying Redis: %w", err)
		}
		before, err := b.redis.info(ctx, "memory", "used_memory")
		if err != nil {
			return err
		}
		if err := visit(ctx, s, million); err != nil {
			return err
		}
		after, err := b.redis.info(ctx, "memory", "used_memory")
		if err != nil {
			return err
		}
		// Keys that a subject lets go within the minute that this takes are not there any more.
		kept, err := b.redis.admin.DBSize(ctx).Result()
		if err != nil {
			return fmt.Errorf("counting keys: %w", err)
		}
		fmt.Fprintf(table, "redis\t%d\t%s\t%.0f\t%.0f\n", kept, s.name, (after-before)/float64(max(1, kept)), (after-before)/(1<<20))
	}
	return nil
}

// memoryFootprints fills stores with a million keys, and ours with ten million, of which it keeps what it may.
func (b *bench) memoryFootprints(ctx context.Context, table *tabwriter.Writer) error {
	open := map[string]func(k keys) (*subject, error){
		"weir": func(k keys) (*subject, error) {
			return weir(ctx, "weir", policies(1, outOfReach), k, admitted, []string{"Store"}, inMemory(2*million))
		},
		"weir-bounded": func(k keys) (*subject, error) {
			return weir(ctx, "weir-bounded", policies(1, "{requests: 100, window: 1h}"), k, admitted, []string{"Store"}, inMemory(0))
		},
		"sethvargo":     sethvargo,
		"x-time-rate":   mapOfBuckets,
		"slidingwindow": mapOfWindows,
		"ulule":         ululeMemory,
		"throttled":     throttledMemory,
	}
	for _, name := range []string{"weir", "sethvargo", "x-time-rate", "slidingwindow", "ulule", "throttled", "weir-bounded"} {
		n := million
		if name == "weir-bounded" {
			n = 10 * million
		}
		if err := memoryFootprint(ctx, table, n, open[name]); err != nil {
			return err
		}
	}
	return nil
}

func memoryFootprint(ctx context.Context, table *tabwriter.Writer, n int, open func(keys) (*subject, error)) error {
	// The requests are the application's own: they are there before and after.
	s, err := open(uniform(n))
	if err != nil {
		return err
	}
	before := heap()
	err = visit(ctx, s, n)
	after := heap()
	if s.release != nil {
		s.release()
	}
	used := float64(after) - float64(before)
	fmt.Fprintf(table, "memory\t%d\t%s\t%.0f\t%.0f\n", n, s.name, used/float64(n), used/(1<<20))
	return err
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what a pool held is free after the second
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}

// visit asks for each key until it is decided.
func visit(ctx context.Context, s *subject, n int) error {
	const workers = 256
	var group sync.WaitGroup
	failures := make([]error, workers)
	for w := range workers {
		group.Go(func() {
			key := make([]int, 1)
			for key[0] = w; key[0] < n && failures[w] == nil; key[0] += workers {
				failures[w] = persist(ctx, s, key)
			}
		})
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// persist asks again, every few milliseconds and for some seconds, while a busy machine keeps a subject from deciding.
func persist(ctx context.Context, s *subject, key []int) error {
	const attempts, pause = 1000, 10 * time.Millisecond
	var err error
	for range attempts {
		if _, err = s.take(ctx, key); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return err
}
