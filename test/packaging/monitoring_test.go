package packaging

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

const monitoring = "config/components/monitoring/"

// alerts are the rules of config/components/monitoring, read as Prometheus reads them.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	var resource struct {
		Spec any `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(readFile(t, monitoring+"prometheus_rule.yaml")), &resource); err != nil {
		t.Fatal(err)
	}
	spec, err := yaml.Marshal(resource.Spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, problems := rulefmt.Parse(spec, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var found []rulefmt.Rule
	for _, group := range groups.Groups {
		found = append(found, group.Rules...)
	}
	return found
}

// healthy is a world in which nothing is wrong, one sample a minute for an hour.
const healthy = `load 1m
  weir_controller_table_up{pod="a"} 1+0x60
  weir_controller_table_up{pod="b"} 0+0x60
  weir_controller_status_writes_total{pod="a"} 1+1x60
  weir_controller_table_evicts{pod="a"} 0+0x60
  weir_controller_table_owned{pod="a"} 1+0x60
  weir_controller_table_owned{pod="b"} 0+0x60
  leader_election_master_status{name="weir-controller-manager",pod="a"} 1+0x60
  leader_election_master_status{name="weir-controller-manager",pod="b"} 0+0x60
  weir_controller_table_refusals_total{reason="revision",pod="a"} 1+0x60
  weir_controller_policies{condition="Enforced",status="False",pod="a"} 0+0x60
  weir_controller_policies{condition="Accepted",status="False",pod="a"} 0+0x60
  controller_runtime_reconcile_errors_total{controller="ratelimitpolicy",pod="a"} 3+0x60
  weir_controller_propagation_seconds_bucket{le="2.5",pod="a"} 0+9x60
  weir_controller_propagation_seconds_bucket{le="60",pod="a"} 0+9x60
  weir_controller_propagation_seconds_bucket{le="+Inf",pod="a"} 0+9x60
  weir_breaker_open{namespace="shop",job="checkout",pod="x"} 0+0x60
  weir_decision_seconds_bucket{source="Store",le="0.001",namespace="shop",job="checkout",pod="x"} 0+1000x60
  weir_decision_seconds_bucket{source="Store",le="0.025",namespace="shop",job="checkout",pod="x"} 0+1001x60
  weir_decision_seconds_bucket{source="Store",le="+Inf",namespace="shop",job="checkout",pod="x"} 0+1001x60
  weir_decisions_total{source="FailOpen",namespace="shop",job="checkout",pod="x"} 5+0x60
  weir_decisions_total{source="FailClosed",namespace="shop",job="checkout",pod="x"} 5+0x60
  weir_row_in_force{namespace="shop",job="checkout",pod="x"} 1+0x60
  weir_table_owned{namespace="shop",job="checkout",pod="x"} 1+0x60
  weir_table_age_seconds{namespace="shop",job="checkout",pod="x"} 4+0x60
  weir_row_problems_total{reason="corrupt",namespace="shop",job="checkout",pod="x"} 1+0x60
  weir_row_problems_total{reason="missing",namespace="shop",job="checkout",pod="x"} 0+5x60
  weir_rules_skipped{namespace="shop",job="checkout",pod="x"} 0+0x60
  weir_forwarded_ignored_total{namespace="shop",job="checkout",pod="x"} 7+0x60
  weir_rule_unmatched_requests{policy="p",rule="r",namespace="shop",job="checkout",pod="x"} 0+0x60
  weir_rule_unmatched_requests{policy="p",rule="r",namespace="shop",job="checkout",pod="y"} 0+100x60
