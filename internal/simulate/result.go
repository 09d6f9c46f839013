package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/sketch"
)

// Result is what a replay found. Counts are of requests.
type Result struct {
	// Workload is namespace/group/kind/name.
	Workload string `json:"workload"`
	Lines    Lines  `json:"lines"`
	// From and To are the times of the first and the last request.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`

	Rules []Rule `json:"rules"`
	// Others are requests that no rule decided, by why: NoRule or Exempt.
	Others map[string]int64 `json:"others,omitempty"`
	// MostDenied are the identities that were denied most, most first.
	MostDenied []Denied `json:"mostDenied"`
	// Identities is how many were denied, by each rule on its own; at least that many if More.
	Identities     int  `json:"identitiesDenied"`
	MoreIdentities bool `json:"moreIdentitiesDenied,omitempty"`
	// Limits are the variants, that of the policies first.
	Limits []Variant `json:"limits"`
	// Full says that about as many counters as MaxCounters were in use at once: some may have been forgotten while they
	// still weighed, so that too much was admitted.
	Full        bool `json:"countersFull,omitempty"`
	MaxCounters int  `json:"maxCounters"`
	// Unseen are headers and attributes that rules read and no line had.
	Unseen      []Target     `json:"unseen,omitempty"`
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	Series      Series       `json:"series"`
}

// Lines counts what was read.
type Lines struct {
	Read  int64 `json:"read"`
	Wrong int64 `json:"wrong"`
	// Late lines have a time before that of an earlier line; they were decided at that one's.
	Late int64 `json:"late"`
}

// Rule is what one rule did.
type Rule struct {
	Policy string      `json:"policy"`
	Rule   string      `json:"rule"`
	Mode   policy.Mode `json:"mode"`
	// Requests are those that the rule counted; Denied those of them that it denied, or would have denied in Shadow.
	Requests int64 `json:"requests"`
	Denied   int64 `json:"denied"`
	// FirstDenied and LastDenied are nil when nothing was denied.
	FirstDenied *time.Time `json:"firstDenied,omitempty"`
	LastDenied  *time.Time `json:"lastDenied,omitempty"`
}

