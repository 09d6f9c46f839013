package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkDecide runs the same subjects as the command, one at a time, for benchstat:
//
//	go test -run xxx -bench 'Decide/redis/hot/goroutines=64' -count 10 | benchstat -col /subject -
func BenchmarkDecide(b *testing.B) {
	server, err := startRedis(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.stop)
	run := &bench{redis: server}
	for _, p := range run.plans() {
		if p.rate > 0 {
			continue // an offered load takes as long as it takes
		}
		b.Run(p.name+"/"+p.keys.name, func(b *testing.B) { benchmarkPlan(b, p) })
	}
}

func benchmarkPlan(b *testing.B, p plan) {
	subjects, err := p.open(b.Context())
	b.Cleanup(func() {
		for _, s := range subjects {
			if s.release != nil {
				s.release()
			}
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, goroutines := range p.goroutines {
		for _, s := range subjects {
			b.Run(fmt.Sprintf("goroutines=%d/subject=%s", goroutines, s.name), func(b *testing.B) {
				benchmarkSubject(b, s, p.keys, goroutines)
			})
		}
	}
}

// benchmarkSubject shares b.N decisions among goroutines.
func benchmarkSubject(b *testing.B, s *subject, k keys, goroutines int) {
	batch := 1
	if s.batch != nil {
		batch = s.batch(goroutines)
	}
	var left, failed atomic.Int64
	left.Store(int64(b.N))
	rings := k.draws(goroutines)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, err := readCosts(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var group sync.WaitGroup
	for i := range max(1, goroutines/batch) {
		group.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			for n := 0; left.Add(-int64(batch)) >= -int64(batch-1); n++ {
				from := n * batch % (len(rings[i]) - batch + 1)
				if _, err := s.take(ctx, rings[i][from:from+batch]); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	group.Wait()
	b.StopTimer()
	after, err := readCosts(ctx, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((after.client-before.client)*1e9/float64(b.N), "cpu-ns/op") // steadier than time on a busy machine
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	if failed.Load() > 0 {
		b.ReportMetric(float64(failed.Load()), "failed")
	}
}

func TestQuantiles(t *testing.T) {
	var h histogram
	for i := range int64(10_000) {
		h.observe(time.Duration(1000 * (i + 1)))
	}
	for q, want := range map[float64]float64{0.5: 5_000_000, 0.99: 9_900_000} {
		if got := float64(h.quantile(q)); got < 0.94*want || got > 1.06*want {
			t.Errorf("quantile %g is %g ns, want %g within a bucket", q, got, want)
		}
	}
}

func TestPlotHasALineForEachSubject(t *testing.T) {
	var results []result
	for _, goroutines := range []int{1, 8} {
		for _, subject := range []string{"weir", "peer"} {
			results = append(results, result{Case: "redis", Keys: "hot", Goroutines: goroutines, Subject: subject, PerSecond: 1000, P99: 90})
		}
	}
	if got := strings.Count(plot(results), "<polyline"); got != 4 {
		t.Errorf("%d lines, want one for each subject in each of two panels", got)
	}
}
