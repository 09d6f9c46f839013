package chart

import (
	"encoding/xml"
	"strings"
	"testing"
)

func TestSVGIsXMLAndNamesEverything(t *testing.T) {
	c := Chart{
		Title: "a < b & c", XLabel: "x", YLabel: "y", XMax: 10, YMax: 4, XStep: 5, YStep: 2, Mark: 3, MarkLabel: "limit",
		XTick: func(x float64) string { return "at " + strings.Repeat("i", int(x)/5+1) },
		Lines: []Line{{Name: "first", Color: "#000000", Points: []Point{{0, 1}, {5, 4}, {10, 4}}}},
		Bands: []Band{{From: 1, To: 2, Label: "busy"}},
	}
	svg := c.SVG()
	if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
		t.Fatalf("%v\n%s", err, svg)
	}
	for _, text := range []string{"a &lt; b &amp; c", ">first<", ">busy<", ">limit<", ">at i<", ">at iii<", ">2<"} {
		if !strings.Contains(svg, text) {
			t.Errorf("no %s in\n%s", text, svg)
		}
	}
}

func TestNiceAxes(t *testing.T) {
	for _, tc := range []struct {
		most      float64
		parts     int
		end, step float64
	}{{210, 6, 250, 50}, {34.9, 6, 40, 10}, {1, 5, 1, 0.2}, {6000, 6, 6000, 1000}, {6001, 6, 8000, 2000}, {0.03, 3, 0.03, 0.01}} {
		end, step := Nice(tc.most, tc.parts)
		if !near(end, tc.end) || !near(step, tc.step) {
			t.Errorf("%g in %d parts: to %g by %g, want to %g by %g", tc.most, tc.parts, end, step, tc.end, tc.step)
		}
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