// Denied is an identity that was denied.
type Denied struct {
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	// Identity has the values of the rule's key as the log has them.
	Identity string `json:"identity"`
	Denied   int64  `json:"denied"`
	// Over is by how much Denied may be too high; 0 up to a thousand identities.
	Over  int64     `json:"over,omitempty"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Variant is what one set of limits admits.
type Variant struct {
	// Name is "policy", a factor such as "×0.5", or a percentile such as "p99".
	Name     string `json:"name"`
	Admitted int64  `json:"admitted"`
	Denied   int64  `json:"denied"`
}

// Suggestion is a limit that would have been enough for a part of the identities.
type Suggestion struct {
	Policy    string           `json:"policy"`
	Rule      string           `json:"rule"`
	Algorithm policy.Algorithm `json:"algorithm"`
	// WindowSeconds is the limit's window, Requests what the policy has.
	WindowSeconds float64 `json:"windowSeconds"`
	Requests      int64   `json:"requests"`
	// Identities is how many the rule counted.
	Identities int                 `json:"identities"`
	At         []SuggestedRequests `json:"at"`

	id string
}

// SuggestedRequests is what one percentile of the identities never exceeded.
type SuggestedRequests struct {
	Percentile float64 `json:"percentile"`
	Requests   int64   `json:"requests"`
	// Above is how many identities exceeded it.
	Above int `json:"identitiesAbove"`
}

// Series are the requests over time, in steps of the same length.
type Series struct {
	Start       time.Time `json:"start"`
	StepSeconds float64   `json:"stepSeconds"`
	Requests    []int64   `json:"requests"`
	// Admitted are those that each variant admitted, in the order of Limits.
	Admitted [][]int64 `json:"admitted"`
}

func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

// Result tells what was found until now.
func (r *Replay) Result() Result {
	out := Result{
		Workload:       r.row.Workload,
		Lines:          Lines{Read: r.read, Wrong: r.wrong, Late: r.late},
		From:           timeOf(r.first),
		To:             timeOf(r.last),
		Rules:          []Rule{},
		Others:         maps.Clone(r.general),
		MostDenied:     []Denied{},
		Identities:     r.denied.Len(),
		MoreIdentities: r.denied.Full(),
		Full:           r.full,
		MaxCounters:    r.options.MaxCounters,
		Unseen:         r.slots.unseen(),
		Series:         r.series.result(),
	}
	for _, rule := range r.order {
		told := Rule{
			Policy: rule.row.Policy, Rule: rule.row.Name, Mode: rule.row.Mode, Requests: rule.requests,
			Denied: rule.denied + rule.shadowed,
		}
		if rule.everDenied {
			first, last := timeOf(rule.firstDenied), timeOf(rule.lastDenied)
			told.FirstDenied, told.LastDenied = &first, &last
		}
		out.Rules = append(out.Rules, told)
	}
	most := r.denied.Items(inOrder)
	for _, d := range most[:min(r.options.Top, len(most))] {
		out.MostDenied = append(out.MostDenied, Denied{
			Policy: d.Key.rule.row.Policy, Rule: d.Key.rule.row.Name, Identity: d.Value.label, Denied: d.Count, Over: d.Over,
			First: timeOf(d.Value.first), Last: timeOf(d.Value.last),
		})
	}
	for i, v := range r.store.variants {
		out.Limits = append(out.Limits, Variant{Name: v.name, Admitted: r.admitted[i], Denied: r.read - r.admitted[i]})
	}
	return out
}

// inOrder puts those that were denied as often as others into an order: the surer ones first, then the earlier ones.
func inOrder(a, b *sketch.Item[deniedKey, deniedNote]) int {
	return cmp.Or(cmp.Compare(a.Over, b.Over), cmp.Compare(a.Value.first, b.Value.first), cmp.Compare(a.Value.label, b.Value.label))
}

func (s *series) result() Series {
	out := Series{
		Start: timeOf(s.start * widths[s.width]), StepSeconds: float64(widths[s.width]) / float64(second),
		Requests: []int64{}, Admitted: make([][]int64, s.lanes),
	}
	for _, b := range s.buckets {
		out.Requests = append(out.Requests, b.requests)
		for i, n := range b.admitted {
			out.Admitted[i] = append(out.Admitted[i], n)
		}
	}
	return out
}

// Suggest proposes for each limit the requests that a part of its identities, in percent, never exceeded. It needs a
// replay with Peaks.
func (r *Replay) Suggest(percentiles []float64) []Suggestion {
	var all []Suggestion
	for _, rule := range r.order {
		for _, l := range rule.row.Limits {
			used := r.peaks.of(l.ID)
			if len(used) == 0 {
				continue
			}
			s := Suggestion{
				Policy: rule.row.Policy, Rule: rule.row.Name, Algorithm: l.Algorithm,
				WindowSeconds: float64(l.Window) / float64(second), Requests: l.Requests, Identities: len(used), id: l.ID,
			}
			for _, p := range percentiles {
				requests := percentile(used, p)
				above, _ := slices.BinarySearch(used, requests+1)
				s.At = append(s.At, SuggestedRequests{Percentile: p, Requests: requests, Above: len(used) - above})
			}
			all = append(all, s)
		}
	}
	return all
}

// Unmeasured is how many requests were by identities for whose peaks there was no room.
func (r *Replay) Unmeasured() int64 { return r.peaks.missed }

// Proposals makes variants of suggestions: one for each percentile, with all limits set to what it says.
func Proposals(suggestions []Suggestion, name func(percentile float64) string) []Proposal {
	var all []Proposal
	for _, s := range suggestions {
		for i, at := range s.At {
			if i == len(all) {
				all = append(all, Proposal{Name: name(at.Percentile), Limits: make(map[string]int64)})
			}
			all[i].Limits[s.id] = at.Requests
		}
	}
	return all
}
