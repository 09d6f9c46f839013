package controllers

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// promlint holds the metrics to Prometheus' conventions, and docs/metrics.md names each of them.
func TestMetricsAreLintedAndDocumented(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	if _, err := newMetrics(registry, fake.NewClientBuilder().WithScheme(scheme).Build(), true); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	var registered []string
	for _, family := range families {
		registered = append(registered, family.GetName())
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "| `weir_controller_"); ok {
			name, _, _ = strings.Cut(name, "`")
			documented = append(documented, "weir_controller_"+name)
		}
	}
	slices.Sort(documented)
	if !slices.Equal(registered, documented) {
		t.Errorf("registered %v\ndocumented %v", registered, documented)
	}
}
