package chaos

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/policy"
)

// run is what happened in one row of the table. Times are µs since 1970.
type run struct {
	mode   policy.OnStoreFailure
	window int64
	// limit is what a window may hold, by the policy in force.
	limit func(window int64) int64
	bound bound
	away  bool
	empty bool

	began, injected, healed, ended int64
	records                        [][]Record // of each replica
}

// bound is how much more than the limit a window may hold of a key, by docs/outages.md, where L is the limit and N the
// number of replicas.
type bound func(r *run, key string, window int64) int64

// switching is "The store does not answer": in the window of the switch Σ(C − Cᵢ)/N + N, with C spent in all and Cᵢ
// spent when replica i last heard of the key, and 0 if all have seen it spent.
func switching(r *run, key string, window int64) int64 {
	if window != r.at(r.injected) {
		return 0
	}
	spent := make([]int64, len(r.records))
	for i, records := range r.records {
		for _, record := range records {
			if record.Key == key && record.Source == "Store" && record.Ended() <= r.injected && r.windowOf(&record) == window {
				spent[i] = record.Limit - record.Remaining
			}
		}
	}
	n, all, unseen := int64(len(spent)), slices.Max(spent), int64(0)
	for _, s := range spent {
		unseen += all - s
	}
	if unseen == 0 && all == r.limit(window) {
		return 0
	}
	return (unseen+n-1)/n + n
}

// cutOff is "Some replicas cannot reach the store": L·k/N with the k that went without it in this window, which are none
// as long as the store answers in time.
func cutOff(r *run, _ string, window int64) int64 {
	var k int64
	for _, records := range r.records {
		if slices.ContainsFunc(records, func(d Record) bool { return fell(&d) && r.at(d.Ended()) == window }) {
			k++
		}
	}
	return r.limit(window) * k / int64(len(r.records))
}

// lost is "Counters are lost, and the store goes on": once more what was used by those who do not ask again before it is
// used up, which is L at most.
func lost(r *run, key string, window int64) int64 {
	if window < r.at(r.injected) || window > r.at(r.healed) {
		return cutOff(r, key, window)
	}
	return r.limit(window) + cutOff(r, key, window)
}

// at is the window of a time.
func (r *run) at(time int64) int64 { return time / r.window }

// slip (µs) is by how much a replica's idea of the store's time may be wrong.
const slip = 20_000

// windowOf is the window in which an admission counted: the decision tells when it ends. If that cannot be, because the
// replica's clock is wrong, it is the window in which the decision was there.
func (r *run) windowOf(d *Record) int64 {
	if d.Resets > 0 {
		counted := (d.Ended()+d.Resets+r.window/2)/r.window - 1
		if counted*r.window <= d.Ended()+slip && (counted+1)*r.window >= d.Began-slip {
			return counted
		}
	}
	return r.at(d.Ended())
}

// fell says whether a decision was made without the store.
func fell(d *Record) bool {
	switch d.Source {
	case "LocalShare", "FailOpen", "FailClosed":
		return !d.Guarded
	}
	return false
}

// recovered is when the last of the replicas that went without the store had its first decision from it after the end
// of the fault; healed if there was none.
func (r *run) recovered() int64 {
	last := r.healed
	for _, records := range r.records {
		without := false
		for i := range records {
			d := &records[i]
			switch {
			case d.Ended() < r.injected:
			case fell(d):
				without = true
			case d.Source == "Store" && d.Began >= r.healed && without:
				last = max(last, d.Ended())
			}
			if d.Source == "Store" && d.Began >= r.healed {
				break
			}
		}
	}
	return last
}

// disturbed is how many replicas went without the store between two times although nothing was wrong with it: the
// machine was too busy to answer in time.
func (r *run) disturbed(from, to int64) (replicas int64) {
	recovered := r.recovered()
	for _, records := range r.records {
		if slices.ContainsFunc(records, func(d Record) bool {
			at := d.Ended()
			return at >= from && at < to && (at < r.injected || at > recovered) && fell(&d)
		}) {
			replicas++
		}
	}
	return replicas
}

// guardTime (µs) is for how long the store and the share must both admit after a replica went without the store.
const guardTime = 10_000_000

// promise is how many a window has to hold at least and at most.
type promise struct{ least, most int64 }