`

// Each alert fires within 45 minutes of its fault, alone or with the ones named, and none fires where nothing is wrong.
func TestAlerts(t *testing.T) {
	cases := map[string]struct {
		// series replaces those of the healthy world that begin alike, up to the value.
		series []string
		also   []string
	}{
		"":                        {},
		"WeirControllerDown":      {series: []string{"-weir_controller_status_writes_total"}},
		"WeirNoLeader":            {series: []string{`leader_election_master_status{name="weir-controller-manager",pod="a"} 0+0x60`}},
		"WeirTableUnreachable":    {series: []string{`weir_controller_table_up{pod="a"} 0+0x60`}},
		"WeirTableOwnedElsewhere": {series: []string{`weir_controller_table_owned{pod="a"} 0+0x60`}},
		"WeirTableRefusals":       {series: []string{`weir_controller_table_refusals_total{reason="revision",pod="a"} 0+1x60`}},
		"WeirPoliciesNotEnforced": {series: []string{`weir_controller_policies{condition="Enforced",status="False",pod="a"} 2+0x60`}},
		"WeirPoliciesNotAccepted": {series: []string{`weir_controller_policies{condition="Accepted",status="False",pod="a"} 1+0x60`}},
		"WeirReconcileErrors":     {series: []string{`controller_runtime_reconcile_errors_total{controller="ratelimitpolicy",pod="a"} 0+60x60`}},
		"WeirPropagationSlow":     {series: []string{`weir_controller_propagation_seconds_bucket{le="2.5",pod="a"} 0+1x60`}},
		"WeirStoreUnreachable":    {series: []string{`weir_breaker_open{namespace="shop",job="checkout",pod="x"} 1+0x60`}},
		"WeirStoreSlow":           {series: []string{`weir_decision_seconds_bucket{source="Store",le="0.001",namespace="shop",job="checkout",pod="x"} 0+500x60`}},
		"WeirFailingOpen":         {series: []string{`weir_decisions_total{source="FailOpen",namespace="shop",job="checkout",pod="x"} 0+60x60`}},
		"WeirFailingClosed":       {series: []string{`weir_decisions_total{source="FailClosed",namespace="shop",job="checkout",pod="x"} 0+60x60`}},
		"WeirNoPolicies":          {series: []string{`weir_row_in_force{namespace="shop",job="checkout",pod="x"} 0+0x60`}},
		"WeirTableNeverWritten":   {series: []string{`weir_table_owned{namespace="shop",job="checkout",pod="x"} 0+0x60`}},
		"WeirTableStale":          {series: []string{`weir_table_age_seconds{namespace="shop",job="checkout",pod="x"} 0+60x60`}},
		"WeirRowsNotTaken":        {series: []string{`weir_row_problems_total{reason="corrupt",namespace="shop",job="checkout",pod="x"} 0+1x60`}},
		"WeirTableEvicts":         {series: []string{`weir_controller_table_evicts{pod="a"} 1+0x60`}},
		"WeirForwardedIgnored":    {series: []string{`weir_forwarded_ignored_total{namespace="shop",job="checkout",pod="x"} 0+60x60`}},
		"WeirRuleUnmatched":       {series: []string{`weir_rule_unmatched_requests{policy="p",rule="r",namespace="shop",job="checkout",pod="x"} 2000+100x60`, `weir_rule_unmatched_requests{policy="p",rule="r",namespace="shop",job="checkout",pod="y"} 2000+100x60`}},
		"WeirRulesSkipped":        {series: []string{`weir_rules_skipped{namespace="shop",job="checkout",pod="x"} 2+0x60`}},
	}
	all := alerts(t)
	for _, rule := range all {
		if _, ok := cases[rule.Alert]; !ok {
			t.Errorf("no case for %s", rule.Alert)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var want []string
			if name != "" {
				want = append([]string{name}, c.also...)
			}
			if got := firing(t, all, with(t, healthy, c.series)); !slices.Equal(got, want) {
				t.Errorf("firing: %v, want %v", got, want)
			}
		})
	}
}

// with replaces series of a world; one that begins with - goes.
func with(t *testing.T, world string, series []string) string {
	t.Helper()
	for _, s := range series {
		name, _, _ := strings.Cut(s, " ")
		drop := strings.TrimPrefix(s, "-")
		var kept []string
		replaced := false
		for line := range strings.Lines(world) {
			switch trimmed := strings.TrimSpace(line); {
			case strings.HasPrefix(s, "-") && strings.HasPrefix(trimmed, drop):
				replaced = true
				continue
			case strings.HasPrefix(trimmed, name+" "):
				line, replaced = "  "+s+"\n", true
			}
			kept = append(kept, line)
		}
		if !replaced {
			t.Fatalf("the healthy world has no series %s", name)
		}
		world = strings.Join(kept, "")
	}
	return world
}

// firing are the alerts that fire after 45 minutes, evaluated once a minute.
func firing(t *testing.T, all []rulefmt.Rule, world string) []string {
	t.Helper()
	storage := promqltest.LoadedStorage(t, world)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query := rules.EngineQueryFunc(engine, storage)
	var names []string
	for _, r := range all {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		rule := rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), 0, labels.FromMap(r.Labels),
			labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
		for minute := range 46 {
			if _, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(time.Duration(minute)*time.Minute), query, &url.URL{}, 0); err != nil {
				t.Fatalf("%s: %v", r.Alert, err)
			}
		}
		active := rule.ActiveAlerts()
		if slices.ContainsFunc(active, func(a *rules.Alert) bool { return a.State == rules.StateFiring }) {
			names = append(names, r.Alert)
			for _, alert := range active {
				if summary := alert.Annotations.Get("summary"); strings.Contains(summary, "<no value>") || strings.Contains(summary, "error expanding") {
					t.Errorf("%s: summary %q", r.Alert, summary)
				}
			}
		}
	}
	return names
}

// metricsOf are the names of the metrics that an expression reads, without the endings of histograms.
func metricsOf(t *testing.T, expr string) []string {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(expr, "$__rate_interval", "5m"))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	names := map[string]bool{}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names[strings.TrimSuffix(selector.Name, "_bucket")] = true
		}
		return nil
	})
	return slices.Collect(maps.Keys(names))
}

// documented are the metrics of docs/metrics.md; tests of the packages hold the page to what they register.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllStringSubmatch(readFile(t, "docs/metrics.md"), -1) {
		found[match[1]] = true
	}
	return found
}

func TestAlertsNameMetricsThatExistAndRunbooks(t *testing.T) {
	exist := documented(t)
	headings := regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(readFile(t, "docs/runbooks.md"), -1)
	sections := map[string]bool{}
	for _, heading := range headings {
		sections[heading[1]] = true
	}
	all := alerts(t)
	for _, r := range all {
		for _, name := range metricsOf(t, r.Expr) {
			if !exist[name] {
				t.Errorf("%s reads %s, which does not exist", r.Alert, name)
			}
		}
		const page = "https://github.com/weir-dev/weir/blob/main/docs/runbooks.md#"
		if anchor := strings.TrimPrefix(r.Annotations["runbook_url"], page); anchor != strings.ToLower(r.Alert) || !sections[r.Alert] {
			t.Errorf("%s: %s is no section of docs/runbooks.md", r.Alert, r.Annotations["runbook_url"])
		}
		delete(sections, r.Alert)
	}
	if len(sections) > 0 {
		t.Errorf("runbooks without an alert: %v", sections)
	}
}

func TestDashboardNamesMetricsThatExist(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Type  string `json:"type"`
				Query string `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal([]byte(readFile(t, monitoring+"dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	exist := documented(t)
	check := func(where, expr string) {
		names := metricsOf(t, expr)
		if len(names) == 0 {
			t.Errorf("%s reads nothing", where)
		}
		for _, name := range names {
			if !exist[name] {
				t.Errorf("%s reads %s, which does not exist", where, name)
			}
		}
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			check(panel.Title, target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if values, ok := strings.CutPrefix(variable.Query, "label_values("); ok {
			check(variable.Query, values[:strings.LastIndex(values, ",")])
		}
	}
	if len(dashboard.Panels) < 10 {
		t.Errorf("only %d panels", len(dashboard.Panels))
	}
}
