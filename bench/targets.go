package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// target is what a run has to show. Measured returns false if the run has not measured it.
type target struct {
	text    string
	measure func(figures) (value float64, ok bool)
	// atLeast or, if atMost is set, atMost.
	atLeast, atMost float64
}

// figures are the results of a run.
type figures []result

func (f figures) find(name, keys string, goroutines int, subject string) (result, bool) {
	for _, r := range f {
		if r.Case == name && r.Keys == keys && r.Goroutines == goroutines && r.Subject == subject {
			return r, true
		}
	}
	return result{}, false
}

// ratio of ours to a peer's figure. A peer that has several settings counts with those under which it is better.
func (f figures) ratio(name, keys string, goroutines int, peer string, of func(result) float64, lowIsGood bool) (float64, bool) {
	our, ok := f.find(name, keys, goroutines, "weir")
	if !ok {
		return 0, false
	}
	best, found := 0.0, false
	for _, r := range f {
		if r.Case != name || r.Keys != keys || r.Goroutines != goroutines || !strings.HasPrefix(r.Subject, peer) {
			continue
		}
		if v := of(r); !found || lowIsGood && v < best || !lowIsGood && v > best {
			best, found = v, true
		}
	}
	if !found || best == 0 {
		return 0, false
	}
	return of(our) / best, true
}

func throughput(name, keys string, goroutines int, peer string) func(figures) (float64, bool) {
	return func(f figures) (float64, bool) {
		return f.ratio(name, keys, goroutines, peer, func(r result) float64 { return r.PerSecond }, false)
	}
}

func low(name, keys string, goroutines int, peer string, of func(result) float64) func(figures) (float64, bool) {
	return func(f figures) (float64, bool) { return f.ratio(name, keys, goroutines, peer, of, true) }
}

const many, skewed = "uniform-10000", "zipf-1.1-10000"

var targets = []target{
	{"Redis, 10,000 keys, 64 goroutines: throughput to redis_rate's", throughput("redis", many, 64, "redis_rate"), 4, 0},
	{"Redis, 10,000 keys, 64 goroutines: p99 to redis_rate's", low("redis", many, 64, "redis_rate", func(r result) float64 { return r.P99 }), 0, 0.25},
	{"Redis, one hot key, 64 goroutines: throughput to redis_rate's", throughput("redis", "hot", 64, "redis_rate"), 15, 0},
	{"Redis, one hot key, 512 goroutines: throughput to redis_rate's", throughput("redis", "hot", 512, "redis_rate"), 40, 0},
	{"Redis, Zipf keys, 512 goroutines: throughput to redis_rate's", throughput("redis", skewed, 512, "redis_rate"), 10, 0},
	{"Redis, 1 goroutine: p50 to redis_rate's", low("redis", many, 1, "redis_rate", func(r result) float64 { return r.P50 }), 0, 1},
	{"Redis, one hot key, 64 goroutines: Redis CPU to redis_rate's", low("redis", "hot", 64, "redis_rate", func(r result) float64 { return r.RedisCPU }), 0, 0.05},
	{"Denied key under flood, 64 goroutines: throughput to redis_rate's", throughput("redis-denied", "hot", 64, "redis_rate"), 100, 0},
	{"Leased, 100 tokens, one key, 64 goroutines: throughput to redis_rate's", throughput("redis-leased", "hot", 64, "redis_rate"), 100, 0},
	{"Leased, 100 tokens, 10,000 keys, 64 goroutines: throughput to redis_rate's", throughput("redis-leased", many, 64, "redis_rate"), 100, 0},
	{"Memory, 10,000 keys: allocations", func(f figures) (float64, bool) {
		r, ok := f.find("memory", many, 1, "weir")
		return r.Allocs, ok
	}, 0, 0.005},
	{"Memory, 10,000 keys, 1 goroutine: throughput to sethvargo's", throughput("memory", many, 1, "sethvargo"), 1, 0},
	{"Memory, 10,000 keys, 64 goroutines: throughput to sethvargo's", throughput("memory", many, 64, "sethvargo"), 1, 0},
	{"10 rules: cost to that of 1", func(f figures) (float64, bool) {
		few, ok := f.find("memory-rules", many, 1, "weir-1-rules")
		ten, found := f.find("memory-rules", many, 1, "weir-10-rules")
		return few.PerSecond / ten.PerSecond, ok && found
	}, 0, 3},
	{"PostgreSQL, one hot row, 64 goroutines: throughput to the upsert's", throughput("postgres", "hot", 64, "upsert"), 10, 0},
}

// verdict is a target beside what a run measured. Measured is false if the run has not measured it.
func (t target) verdict(f figures) (wanted, value string, met, measured bool) {
	v, ok := t.measure(f)
	if !ok {
		return "", "", false, false
	}
	wanted, met = fmt.Sprintf("at least %g", t.atLeast), v >= t.atLeast
	if t.atMost > 0 {
		wanted, met = fmt.Sprintf("at most %g", t.atMost), v <= t.atMost
	}
	return wanted, fmt.Sprintf("%.3g", v), met, true
}

func printTargets(w io.Writer, f figures) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "target\twanted\tmeasured\t")
	for _, t := range targets {
		if wanted, value, met, ok := t.verdict(f); ok {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", t.text, wanted, value, notMet(met))
		}
	}
	_ = table.Flush()
}

func notMet(met bool) string {
	if met {
		return ""
	}
	return "not met"
}
