package simulate

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/chart"
)

// colors are those of the variants, the policy's first.
var colors = []string{"#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d"}

// Chart draws what was asked for over time and what each variant admitted of it.
func (r Result) Chart() string {
	step := time.Duration(r.Series.StepSeconds * float64(time.Second))
	// The last step is not over when the log is: it would look like a fall. Of very few steps it is drawn all the same.
	steps := len(r.Series.Requests)
	if steps > 5 {
		steps--
	}
	span := time.Duration(steps) * step
	unit, unitName := axis(step)
	per := float64(unit) / float64(step)

	most := 1.0
	points := func(counts []int64) []chart.Point {
		var all []chart.Point
		for i, n := range counts[:min(steps, len(counts))] {
			y := float64(n) * per
			most = math.Max(most, y)
			all = append(all, chart.Point{X: float64(i) * step.Seconds(), Y: y})
		}
		if len(all) > 0 {
			all = append(all, chart.Point{X: span.Seconds(), Y: all[len(all)-1].Y})
		}
		return all
	}
	c := chart.Chart{
		Title:  fmt.Sprintf("%s: %d requests, %d of them denied", strings.Replace(r.Workload, "/apps/Deployment", "", 1), r.Lines.Read, r.Limits[0].Denied),
		YLabel: "requests per " + unitName,
		Lines:  []chart.Line{{Name: "in the log", Color: "#9aa5b1", Points: points(r.Series.Requests)}},
	}
	for i := len(r.Limits) - 1; i >= 0; i-- { // the policy's is drawn over the others
		name := "admitted by the policy"
		if i > 0 {
			name = "with limits " + r.Limits[i].Name
		}
		c.Lines = append(c.Lines, chart.Line{Name: name, Color: colors[i%len(colors)], Points: points(r.Series.Admitted[i])})
	}
	c.YMax, c.YStep = chart.Nice(most*1.05, 6)
	c.XMax, c.XStep = span.Seconds(), timeStep(span).Seconds()
	layout := "15:04"
	switch {
	case c.XStep < 60:
		layout = "15:04:05"
	case c.XStep >= 24*3600:
		layout = "2 Jan"
	}
	// Grid lines begin at the first step, which is a round time for all but odd lengths.
	c.XTick = func(x float64) string {
		return r.Series.Start.Add(time.Duration(x * float64(time.Second))).Format(layout)
	}
	c.XLabel = "UTC, from " + r.Series.Start.Format("2 January 2006 15:04:05")
	return c.SVG()
}

// axis is the unit of rates for steps of a length.
func axis(step time.Duration) (unit time.Duration, name string) {
	switch {
	case step < time.Minute:
		return time.Second, "second"
	case step < time.Hour:
		return time.Minute, "minute"
	}
	return time.Hour, "hour"
}

// timeStep is a round length of time of which six or fewer are a span.
func timeStep(span time.Duration) time.Duration {
	for _, step := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute,
		2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
		4 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour,
	} {
		if span <= 6*step {
			return step
		}
	}
	days := int64(span.Hours()/24/6) + 1
	return time.Duration(24*days) * time.Hour
}
