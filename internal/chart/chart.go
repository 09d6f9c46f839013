// Package chart draws line charts as SVG.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Chart is a line chart with one x axis and one y axis, both from 0. Max and Step must be above 0.
type Chart struct {
	Title, XLabel, YLabel string
	XMax, YMax            float64
	XStep, YStep          float64 // between grid lines
	// XTick and YTick write the values of the axes; nil writes them as numbers.
	XTick, YTick func(float64) string
	Lines        []Line
	// Mark is a horizontal line with a name, for example the limit.
	Mark      float64
	MarkLabel string
	// Bands are spans of x with a name, for example when a client sends.
	Bands []Band
}

// Line goes from point to point in steps: a value holds until the next point.
type Line struct {
	Name, Color string
	Points      []Point
}

// Point is a value at a place.
type Point struct{ X, Y float64 }

// Band is a span of x.
type Band struct {
	From, To float64
	Label    string
}

const (
	width, height                   = 860.0, 420.0
	left, right, top, bottom        = 64.0, 210.0, 48.0, 52.0
	plotWidth, plotHeight           = width - left - right, height - top - bottom
	ink, faint, grid, bandFill      = "#1f2933", "#616e7c", "#e4e7eb", "#f2f4f7"
	fontSize, smallSize, titleStart = 13, 12, 24.0
)

// SVG draws the chart.
func (c Chart) SVG() string {
	var b strings.Builder
	x := func(v float64) float64 { return left + v/c.XMax*plotWidth }
	y := func(v float64) float64 { return top + plotHeight - v/c.YMax*plotHeight }
	text := func(px, py float64, anchor string, size int, color, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", px, py, anchor, size, color, html.EscapeString(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="system-ui, sans-serif" role="img" aria-label="%s">`+"\n", width, height, html.EscapeString(c.Title))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="#ffffff"/>`+"\n", width, height)
	text(left, titleStart, "start", 15, ink, c.Title)
	for _, s := range c.Bands {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x(s.From), top, x(s.To)-x(s.From), plotHeight, bandFill)
		text(x((s.From+s.To)/2), top+14, "middle", smallSize, faint, s.Label)
	}
	for v := 0.0; v <= c.YMax+1e-9; v += c.YStep {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="%s"/>`+"\n", left, y(v), left+plotWidth, grid)
		text(left-8, y(v)+4, "end", smallSize, faint, tick(c.YTick, v))
	}
	for v := 0.0; v <= c.XMax+1e-9; v += c.XStep {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fv5" stroke="%s"/>`+"\n", x(v), top+plotHeight, faint)
		text(x(v), top+plotHeight+19, "middle", smallSize, faint, tick(c.XTick, v))
	}
	text(left+plotWidth/2, height-12, "middle", fontSize, faint, c.XLabel)
	fmt.Fprintf(&b, `<text transform="translate(18 %.1f) rotate(-90)" text-anchor="middle" font-size="%d" fill="%s">%s</text>`+"\n", top+plotHeight/2, fontSize, faint, html.EscapeString(c.YLabel))
	if c.MarkLabel != "" {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="%s" stroke-dasharray="5 4"/>`+"\n", left, y(c.Mark), left+plotWidth, ink)
		text(left+6, y(c.Mark)-6, "start", smallSize, ink, c.MarkLabel)
	}
	for i, l := range c.Lines {
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="2" d="`, l.Color)
		for j, p := range l.Points {
			if j == 0 {
				fmt.Fprintf(&b, "M%.1f %.1f", x(p.X), y(p.Y))
				continue
			}
			fmt.Fprintf(&b, "H%.1fV%.1f", x(p.X), y(p.Y))
		}
		b.WriteString("\"/>\n")
		ly := top + 12 + float64(i)*24
		fmt.Fprintf(&b, `<path d="M%.1f %.1fh22" stroke="%s" stroke-width="3"/>`+"\n", left+plotWidth+16, ly-4, l.Color)
		text(left+plotWidth+44, ly, "start", fontSize, ink, l.Name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func tick(write func(float64) string, v float64) string {
	if write == nil {
		return fmt.Sprintf("%g", v)
	}
	return write(v)
}

// Nice returns the step of an axis to max, 1, 2 or 5 times a power of ten, that gives it at most so many parts, and the
// end of the axis: the first multiple that is not below max.
func Nice(maximum float64, parts int) (end, step float64) {
	maximum = math.Max(maximum, 1e-9)
	step = math.Pow(10, math.Floor(math.Log10(maximum/float64(parts))))
	for _, times := range []float64{1, 2, 5, 10} {
		if maximum <= step*times*float64(parts) {
			step *= times
			break
		}
	}
	return math.Ceil(maximum/step-1e-9) * step, step
}
