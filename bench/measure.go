package main

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// sample is one run of one subject.
type sample struct {
	perSecond float64
	p50, p99  float64 // µs
	allocs    float64 // per decision
	redisCPU  float64 // s per million decisions; 0 where there is no Redis
	clientCPU float64 // µs per decision, of this whole process
	failed    float64 // part of the calls
	failure   error   // the first
}

// load says what is asked of a subject.
type load struct {
	keys       keys
	goroutines int
	duration   time.Duration
	// every how many calls one is timed: reading the clock twice takes longer than a decision in memory.
	every int
	// rate is the offered load of an open loop, per second; 0 is a closed loop.
	rate int
	// redis is the server whose processor counts; nil if there is none.
	redis *redisServer
}

// worker is what one goroutine saw.
type worker struct {
	decided, failed int
	failure         error
	times           histogram
	_               [64]byte // the next worker's counts are not on this cache line
}

// run measures a subject once.
func run(ctx context.Context, s *subject, l load) (sample, error) {
	outstanding, batch := l.goroutines, 1
	if s.batch != nil {
		batch = s.batch(outstanding)
		outstanding = max(1, outstanding/batch)
	}
	workers := make([]worker, outstanding)
	drawn := l.keys.draws(outstanding)
	runtime.GC()

	before, err := readCosts(ctx, l.redis)
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	if l.rate > 0 {
		openLoop(ctx, s, l, workers, drawn, start)
	} else {
		closedLoop(ctx, s, l, workers, drawn, batch)
	}
	elapsed := time.Since(start)
	after, err := readCosts(ctx, l.redis)
	if err != nil {
		return sample{}, err
	}

	var total worker
	for i := range workers {
		w := &workers[i]
		total.decided += w.decided
		total.failed += w.failed
		if total.failure == nil {
			total.failure = w.failure
		}
		total.times.add(&w.times)
	}
	if total.decided == 0 {
		return sample{}, fmt.Errorf("%s decided nothing: %w", s.name, total.failure)
	}
	decided := float64(total.decided)
	return sample{
		perSecond: decided / elapsed.Seconds(),
		p50:       total.times.quantile(0.50).Seconds() * 1e6,
		p99:       total.times.quantile(0.99).Seconds() * 1e6,
		allocs:    (after.allocs - before.allocs) / decided,
		redisCPU:  (after.redis - before.redis) / decided * 1e6,
		clientCPU: (after.client - before.client) / decided * 1e6,
		failed:    float64(total.failed) / float64(total.failed+total.decided),
		failure:   total.failure,
	}, nil
}

// closedLoop keeps all workers busy: each asks again when it has an answer.
func closedLoop(ctx context.Context, s *subject, l load, workers []worker, drawn [][]int, batch int) {
	var stop atomic.Bool
	timer := time.AfterFunc(l.duration, func() { stop.Store(true) })
	defer timer.Stop()
	var group sync.WaitGroup
	for i := range workers {
		w, ring := &workers[i], drawn[i]
		group.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // as every request of a server has one
			defer cancel()
			for n := 0; !stop.Load(); n++ {
				from := n * batch % (len(ring) - batch + 1)
				timed := n%l.every == 0
				var start time.Time
				if timed {
					start = time.Now()
				}
				decided, err := s.take(ctx, ring[from:from+batch])
				if timed {
					w.times.observe(time.Since(start))
				}
				w.count(decided, err)
			}
		})
	}
	group.Wait()
}

// openLoop offers a load that does not wait for answers: a call that comes late because the former ones are slow is
// late from when it was due, as it is for a user.
func openLoop(ctx context.Context, s *subject, l load, workers []worker, drawn [][]int, start time.Time) {
	calls := int(l.duration.Seconds() * float64(l.rate))
	var group sync.WaitGroup
	for i := range workers {
		w, ring := &workers[i], drawn[i]
		group.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			timer := time.NewTimer(0)
			defer timer.Stop()
			<-timer.C
			for n := i; n < calls; n += len(workers) {
				due := start.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
				if wait := time.Until(due); wait > 0 {
					timer.Reset(wait)
					<-timer.C
				}
				key := n / len(workers) % len(ring)
				decided, err := s.take(ctx, ring[key:key+1])
				w.times.observe(time.Since(due))
				w.count(decided, err)
			}
		})
	}
	group.Wait()
}

func (w *worker) count(decided int, err error) {
	w.decided += decided
	if err != nil {
		w.failed++
		if w.failure == nil {
			w.failure = err
		}
	}
}

// costs are what was spent until now.
type costs struct{ allocs, client, redis float64 }

func readCosts(ctx context.Context, server *redisServer) (costs, error) {
	var c costs
	if server != nil {
		var err error
		if c.redis, err = server.cpu(ctx); err != nil {
			return costs{}, err
		}
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return costs{}, fmt.Errorf("reading the process's own usage: %w", err)
	}
	c.client = time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	c.allocs = float64(memory.Mallocs)
	return c, nil
}

// histogram counts times in buckets that are 1/16 of their value wide.
type histogram struct{ counts [64 * 16]uint32 }

func (h *histogram) observe(d time.Duration) { h.counts[bucketOf(max(1, d.Nanoseconds()))]++ }

func bucketOf(ns int64) int {
	exponent := bits.Len64(uint64(ns)) - 1
	if exponent < 4 {
		return int(ns)
	}
	return exponent<<4 | int(ns>>(exponent-4))&15
}

func (h *histogram) add(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
}

// quantile is the middle of the bucket in which that part of all times ends.
func (h *histogram) quantile(q float64) time.Duration {
	var total uint64
	for _, n := range h.counts {
		total += uint64(n)
	}
	rank := uint64(q * float64(total))
	for i, n := range h.counts {
		if rank < uint64(n) {
			if i < 16 {
				return time.Duration(i)
			}
			exponent, part := i>>4, i&15
			low := int64(1)<<exponent | int64(part)<<(exponent-4)
			return time.Duration(low + int64(1)<<(exponent-4)/2)
		}
		rank -= uint64(n)
	}
	return 0
}
