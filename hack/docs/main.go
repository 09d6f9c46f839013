// Command docs draws the pictures of the pages from the code that they are about.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/docs FOLDER")
		os.Exit(2)
	}
	pictures := map[string]chart{
		"window-edge.svg": windowEdge(),
		"smooth.svg":      smooth(),
	}
	for name, c := range pictures {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), []byte(c.svg()), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "docs: drawing %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

const (
	second = int64(1_000_000) // µs
	limit  = 60
	window = 60 * second
)

var algorithms = []struct {
	algorithm algorithm.Algorithm
	color     string
}{
	{algorithm.TokenBucket, "#2563eb"},
	{algorithm.FixedWindow, "#dc2626"},
	{algorithm.SlidingWindowCounter, "#d97706"},
	{algorithm.SlidingWindowLog, "#059669"},
}

// admissions sends a request of cost 1 every step from one time to another and returns when it was admitted.
func admissions(a algorithm.Algorithm, from, to, step int64) []int64 {
	l := algorithm.Limit{Algorithm: a, Requests: limit, Window: window}
	if a == algorithm.TokenBucket {
		l.Burst = limit
	}
	var state algorithm.State
	var times []int64
	for now := from; now <= to; now += step {
		next, result := l.Take(state, now, 1)
		if state = next; result.Allowed {
			times = append(times, now)
		}
	}
	return times
}

// trailing is how many requests were admitted in the last minute, second by second.
func trailing(times []int64, until int64) []point {
	var points []point
	for now := int64(0); now <= until; now += second {
		n := 0
		for _, t := range times {
			if t <= now && t > now-window {
				n++
			}
		}
		points = append(points, point{float64(now) / float64(second), float64(n)})
	}
	return points
}

// windowEdge is a client that is silent until 10 s before a window ends and then sends 10 a second.
func windowEdge() chart {
	const from, to, until = 50 * second, 130 * second, 200 * second
	c := chart{
		title:  "Limit 60 per minute; a client sends 10 a second from 50 s to 130 s",
		xLabel: "seconds; windows begin at 0, 60, 120, 180", yLabel: "admitted in the last 60 s",
		xMax: 200, yMax: 140, xStep: 20, yStep: 20, mark: limit, markLabel: "limit",
		bands: []band{{50, 130, "client sends"}},
	}
	for _, a := range algorithms {
		c.lines = append(c.lines, line{a.algorithm.String(), a.color, trailing(admissions(a.algorithm, from, to, second/10), until)})
	}
	return c
}

// smooth is a client that sends twice what it may from 20 s on: when do its requests get through?
func smooth() chart {
	const from, until = 20 * second, 240 * second
	c := chart{
		title:  "Limit 60 per minute; a client sends 2 a second from 20 s on",
		xLabel: "seconds", yLabel: "admitted in all",
		xMax: 240, yMax: 280, xStep: 30, yStep: 40,
		bands: []band{{20, 240, "client sends"}},
	}
	for _, a := range algorithms {
		points := []point{{0, 0}}
		for i, t := range admissions(a.algorithm, from, until, second/2) {
			points = append(points, point{float64(t) / float64(second), float64(i + 1)})
		}
		points = append(points, point{240, points[len(points)-1].y})
		c.lines = append(c.lines, line{a.algorithm.String(), a.color, points})
	}
	return c
}
