package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// reading is what one replica's metrics say.
type reading struct {
	at        time.Time
	decisions map[decisionKey]float64
	open      bool // the breaker: it decides without the store
}

// decisionKey are the labels of weir_decisions_total.
type decisionKey struct {
	rule   string // policy/rule, empty where none decided
	denied bool
	source string
}

// parseMetrics reads the text format of Prometheus.
func parseMetrics(data []byte) (reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(data))
	if err != nil {
		return reading{}, fmt.Errorf("reading the metrics: %w", err)
	}
	decisions, ok := families["weir_decisions_total"]
	if !ok {
		return reading{}, errNoMetrics
	}
	out := reading{decisions: make(map[decisionKey]float64)}
	for _, m := range decisions.GetMetric() {
		labels := labelsOf(m)
		key := decisionKey{denied: labels["result"] == "denied", source: labels["source"]}
		if labels["rule"] != "" {
			key.rule = labels["policy"] + "/" + labels["rule"]
		}
		out.decisions[key] += m.GetCounter().GetValue()
	}
	for _, m := range families["weir_breaker_open"].GetMetric() {
		out.open = out.open || m.GetGauge().GetValue() > 0
	}
	return out, nil
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string)
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

var errNoMetrics = errors.New("there are none of Weir, so the application may not export what it gave as ratelimit.Options.Registerer")
