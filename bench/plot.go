package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// A plot is a grid: one column for each distribution of keys, throughput above and p99 below, over goroutines. All axes
// are logarithmic.
const (
	panelWidth, panelHeight = 300.0, 220.0
	marginLeft, marginTop   = 60.0, 40.0
	gapX, gapY              = 60.0, 50.0
	legendHeight            = 60.0
)

var colours = []string{"#0b6e4f", "#c1121f", "#e07a5f", "#3d5a80", "#98c1d9", "#7b2cbf", "#c77dff", "#6c757d"}

type panel struct {
	title string
	unit  string
	of    func(result) float64
}

func writePlot(name string, results []result) error {
	if err := os.WriteFile(name, []byte(plot(results)), 0o644); err != nil {
		return fmt.Errorf("writing the plot: %w", err)
	}
	return nil
}

func plot(results []result) string {
	var onRedis []result
	var columns, subjects []string
	for _, r := range results {
		if r.Case != "redis" {
			continue
		}
		onRedis = append(onRedis, r)
		if !slices.Contains(columns, r.Keys) {
			columns = append(columns, r.Keys)
		}
		if !slices.Contains(subjects, r.Subject) {
			subjects = append(subjects, r.Subject)
		}
	}
	panels := []panel{
		{"decisions per second", "/s", func(r result) float64 { return r.PerSecond }},
		{"p99", " µs", func(r result) float64 { return r.P99 }},
	}
	width := marginLeft + float64(len(columns))*(panelWidth+gapX)
	height := marginTop + float64(len(panels))*(panelHeight+gapY) + legendHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="white"/>`+"\n", width, height)
	for row, p := range panels {
		for column, keys := range columns {
			x, y := marginLeft+float64(column)*(panelWidth+gapX), marginTop+float64(row)*(panelHeight+gapY)
			drawPanel(&b, x, y, p, keys, onRedis, subjects)
		}
	}
	for i, subject := range subjects {
		x, y := marginLeft+float64(i%4)*230, height-legendHeight+20+float64(i/4)*18
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="12" height="4" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`+"\n",
			x, y-5, colours[i%len(colours)], x+18, y, subject)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func drawPanel(b *strings.Builder, x, y float64, p panel, keys string, results []result, subjects []string) {
	lowX, highX := math.Inf(1), 0.0
	lowY, highY := math.Inf(1), 0.0
	for _, r := range results {
		lowX, highX = min(lowX, float64(r.Goroutines)), max(highX, float64(r.Goroutines))
		if v := p.of(r); v > 0 {
			lowY, highY = min(lowY, v), max(highY, v)
		}
	}
	lowY, highY = math.Pow(10, math.Floor(math.Log10(lowY))), math.Pow(10, math.Ceil(math.Log10(highY)))
	atX := func(v float64) float64 {
		if highX == lowX {
			return x
		}
		return x + panelWidth*math.Log(v/lowX)/math.Log(highX/lowX)
	}
	atY := func(v float64) float64 { return y + panelHeight*(1-math.Log(v/lowY)/math.Log(highY/lowY)) }

	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-weight="bold">%s, %s keys</text>`+"\n", x, y-8, p.title, keys)
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="none" stroke="#888"/>`+"\n", x, y, panelWidth, panelHeight)
	for v := lowY; v <= highY*1.01; v *= 10 {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n",
			x, atY(v), x+panelWidth, atY(v), x-4, atY(v)+4, axis(v)+p.unit)
	}
	for i, subject := range subjects {
		var points []string
		for _, r := range results {
			if r.Keys == keys && r.Subject == subject && p.of(r) > 0 {
				points = append(points, fmt.Sprintf("%.1f,%.1f", atX(float64(r.Goroutines)), atY(p.of(r))))
			}
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
			strings.Join(points, " "), colours[i%len(colours)])
	}
	var ticks []int
	for _, r := range results {
		if r.Keys == keys && !slices.Contains(ticks, r.Goroutines) {
			ticks = append(ticks, r.Goroutines)
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%d</text>`+"\n", atX(float64(r.Goroutines)), y+panelHeight+14, r.Goroutines)
		}
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">goroutines</text>`+"\n", x+panelWidth/2, y+panelHeight+28)
}

// axis writes a power of ten: 100, 1k, 10M.
func axis(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.0fM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.0fk", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}
