package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// result is one line of results.json: the medians of all runs.
type result struct {
	Case            string  `json:"case"`
	Goroutines      int     `json:"goroutines"`
	Keys            string  `json:"keys"`
	Subject         string  `json:"subject"`
	PerSecond       float64 `json:"per_s"`
	P50             float64 `json:"p50_us"`
	P99             float64 `json:"p99_us"`
	Allocs          float64 `json:"allocs"`
	RedisCPU        float64 `json:"redis_cpu_s_per_M"`
	RatioToBestPeer float64 `json:"ratio_to_best_peer"`

	Low       float64 `json:"per_s_lowest"`
	High      float64 `json:"per_s_highest"`
	ClientCPU float64 `json:"client_cpu_s_per_M"`

	role    role
	failed  float64
	failure error
}

// median of an odd or even number of figures.
func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func summarise(r result, samples []sample) result {
	of := func(pick func(sample) float64) float64 {
		figures := make([]float64, len(samples))
		for i, s := range samples {
			figures[i] = pick(s)
		}
		return median(figures)
	}
	r.PerSecond = of(func(s sample) float64 { return s.perSecond })
	r.P50 = of(func(s sample) float64 { return s.p50 })
	r.P99 = of(func(s sample) float64 { return s.p99 })
	r.Allocs = of(func(s sample) float64 { return s.allocs })
	r.RedisCPU = of(func(s sample) float64 { return s.redisCPU })
	r.ClientCPU = of(func(s sample) float64 { return s.clientCPU })
	r.Low, r.High = samples[0].perSecond, samples[0].perSecond
	for _, s := range samples {
		r.Low, r.High = min(r.Low, s.perSecond), max(r.High, s.perSecond)
		r.failed = max(r.failed, s.failed)
		if r.failure == nil {
			r.failure = s.failure
		}
	}
	return r
}

// compareWithPeers fills in the ratios of one case to its best peer.
func compareWithPeers(results []result) {
	best := 0.0
	for _, r := range results {
		if r.role == peer {
			best = max(best, r.PerSecond)
		}
	}
	for i := range results {
		if best > 0 {
			results[i].RatioToBestPeer = results[i].PerSecond / best
		}
	}
}

func printTable(w io.Writer, results []result) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "case\tkeys\tgoroutines\tsubject\tper s\tlowest–highest\tp50 µs\tp99 µs\tallocs\tRedis s/M\tclient s/M\tto best peer\tfailed")
	for _, r := range results {
		failed := ""
		if r.failed > 0 {
			failed = fmt.Sprintf("%.2f %%: %v", 100*r.failed, r.failure)
			if len(failed) > 60 {
				failed = failed[:60]
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%.0f\t%.0f–%.0f\t%s\t%s\t%.1f\t%s\t%s\t%.2f\t%s\n",
			r.Case, r.Keys, r.Goroutines, r.Subject, r.PerSecond, r.Low, r.High, figure(r.P50), figure(r.P99), r.Allocs,
			figure(r.RedisCPU), figure(r.ClientCPU), r.RatioToBestPeer, failed)
	}
	_ = table.Flush()
}

// figure writes three digits that matter.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.3f", v)
	case v < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func writeResults(name string, results []result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}
