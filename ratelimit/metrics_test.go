package ratelimit_test

import (
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-dev/weir/ratelimit"
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

// Every series that can occur is there from the start, and a decision is counted once.
func TestMetrics(t *testing.T) {
	r := newRegistry()
	limiter := limiterOf(t, `
  rules:
    - {name: exports, key: [{header: X-Api-Key}], limits: [{requests: 2, window: 1h}]}
`, func(o *ratelimit.Options) { o.Registerer = r })
	type labels = map[string]string
	rule := func(result, source string) labels {
		return labels{"policy": "checkout", "rule": "exports", "result": result, "source": source}
	}
	zero := map[string][]labels{
		"weir_decisions_total": {
			rule("admitted", "Store"), rule("denied", "Store"), rule("admitted", "LocalShare"), rule("denied", "LocalShare"),
			rule("admitted", "FailOpen"), rule("denied", "FailClosed"), rule("denied", "KeyMissing"), rule("denied", "DenyCache"),
			rule("admitted", "Lease"), rule("denied", "Prefilter"),
			rule("admitted", "Exempt"), rule("admitted", "Shadow"), rule("denied", "Shadow"),
			{"policy": "", "rule": "", "result": "admitted", "source": "NoRule"},
			{"policy": "", "rule": "", "result": "denied", "source": "Canceled"},
		},
		"weir_key_missing_total":    {{"policy": "checkout", "rule": "exports"}},
		"weir_store_failures_total": {{"reason": "refused"}, {"reason": "timeout"}, {"reason": "crossslot"}, {"reason": "other"}},
		"weir_late_replies_total":   {{"outcome": "used"}, {"outcome": "refunded"}, {"outcome": "denied"}, {"outcome": "lost"}},
		"weir_leased_total":         {{"outcome": "taken"}, {"outcome": "returned"}, {"outcome": "dropped"}},
		"weir_row_problems_total":   {{"reason": "corrupt"}, {"reason": "newer_version"}, {"reason": "lower_revision"}, {"reason": "missing"}},
		"weir_breaker_open":         {nil},
		"weir_breaker_trips_total":  {nil},
		"weir_table_failures_total": {nil},
		"weir_rules_skipped":        {nil},
		"weir_decision_seconds":     {{"source": "Store"}, {"source": "LocalShare"}, {"source": "NoRule"}},
	}
	for name, series := range zero {
		for _, l := range series {
			if got := r.value(t, name, l); got != 0 {
				t.Errorf("%s%v is %g before any decision, want 0", name, l, got)
			}
		}
	}
	for name, want := range map[string]float64{
		"weir_rules": 1, "weir_row_in_force": 1, "weir_replicas": 1, "weir_table_owned": 1, "weir_fallback_seconds_total": 0,
	} {
		if got := r.value(t, name, nil); got != want {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}

	limit := labels{"policy": "checkout", "rule": "exports", "algorithm": "TokenBucket", "window": "1h0m0s"}
	if got := r.value(t, "weir_limit_requests", limit); got != 2 {
		t.Errorf("the limit is %g, want 2", got)
	}
	if got := r.value(t, "weir_share_requests", limit); got < 0 || got > 2 {
		t.Errorf("the share is %g, want 0 to 2", got)
	}

	request := ratelimit.Request{Header: http.Header{"X-Api-Key": {"alice"}}}
	for range 5 {
		limiter.Decide(t.Context(), request)
		limiter.Peek(t.Context(), request)
	}
	limiter.Decide(t.Context(), ratelimit.Request{Remote: "203.0.113.7:1"})
	for _, want := range []struct {
		name   string
		labels labels
		value  float64
	}{
		{"weir_decisions_total", rule("admitted", "Store"), 3},
		{"weir_decisions_total", rule("denied", "Store"), 3},
		{"weir_key_missing_total", labels{"policy": "checkout", "rule": "exports"}, 1},
		{"weir_decision_seconds", labels{"source": "Store"}, 6},
	} {
		if got := r.value(t, want.name, want.labels); got != want.value {
			t.Errorf("%s%v is %g, want %g", want.name, want.labels, got, want.value)
		}
	}
}

// promlint holds names, units and helps to Prometheus' conventions, and docs/metrics.md has each metric.
func TestMetricsAreLintedAndDocumented(t *testing.T) {
	r := newRegistry()
	limiterOf(t, `
  rules:
    - {name: exports, key: [{header: X-Api-Key}], limits: [{requests: 2, window: 1h}]}
`, func(o *ratelimit.Options) { o.Registerer = r })
	families, err := r.Gather()
	if err != nil || len(families) < 20 {
		t.Fatalf("%d families (%v)", len(families), err)
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## The library")
	section, _, _ = strings.Cut(section, "\n## ")
	if rows := strings.Count(section, "\n| `weir_"); rows != len(families) {
		t.Errorf("docs/metrics.md has %d metrics of the library, want %d", rows, len(families))
	}
	for _, f := range families {
		if !strings.Contains(section, "\n| `"+f.GetName()+"` |") {
			t.Errorf("docs/metrics.md lacks %s", f.GetName())
		}
	}
	sources := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if source := labelsOf(m)["source"]; f.GetName() == "weir_decisions_total" {
				sources++
				if !strings.Contains(section, "\n| `"+source+"` |") {
					t.Errorf("docs/metrics.md lacks the source %s", source)
				}
			}
		}
	}
	if sources < 12 {
		t.Errorf("%d series of decisions", sources)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	r := newRegistry()
	options := ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Counters: ratelimit.Memory(), Policies: noPolicies{}, Registerer: r,
	}
	if _, err := ratelimit.New(options); err != nil {
		t.Fatal(err)
	}
	if _, err := ratelimit.New(options); err == nil {
		t.Error("a second limiter with the same registerer is no error")
	}
}
