package main

import (
	"fmt"
	"html"
	"strings"
)

// chart is a line chart with one x axis and one y axis, both from 0.
type chart struct {
	title, xLabel, yLabel string
	xMax, yMax            float64
	xStep, yStep          float64 // between grid lines
	lines                 []line
	// mark is a horizontal line with a name, for example the limit.
	mark      float64
	markLabel string
	// bands are spans of x with a name, for example when a client sends.
	bands []band
}

type line struct {
	name, color string
	points      []point
}

type point struct{ x, y float64 }

type band struct {
	from, to float64
	label    string
}

const (
	width, height                   = 860.0, 420.0
	left, right, top, bottom        = 64.0, 210.0, 48.0, 52.0
	plotWidth, plotHeight           = width - left - right, height - top - bottom
	ink, faint, grid, bandFill      = "#1f2933", "#616e7c", "#e4e7eb", "#f2f4f7"
	fontSize, smallSize, titleStart = 13, 12, 24.0
)

// svg draws the chart. Steps are drawn as steps: counts do not change between points.
func (c chart) svg() string {
	var b strings.Builder
	x := func(v float64) float64 { return left + v/c.xMax*plotWidth }
	y := func(v float64) float64 { return top + plotHeight - v/c.yMax*plotHeight }
	text := func(px, py float64, anchor string, size int, color, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", px, py, anchor, size, color, html.EscapeString(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="system-ui, sans-serif" role="img" aria-label="%s">`+"\n", width, height, html.EscapeString(c.title))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="#ffffff"/>`+"\n", width, height)
	text(left, titleStart, "start", 15, ink, c.title)
	for _, s := range c.bands {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x(s.from), top, x(s.to)-x(s.from), plotHeight, bandFill)
		text(x((s.from+s.to)/2), top+14, "middle", smallSize, faint, s.label)
	}
	for v := 0.0; v <= c.yMax+1e-9; v += c.yStep {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="%s"/>`+"\n", left, y(v), left+plotWidth, grid)
		text(left-8, y(v)+4, "end", smallSize, faint, fmt.Sprintf("%g", v))
	}
	for v := 0.0; v <= c.xMax+1e-9; v += c.xStep {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fv5" stroke="%s"/>`+"\n", x(v), top+plotHeight, faint)
		text(x(v), top+plotHeight+19, "middle", smallSize, faint, fmt.Sprintf("%g", v))
	}
	text(left+plotWidth/2, height-12, "middle", fontSize, faint, c.xLabel)
	fmt.Fprintf(&b, `<text transform="translate(18 %.1f) rotate(-90)" text-anchor="middle" font-size="%d" fill="%s">%s</text>`+"\n", top+plotHeight/2, fontSize, faint, html.EscapeString(c.yLabel))
	if c.markLabel != "" {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="%s" stroke-dasharray="5 4"/>`+"\n", left, y(c.mark), left+plotWidth, ink)
		text(left+6, y(c.mark)-6, "start", smallSize, ink, c.markLabel)
	}
	for i, l := range c.lines {
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="2" d="`, l.color)
		for j, p := range l.points {
			if j == 0 {
				fmt.Fprintf(&b, "M%.1f %.1f", x(p.x), y(p.y))
				continue
			}
			fmt.Fprintf(&b, "H%.1fV%.1f", x(p.x), y(p.y))
		}
		b.WriteString("\"/>\n")
		ly := top + 12 + float64(i)*24
		fmt.Fprintf(&b, `<path d="M%.1f %.1fh22" stroke="%s" stroke-width="3"/>`+"\n", left+plotWidth+16, ly-4, l.color)
		text(left+plotWidth+44, ly, "start", fontSize, ink, l.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
