package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgofake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

// exporter is a replica that exports its metrics, and gets a request with each reading.
func exporter(t *testing.T) *httptest.Server {
	t.Helper()
	source, err := file.Text(strings.Replace(policyText, "requests: 2,", "requests: 0,", 1) + `---
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: quiet, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  mode: Shadow
  rules: [{name: all, limits: [{requests: 0, window: 1m}]}]
`)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Policies: source, Counters: ratelimit.Memory(), Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- limiter.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := limiter.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limiter.Decide(r.Context(), ratelimit.Request{Method: http.MethodGet, Path: "/"})
		metrics.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTopReadsWhatReplicasExport(t *testing.T) {
	one, two := exporter(t), exporter(t)
	code, stdout, stderr := call(t, "top", "checkout", "-n", "shop", "--interval", "200ms", "--count", "2",
		"--metrics-url", one.URL+","+two.URL, "--metrics-url", "http://127.0.0.1:1/")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	// One request of each replica in 200 ms, more or less.
	want := regexp.MustCompile(`(?s)^shop/checkout at [0-9:]{8}: 2 of 3 replicas read

RULE +ADMITTED/S +DENIED/S +SHADOW DENIED/S +ANSWERED BY
.*checkout/all +0\.0 +[1-9][0-9]*\.[0-9] +100\.0% +0\.0 +DenyCache 100%
.*
shop/checkout at `)
	if !want.MatchString(stdout) {
		t.Errorf("want %s, got\n%s", want, stdout)
	}
}

func TestTopThroughTheAPIServer(t *testing.T) {
	w := policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}
	pod := func(name string, phase corev1.PodPhase, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "checkout"}, Annotations: annotations},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9090}}}}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	api := fake.NewClientBuilder().WithObjects(
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "checkout"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "checkout"}},
		}},
		pod("a", corev1.PodRunning, nil), pod("b", corev1.PodPending, nil),
		pod("c", corev1.PodRunning, map[string]string{"prometheus.io/port": "8081", "prometheus.io/path": "/stats"}),
	).Build()
	clients := clientgofake.NewClientset()
	var asked []string
	clients.AddProxyReactor("pods", func(action clientgotesting.Action) (bool, rest.ResponseWrapper, error) {
		get, ok := action.(clientgotesting.ProxyGetAction)
		if !ok {
			return false, nil, nil
		}
		asked = append(asked, fmt.Sprintf("%s://%s/%s:%s%s", get.GetScheme(), get.GetNamespace(), get.GetName(), get.GetPort(), get.GetPath()))
		return true, metricsText{}, nil
	})
	pods, err := new(topOptions).pods(t.Context(), api, clients, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		data, err := p.scrape(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if read, err := parseMetrics(data); err != nil || !read.open || read.decisions[decisionKey{"p/r", true, "Store"}] != 3 {
			t.Errorf("%+v, %v", read, err)
		}
	}
	if diff := cmp.Diff([]string{"http://shop/a:9090/metrics", "http://shop/c:8081/stats"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// The Deployment of the samples tells where its pods have their metrics, which examples/checkout serves.
func TestTheSampleTellsItsMetrics(t *testing.T) {
	data, err := os.ReadFile("../../config/samples/00-shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n---\n")
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	told := d.Spec.Template.Annotations
	if port := fmt.Sprint(d.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort); told["prometheus.io/port"] != port || told["prometheus.io/path"] != "/metrics" {
		t.Errorf("annotations %v, and the container serves on %s", told, port)
	}
}

// metricsText is what a pod answers.
type metricsText struct{ rest.ResponseWrapper }

func (metricsText) DoRaw(context.Context) ([]byte, error) {
	return []byte(`# TYPE weir_decisions_total counter
weir_decisions_total{policy="p",rule="r",result="denied",source="Store"} 3
# TYPE weir_breaker_open gauge
weir_breaker_open 1
`), nil
}

func TestRatesOfReplicas(t *testing.T) {
	start := time.Unix(1000, 0)
	read := func(after time.Duration, admitted, denied, shadow float64) reading {
		return reading{at: start.Add(after), decisions: map[decisionKey]float64{
			{"p/r", false, "Store"}: admitted, {"p/r", true, "DenyCache"}: denied, {"p/s", true, "Shadow"}: shadow,
		}}
	}
	got := ratesOf(
		map[string]reading{"a": read(0, 100, 10, 0), "restarted": read(0, 500, 500, 0)},
		map[string]reading{"a": read(2*time.Second, 120, 14, 6), "restarted": read(time.Second, 5, 1, 0), "new": read(0, 9000, 9000, 0)},
	)
	want := []ruleRates{
		{name: "p/r", admitted: 15, denied: 3, sources: map[string]float64{"Store": 15, "DenyCache": 3}},
		{name: "p/s", shadowed: 3, sources: map[string]float64{}},
	}
	if diff := cmp.Diff(want, got.rules, cmp.AllowUnexported(ruleRates{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.read != 3 || got.open != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTopRefuses(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "up 1") }))
	defer other.Close()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no workload":            {nil, 2, "name the workload"},
		"an interval of nothing": {[]string{"checkout", "--interval", "0s"}, 2, "want at least 100ms"},
		"no address":             {[]string{"checkout", "--metrics-url", "localhost:80"}, 2, "want an address such as"},
		"nobody answers":         {[]string{"checkout", "--metrics-url", "http://127.0.0.1:1/"}, 1, "no replica tells its metrics"},
		"other metrics":          {[]string{"checkout", "--metrics-url", other.URL}, 1, "no replica tells its metrics: there are none of Weir"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, append([]string{"top"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
				t.Errorf("exit code %d, want %d, with %q:\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}
