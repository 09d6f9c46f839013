package ratelimit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-dev/weir/internal/enforcer"
)

// metrics reads the enforcer's own counts when it is asked, so that a decision pays for one atomic addition.
type metrics struct {
	enforcer *enforcer.Enforcer
	seconds  *prometheus.HistogramVec
	sources  map[string]prometheus.Observer
}

var (
	decisionsDesc = describe("decisions_total",
		"Decisions by the rule that made them; both labels are empty when none did. Source Shadow is what rules in shadow mode would have done.",
		"policy", "rule", "result", "source")
	keyMissingDesc = describe("key_missing_total", "Requests that lacked a part of a rule's key.", "policy", "rule")
	unmatchedDesc  = describe("rule_unmatched_requests",
		"Requests that were decided since the rule has the match that it has, while none of them matched it; 0 once one did.", "policy", "rule")
	failuresDesc = describe("store_failures_total", "Failed requests to the store, each for any number of decisions.", "reason")
	lateDesc     = describe("late_replies_total",
		"Answers of the store that came after the caller had been answered without it, or was gone.", "outcome")
	leasedDesc = describe("leased_total",
		"Requests that were leased: taken from the store ahead of time, and of those returned or dropped because nobody made them.", "outcome")
	breakerDesc      = describe("breaker_open", "1 while the store is not asked because it does not answer.")
	fallbackDesc     = describe("fallback_seconds_total", "Time for which the breaker was open, and rules decided by their onStoreFailure.")
	breakerTripsDesc = describe("breaker_trips_total", "Times that the breaker opened.")
	rowProblemsDesc  = describe("row_problems_total",
		"Reads of the policy table that brought no row which could be taken. The last good one stays in force.", "reason")
	snapshotProblemsDesc = describe("snapshot_problems_total",
		"Reads and writes of snapshot files that failed, or brought nothing that could be taken. The last good row stays in force.",
		"file", "reason")
	rowSourceDesc   = describe("row_source", "1 for where the policies in force were read.", "source")
	failedPollsDesc = describe("table_failures_total", "Failed reads of the policy table.")
	tableAgeDesc    = describe("table_age_seconds", "Time since the policy table was last read, or without one the snapshot file; since the start if it never was.")
	tableOwnedDesc  = describe("table_owned", "0 if the policy table was read and no controller ever wrote to it.")
	rulesDesc       = describe("rules", "Rules in force.")
	skippedDesc     = describe("rules_skipped", "Rules that are not enforced because they need a newer library.")
	inForceDesc     = describe("row_in_force", "1 once policies were read.")
	limitDesc       = describe("limit_requests", "Requests that a limit in force admits in its window.", "policy", "rule", "algorithm", "window")
	shareDesc       = describe("share_requests",
		"Requests of a limit that this replica would admit by itself in its window, by one key, if the store were away now; 0 unless the rule falls back to local shares.",
		"policy", "rule", "algorithm", "window")
	replicasDesc   = describe("replicas", "Replicas that local shares are counted for.")
	suspicionsDesc = describe("store_suspicions_total",
		"Times that the store may have lost counters, because it was away or something was missing, and was told them anew.")
	pushedDesc      = describe("store_pushes_total", "Counters that the store was told of: what was admitted without it, and what it may have lost.")
	disbelievedDesc = describe("forwarded_ignored_total",
		"Requests counted by client address whose X-Forwarded-For was not read, because their peer, which has a private address, is no trusted proxy.")
	guardedDesc = describe("store_guarded", "1 while store and local share must both admit, because requests were decided without the store a moment ago.")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

func newMetrics(r prometheus.Registerer, e *enforcer.Enforcer) (*metrics, error) {
	m := &metrics{
		enforcer: e,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_decision_seconds",
			Help: "Time that decisions took.",
			// From a decision in memory to one that waited for a store that did not answer.
			Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1.5e-2, 2.5e-2, 0.1, 1},
		}, []string{"source"}),
		sources: make(map[string]prometheus.Observer),
	}
	for _, source := range []string{
		SourceStore, SourceLease, SourceDenyCache, SourcePrefilter, SourceLocalShare, SourceFailOpen, SourceFailClosed, SourceExempt, SourceNoRule,
		SourceKeyMissing, SourceCanceled,
	} {
		m.sources[source] = m.seconds.WithLabelValues(source)
	}
	if err := r.Register(m.seconds); err != nil {
		return nil, err
	}
	if err := r.Register(m); err != nil {
		r.Unregister(m.seconds)
		return nil, err
	}
	return m, nil
}

