package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// topView is one reading, as it is told.
type topView struct {
	Workload string    `json:"workload"`
	At       time.Time `json:"at"`
	Replicas int       `json:"replicas"`
	// Read is how many replicas told their metrics, WithoutStore how many of those decide without the store.
	Read         int    `json:"read"`
	WithoutStore int    `json:"withoutStore"`
	RatesMissing string `json:"ratesMissing,omitempty"` // why nobody told them

	Rules  []topRule  `json:"rules"`
	Denied *topDenied `json:"denied,omitempty"` // with --redis

	of policy.Workload
}

// topRule is what one rule does in a second. Rule is empty where none decided.
type topRule struct {
	Rule         string             `json:"rule"`
	Admitted     float64            `json:"admittedPerSecond"`
	Denied       float64            `json:"deniedPerSecond"`
	ShadowDenied float64            `json:"shadowDeniedPerSecond"`
	AnsweredBy   map[string]float64 `json:"answeredByPerSecond,omitempty"`
}

// topDenied are the identities that were denied most.
type topDenied struct {
	// Seconds is the time that was counted, up to two minutes. Replicas is how many of them denied somebody.
	Seconds    float64       `json:"seconds"`
	Replicas   int           `json:"replicas"`
	Identities []topIdentity `json:"identities"`
}

// topIdentity is an identity, by the rule that denied it.
type topIdentity struct {
	Policy   string `json:"policy"`
	Rule     string `json:"rule"`
	Identity string `json:"identity"`
	Name     string `json:"name,omitempty"`
	// Denied is never too low; it is too high by at most Over.
	Denied int64 `json:"denied"`
	Over   int64 `json:"over,omitempty"`
	// Share is Denied's part of all requests that the rule denied.
	Share float64 `json:"share"`
}

func viewOf(w policy.Workload, replicas int, r rates) topView {
	v := topView{
		Workload: w.String(), At: time.Now(), Replicas: replicas, Read: r.read, WithoutStore: r.open, Rules: []topRule{}, of: w,
	}
	for _, rule := range r.rules {
		if rule.name == "" && rule.admitted+rule.denied == 0 {
			continue
		}
		v.Rules = append(v.Rules, topRule{
			Rule: rule.name, Admitted: rule.admitted, Denied: rule.denied, ShadowDenied: rule.shadowed, AnsweredBy: rule.sources,
		})
	}
	return v
}

// denials reads whom replicas deny most.
type denials struct {
	redis    *redisOptions
	client   redis.UniversalClient
	workload policy.Workload
}

// denials returns nil without --redis.
func (o *topOptions) denials(w policy.Workload) (*denials, error) {
	if !o.redis.given() {
		return nil, nil
	}
	client, err := o.redis.client()
	if err != nil {
		return nil, err
	}
	return &denials{&o.redis, client, w}, nil
}

func (d *denials) close() { _ = d.client.Close() }

// read adds up what the replicas report. It returns nil where nobody reads.
func (d *denials) read(ctx context.Context, most int) (*topDenied, error) {
	if d == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	reports, err := redisstore.Denied(ctx, d.client, d.redis.table, d.workload)
	if err != nil {
		return nil, d.redis.advise(err)
	}
	return topDeniedOf(reports, most), nil
}

func topDeniedOf(reports []policy.DeniedReport, most int) *topDenied {
	out := &topDenied{Replicas: len(reports), Identities: []topIdentity{}}
	var parts [][]policy.DeniedRule
	for _, r := range reports {
		out.Seconds = max(out.Seconds, float64(r.To-r.From)/1e6)
		parts = append(parts, r.Rules)
	}
	for _, rule := range policy.MergeDenied(parts, most) {
		for _, id := range rule.Identities {
			out.Identities = append(out.Identities, topIdentity{
				Policy: rule.Policy, Rule: rule.Rule, Identity: id.ID, Name: printable(id.Name), Denied: id.Denied, Over: id.Over,
				Share: min(1, float64(id.Denied)/float64(max(1, rule.Total))),
			})
		}
	}
	slices.SortStableFunc(out.Identities, func(a, b topIdentity) int { return cmp.Compare(b.Denied, a.Denied) })
	out.Identities = out.Identities[:min(most, len(out.Identities))]
	return out
}

// printable leaves out what a name could do to a terminal.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, name)
}

func (v *topView) denies() bool {
	return slices.ContainsFunc(v.Rules, func(r topRule) bool { return r.Denied > 0 })
}

func (v *topView) print(w io.Writer, wide bool) {
	fmt.Fprintf(w, "%s/%s at %s: %d of %s read", v.of.Namespace, v.of.Name, v.At.Format(time.TimeOnly), v.Read, plural(v.Replicas, "replica"))
	if v.WithoutStore > 0 {
		fmt.Fprintf(w, ", %d without Redis", v.WithoutStore)
	}
	fmt.Fprint(w, "\n\n")
	if v.RatesMissing != "" {
		fmt.Fprintf(w, "No rates: %s\n", v.RatesMissing)
	} else {
		v.printRules(w)
	}
	fmt.Fprintln(w)
	if v.Denied != nil {
		v.Denied.print(w, wide)
		fmt.Fprintln(w)
	}
}

func (v *topView) printRules(w io.Writer) {
	t := newTable(w, "RULE", "ADMITTED/S", "DENIED/S", "", "SHADOW DENIED/S", "ANSWERED BY")
	for _, rule := range v.Rules {
		all := rule.Admitted + rule.Denied
		share := "-"
		if all > 0 {
			share = shareText(rule.Denied / all)
		}
		name := cmp.Or(rule.Rule, "(no rule)")
		t.row(name, perSecond(rule.Admitted), perSecond(rule.Denied), share, perSecond(rule.ShadowDenied), rule.answeredBy(all))
	}
	t.flush()
}

func (d *topDenied) print(w io.Writer, wide bool) {
	if len(d.Identities) == 0 {
		fmt.Fprintln(w, "Nobody was denied of late.")
		return
	}
	fmt.Fprintf(w, "Denied most in the last %.0f s, by what %s:\n", d.Seconds, plural(d.Replicas, "replica")+" told")
	head := []string{"IDENTITY", "RULE", "DENIED", ""}
	if wide {
		head = append(head, "TOO HIGH BY AT MOST")
	}
	t := newTable(w, head...)
	for _, id := range d.Identities {
		identity := id.Identity
		if !wide {
			identity = identity[:identityDigits]
		}
		if id.Name != "" {
			identity = id.Name + " (" + identity + ")"
		}
		values := []string{identity, id.Policy + "/" + id.Rule, thousands(id.Denied), shareText(id.Share)}
		if wide {
			values = append(values, thousands(id.Over))
		}
		t.row(values...)
	}
	t.flush()
}

func shareText(part float64) string { return fmt.Sprintf("%.1f%%", 100*part) }

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }

// answeredBy lists who answered, the most frequent first.
func (r *topRule) answeredBy(all float64) string {
	var names []string
	for name, rate := range r.AnsweredBy {
		if rate > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.AnsweredBy[b], r.AnsweredBy[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %.0f%%", name, 100*r.AnsweredBy[name]/all)
	}
	return dash(strings.Join(names, ", "))
}
