package controllers

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// Kinds of what is written to the table.
const (
	kindRow       = "row"
	kindTombstone = "tombstone"
	kindReplicas  = "replicas"
)

type metrics struct {
	tableUp       prometheus.Gauge
	tableOwned    prometheus.Gauge
	tableEvicts   prometheus.Gauge
	tableFailures prometheus.Counter
	rowsWritten   *prometheus.CounterVec
	refusals      *prometheus.CounterVec
	statusWrites  prometheus.Counter
	tableFaults   prometheus.Counter
	repairs       *prometheus.CounterVec

	snapshotWrites, snapshotFailures prometheus.Counter

	propagation prometheus.Histogram
}

// newMetrics creates the metrics and registers them, unless registerer is nil; those of the table where there is one.
func newMetrics(registerer prometheus.Registerer, reader client.Reader, hasTable bool) (*metrics, error) {
	m := &metrics{
		tableUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_controller_table_up",
			Help: "1 when the policy table answered last, 0 when it did not; 0 on who does not lead, and so does not ask.",
		}),
		tableOwned: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_controller_table_owned",
			Help: "1 when this installation owns the policy table, 0 when another one does; 0 on who does not lead.",
		}),
		tableEvicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_controller_table_evicts",
			Help: "1 when the store may drop rows to make room, by its maxmemory-policy.",
		}),
		tableFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_controller_table_failures_total",
			Help: "Requests to the policy table that failed.",
		}),
		rowsWritten: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_controller_table_writes_total",
			Help: "Writes to the policy table by kind: row, tombstone or replicas.",
		}, []string{"kind"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_controller_table_refusals_total",
			Help: "Writes that the policy table refused, by reason.",
		}, []string{"reason"}),
		tableFaults: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_controller_table_faults_total",
			Help: "Requests that failed over what the policy table holds for one workload, while the table answers.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_controller_table_repairs_total",
			Help: "Keys of workloads that were deleted because they were of another type, by the kind of key.",
		}, []string{"key"}),
		statusWrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_controller_status_writes_total",
			Help: "Status patches sent to the API server.",
		}),
		snapshotWrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_controller_snapshot_writes_total",
			Help: "ConfigMaps with snapshots that were created, changed or deleted.",
		}),
		snapshotFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_controller_snapshot_failures_total",
			Help: "Changes of ConfigMaps with snapshots that the API server refused.",
		}),
		propagation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_controller_propagation_seconds",
			Help:    "From the first sight of a policy's generation until enough pods report it.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
	}
	for _, kind := range []string{kindRow, kindTombstone, kindReplicas} {
		m.rowsWritten.WithLabelValues(kind)
	}
	for _, kind := range RepairedKeys {
		m.repairs.WithLabelValues(kind)
	}
	for _, refusal := range []policy.Refusal{
		policy.RefusedOwner, policy.RefusedRevision, policy.RefusedVersion, policy.RefusedStale,
	} {
		m.refusals.WithLabelValues(string(refusal))
	}
	if registerer == nil {
		return m, nil
	}
	collectors := []prometheus.Collector{m.statusWrites, m.snapshotWrites, m.snapshotFailures, policyCollector{reader}}
	if hasTable {
		collectors = append(collectors, m.tableUp, m.tableOwned, m.tableEvicts, m.tableFailures, m.tableFaults, m.repairs, m.rowsWritten, m.refusals, m.propagation)
	}
	for _, collector := range collectors {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) rowWritten(row policy.Row) {
	kind := kindRow
	if len(row.Rules) == 0 {
		kind = kindTombstone
	}
	m.rowsWritten.WithLabelValues(kind).Inc()
}

// policyCollector counts policies by condition when asked, from the cache, so that the numbers cannot drift.
type policyCollector struct {
	reader client.Reader
}

var policiesDesc = prometheus.NewDesc("weir_controller_policies",
	"Policies by condition and status.", []string{"condition", "status"}, nil)

// collectTimeout bounds a scrape; a cache that has synced answers at once.
const collectTimeout = time.Second

// Describe implements prometheus.Collector.
func (c policyCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- policiesDesc }

// Collect implements prometheus.Collector.
func (c policyCollector) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var list v1alpha1.RateLimitPolicyList
	if err := c.reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // the cache has not synced: a gap in this series, not a failed scrape
	}
	type series struct {
		condition v1alpha1.ConditionType
		status    metav1.ConditionStatus
	}
	counts := map[series]int{}
	for _, condition := range reportedConditions {
		for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			counts[series{condition, status}] = 0
		}
		for i := range list.Items {
			status := metav1.ConditionUnknown
			if found := findCondition(list.Items[i].Status.Conditions, condition); found != nil {
				status = found.Status
			}
			counts[series{condition, status}]++
		}
	}
	for s, count := range counts {
		collected <- prometheus.MustNewConstMetric(policiesDesc, prometheus.GaugeValue, float64(count),
			string(s.condition), string(s.status))
	}
}