func (m *metrics) observe(d Decision, took time.Duration) {
	if o, ok := m.sources[d.Source]; ok {
		o.Observe(took.Seconds())
	}
}

// Describe sends all descriptions.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		decisionsDesc, keyMissingDesc, failuresDesc, lateDesc, leasedDesc, breakerDesc, breakerTripsDesc, rowProblemsDesc,
		failedPollsDesc, tableAgeDesc, tableOwnedDesc, rulesDesc, skippedDesc, inForceDesc, replicasDesc,
		suspicionsDesc, pushedDesc, guardedDesc, fallbackDesc, limitDesc, shareDesc, snapshotProblemsDesc, rowSourceDesc,
		disbelievedDesc, unmatchedDesc,
	} {
		ch <- d
	}
}

// Collect sends all values. Every label that can occur is there from the start, at 0.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	f := m.enforcer.Figures()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, r := range f.Rules {
		for _, o := range enforcer.Outcomes() {
			result, source := o.Names()
			count(decisionsDesc, r.Decisions[o], r.Policy, r.Rule, result, source)
		}
		count(keyMissingDesc, r.KeyMissing, r.Policy, r.Rule)
		gauge(unmatchedDesc, float64(r.Unmatched), r.Policy, r.Rule)
		for _, l := range r.Limits {
			labels := []string{r.Policy, r.Rule, string(l.Limit.Algorithm), (time.Duration(l.Limit.Window) * time.Microsecond).String()}
			gauge(limitDesc, float64(l.Limit.Requests), labels...)
			gauge(shareDesc, l.Share, labels...)
		}
	}
	for _, g := range enforcer.Generals() {
		result, source := g.Names()
		count(decisionsDesc, f.General[g], "", "", result, source)
	}
	for reason, n := range f.Failures {
		count(failuresDesc, n, string(reason))
	}
	for _, l := range enforcer.Lates() {
		count(lateDesc, f.Late[l], l.String())
	}
	for _, l := range enforcer.LeaseEnds() {
		count(leasedDesc, f.Leased[l], l.String())
	}
	for _, p := range enforcer.RowProblems() {
		count(rowProblemsDesc, f.Problems[p], p.String())
	}
	for _, source := range enforcer.RowSources() {
		gauge(rowSourceDesc, number(!f.Revision.IsZero() && f.Source == source), source.String())
		for _, p := range enforcer.SnapshotProblems() {
			if source == enforcer.FromKept || source == enforcer.FromMounted && p != enforcer.SnapshotUnwritable {
				count(snapshotProblemsDesc, f.Files[source][p], source.String(), p.String())
			}
		}
	}
	count(failedPollsDesc, f.FailedPolls)
	count(breakerTripsDesc, f.BreakerTrips)
	ch <- prometheus.MustNewConstMetric(fallbackDesc, prometheus.CounterValue, f.Fallback)
	gauge(breakerDesc, number(f.BreakerOpen))
	gauge(tableAgeDesc, f.TableAge)
	gauge(tableOwnedDesc, number(f.Owned))
	gauge(rulesDesc, float64(len(f.Rules)))
	gauge(skippedDesc, float64(f.Skipped))
	gauge(inForceDesc, number(!f.Revision.IsZero()))
	gauge(replicasDesc, float64(f.Replicas))
	count(suspicionsDesc, f.Suspicions)
	count(pushedDesc, f.Pushed)
	count(disbelievedDesc, f.Disbelieved)
	gauge(guardedDesc, number(f.Guarded))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
