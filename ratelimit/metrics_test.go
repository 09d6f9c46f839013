package ratelimit_test

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// registry reads metrics as a scrape does.
type registry struct{ *prometheus.Registry }

func newRegistry() registry { return registry{prometheus.NewPedanticRegistry()} }

// value is that of the series with exactly these labels, -1 if there is none.
func (r registry) value(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if maps.Equal(labelsOf(m), labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func labelsOf(m *dto.Metric) map[string]string {
	var labels map[string]string
	for _, l := range m.GetLabel() {
		if labels == nil {
			labels = make(map[string]string)
		}
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("after 30 s it does not hold that %s", what)
		case <-tick.C:
		}
	}
}
