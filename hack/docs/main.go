// Command docs draws the pictures of the pages from the code that they are about.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-dev/weir/internal/chart"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/docs CAPTURES FOLDER")
		os.Exit(2)
	}
	if err := draw(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "docs: %v\n", err)
		os.Exit(1)
	}
}

// draw writes the pictures into a folder.
func draw(captures, folder string) error {
	pictures, err := terminals(captures)
	if err != nil {
		return err
	}
	simulated, err := simulation()
	if err != nil {
		return err
	}
	pictures["window-edge.svg"] = windowEdge().SVG()
	pictures["smooth.svg"] = smooth().SVG()
	pictures["simulate.svg"] = simulated
	for name, picture := range pictures {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(picture), 0o644); err != nil {
			return fmt.Errorf("drawing %s: %w", name, err)
		}
	}
	return nil
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
func trailing(times []int64, until int64) []chart.Point {
	var points []chart.Point
	for now := int64(0); now <= until; now += second {
		n := 0
		for _, t := range times {
			if t <= now && t > now-window {
				n++
			}
		}
		points = append(points, chart.Point{X: float64(now) / float64(second), Y: float64(n)})
	}
	return points
}

// windowEdge is a client that is silent until 10 s before a window ends and then sends 10 a second.
func windowEdge() chart.Chart {
	const from, to, until = 50 * second, 130 * second, 200 * second
	c := chart.Chart{
		Title:  "Limit 60 per minute; a client sends 10 a second from 50 s to 130 s",
		XLabel: "seconds; windows begin at 0, 60, 120, 180", YLabel: "admitted in the last 60 s",
		XMax: 200, YMax: 140, XStep: 20, YStep: 20, Mark: limit, MarkLabel: "limit",
		Bands: []chart.Band{{From: 50, To: 130, Label: "client sends"}},
	}
	for _, a := range algorithms {
		c.Lines = append(c.Lines, chart.Line{Name: a.algorithm.String(), Color: a.color, Points: trailing(admissions(a.algorithm, from, to, second/10), until)})
	}
	return c
}

// smooth is a client that sends twice what it may from 20 s on: when do its requests get through?
func smooth() chart.Chart {
	const from, until = 20 * second, 240 * second
	c := chart.Chart{
		Title:  "Limit 60 per minute; a client sends 2 a second from 20 s on",
		XLabel: "seconds", YLabel: "admitted in all",
		XMax: 240, YMax: 280, XStep: 30, YStep: 40,
		Bands: []chart.Band{{From: 20, To: 240, Label: "client sends"}},
	}
	for _, a := range algorithms {
		points := []chart.Point{{X: 0, Y: 0}}
		for i, t := range admissions(a.algorithm, from, until, second/2) {
			points = append(points, chart.Point{X: float64(t) / float64(second), Y: float64(i + 1)})
		}
		points = append(points, chart.Point{X: 240, Y: points[len(points)-1].Y})
		c.Lines = append(c.Lines, chart.Line{Name: a.algorithm.String(), Color: a.color, Points: points})
	}
	return c
}
