package simulate

import (
	"slices"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// peaks measures what each identity asked for at most within a limit's window. Of FixedWindow that is the window
// itself; of the others it is any span of that length, by the same estimate as SlidingWindowCounter makes.
type peaks struct {
	most   int
	used   map[peakKey]*peak
	missed int64 // requests of identities that found no room
}

type peakKey struct {
	identity enforcer.Identity
	id       string
}

type peak struct {
	state algorithm.State
	most  int64
}

func newPeaks(most int) *peaks { return &peaks{most: most, used: make(map[peakKey]*peak)} }

func (p *peaks) add(now int64, c *enforcer.Counter) {
	key := peakKey{c.Identity, c.ID}
	found, ok := p.used[key]
	if !ok {
		if len(p.used) >= p.most {
			p.missed++
			return
		}
		found = new(peak)
		p.used[key] = found
	}
	l := algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: policy.MaxRequests, Window: c.Limit.Window}
	if c.Limit.Algorithm == algorithm.FixedWindow {
		l.Algorithm = algorithm.FixedWindow
	}
	next, result := l.Take(found.state, now, c.Cost)
	found.state = next
	found.most = max(found.most, policy.MaxRequests-result.Remaining)
}

// of returns the peaks of a limit, in ascending order.
func (p *peaks) of(id string) []int64 {
	var all []int64
	for key, found := range p.used {
		if key.id == id {
			all = append(all, found.most)
		}
	}
	slices.Sort(all)
	return all
}

// percentile is the smallest value that at least so many percent of the values do not exceed.
func percentile(sorted []int64, percent float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	n := int(float64(len(sorted))*percent/100 + 0.999999)
	return sorted[min(max(n, 1), len(sorted))-1]
}