func (r *run) promised(key string, window, sent int64) promise {
	limit, n := r.limit(window), int64(len(r.records))
	from, to := window*r.window, (window+1)*r.window
	before, after := to <= r.injected, from > r.recovered()
	if before || after {
		p := promise{limit, limit}
		if after { // a replica that gets more than its part of the requests is bound by its share for a while
			p.least = limit / 2
		} else if r.disturbed(from-guardTime, to) > 0 {
			p.least = limit / n
		}
		if k := r.disturbed(from, to); k > 0 && r.mode == policy.OnStoreFailureFailOpen {
			p = promise{0, max(sent, limit)}
		} else if k > 0 {
			p = promise{0, limit + limit*k/n}
		}
		return p
	}
	// Replicas that the machine kept from the store before the fault struck come on top.
	most := limit + r.bound(r, key, window) + limit*r.disturbed(from, min(to, r.injected))/n
	inside := from >= r.injected && to <= r.healed
	switch r.mode {
	case policy.OnStoreFailureFailOpen:
		if r.away && inside {
			return promise{sent, sent}
		}
		return promise{0, max(sent, limit)}
	case policy.OnStoreFailureFailClosed:
		if r.away && inside {
			return promise{0, 0}
		}
		if r.empty { // nothing but the store counts, which is told by one replica after the other
			return promise{0, 2 * limit}
		}
		return promise{0, limit}
	}
	return promise{limit / 2, most}
}

// judge compares what was admitted with what was promised.
func (r *run) judge() result {
	row := result{Mode: string(r.mode), Replicas: len(r.records)}
	type place struct {
		key    string
		window int64
	}
	sent, admitted := map[place]int64{}, map[place]int64{}
	keys := map[string]bool{}
	var took, noise []int64
	for _, records := range r.records {
		for i := range records {
			d := &records[i]
			into := &took
			if d.Key == KeyNoise {
				into = &noise
			}
			if d.Began >= r.began && d.Ended() <= r.ended {
				*into = append(*into, d.Took)
			}
			if d.Key == KeyNoise || strings.HasPrefix(d.Key, keyPulse) {
				continue
			}
			p := place{d.Key, r.windowOf(d)}
			keys[d.Key] = true
			sent[p]++
			if d.Allowed {
				admitted[p]++
			}
		}
	}
	worst := -1.0
	for key := range keys {
		for window := r.at(r.began); window < r.at(r.ended); window++ {
			p := place{key, window}
			n, want := admitted[p], r.promised(key, window, sent[p])
			row.Windows++
			row.Admitted += n
			row.Bound += want.most
			row.Least += want.least
			if n < want.least || n > want.most {
				row.Broken = append(row.Broken, fmt.Sprintf("%s: %d admitted in window %+d, want %d to %d; by replica and source: %s",
					key, n, window-r.at(r.injected), want.least, want.most, r.sources(key, window)))
			}
			if share := float64(n) / float64(max(1, want.most)); share > worst {
				worst, row.WorstAdmitted, row.WorstBound = share, n, want.most
			}
		}
	}
	slices.Sort(row.Broken)
	slices.Sort(took)
	slices.Sort(noise)
	if len(noise) > 0 {
		row.Noise = milliseconds(quantile(noise, 999, 1000))
	}
	row.Decisions = len(took)
	row.P99, row.P999, row.Max = milliseconds(quantile(took, 99, 100)), milliseconds(quantile(took, 999, 1000)), milliseconds(took[len(took)-1])
	row.Recovered = float64(r.recovered()-r.healed) / 1e6
	row.Disturbed = r.disturbed(r.began, r.ended)
	return row
}

// sources says who admitted how many at each replica.
func (r *run) sources(key string, window int64) string {
	var out strings.Builder
	for i, records := range r.records {
		admitted, first, last := map[string]int{}, int64(0), int64(0)
		for _, d := range records {
			if d.Key == key && d.Allowed && r.windowOf(&d) == window {
				admitted[d.Source]++
				if first == 0 {
					first = d.Began
				}
				last = d.Ended()
			}
		}
		if len(admitted) > 0 {
			fmt.Fprintf(&out, " %d:%v in ms %d to %d;", i, admitted, (first-window*r.window)/1000, (last-window*r.window)/1000)
		}
	}
	return out.String()
}

// quantile of sorted numbers.
func quantile(sorted []int64, part, of int) int64 {
	return sorted[min(len(sorted)-1, len(sorted)*part/of)]
}

func milliseconds(ns int64) float64 { return float64(ns/1000) / 1000 }
