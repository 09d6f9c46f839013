package enforcer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// batch is one round trip. What a caller reads of it after it is done does not change any more.
type batch struct {
	era    uint64
	born   time.Duration // when its first caller came
	sentAt int64         // by the monotonic clock, in µs; of the goroutine that sends it
	// wake is closed when the batch is done, or when the first of its callers has waited for long enough: then the
	// callers go on to wait for finished, each until its own deadline. So a batch that is in time needs one timer for
	// all of its callers, and wakes all of them at once.
	wake     chan struct{}
	finished chan struct{} // nil until wake was closed without an answer
	done     atomic.Bool
	calm     func() bool // ends the timer that hurries it

	mu      sync.Mutex
	entries []Entry
	groups  []group // of each entry
	answers []Answer
	index   map[uint64]int // by fingerprint; nil while there are few
	// counters and origins are those of all entries, one behind the other.
	counters []Counter
	origins  []origin
	callers  int
	judged   bool
	traced   []context.Context // of callers who are traced
}

// group is the callers of one entry, a list in the order in which they came.
type group struct {
	fingerprint uint64
	peek        bool
	origins     []origin
	first, last *caller
	// callers are those in the list, and gone those of them who have left.
	callers, gone int64
	// lease is what the entry's rules let a lease hold, and extra what of it is asked for beside the callers.
	lease, extra int64

	// err is why the callers got nothing from the store; otherwise it granted the first ones of those who waited.
	err     error
	granted int64
}

// caller waits for its part of a batch. It is guarded by the batch's lock until the batch is done, and nobody but its
// own goroutine looks at it as long as nobody of its group leaves.
type caller struct {
	batch    *batch
	next     *caller // of its group
	group    int
	place    int64 // among those of its group who wait
	left     bool  // answered without the store, and keeps its slot
	admitted bool  // locally, by one that left, at the time at
	at       int64 // on the store's clock
}

// part is what the batch, which is done, holds for the caller.
func (c *caller) part() answer {
	group := &c.batch.groups[c.group]
	if group.err != nil {
		return answer{err: group.err}
	}
	return answer{Answer: &c.batch.answers[c.group], granted: c.place < group.granted, place: c.place}
}

// goneOr says how the wait of a caller ended whose context has.
func (c *caller) goneOr() outcome {
	if !c.leave(nil) {
		return isAnswered
	}
	return isGone
}

// leave gives up waiting, unless the answer has come. The caller stays in the batch, which may still be granted for
// it, and is not pooled. Whoever has a fallback is decided by it.
func (c *caller) leave(fallBack func() (admitted bool, at int64)) bool {
	c.batch.mu.Lock()
	defer c.batch.mu.Unlock()
	if c.batch.done.Load() {
		return false
	}
	c.left = true
	c.batch.groups[c.group].gone++
	if fallBack != nil {
		c.admitted, c.at = fallBack()
	}
	return true
}

// release wakes the callers of a batch that is late.
func (g *batch) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.done.Load() && g.finished == nil {
		g.finished = make(chan struct{})
		close(g.wake)
	}
}

// end wakes the callers of a batch that is done. g.mu is held.
func (g *batch) end() {
	g.done.Store(true)
	if g.finished != nil {
		close(g.finished)
		return
	}
	close(g.wake)
}

func (g *batch) full(counters int) bool {
	return len(g.entries) >= maxEntries || len(g.counters)+counters > maxCounters && len(g.counters) > 0 || g.callers >= maxCallers
}

// few entries are searched without an index.
const few = 8

// add puts a caller into its entry. The batch gathers, so nobody else looks at it but callers who leave.
func (g *batch) add(w *want, fingerprint uint64, c *caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.find(w, fingerprint)
	if i < 0 {
		i = g.enter(w, fingerprint)
	}
	group := &g.groups[i]
	c.batch, c.group, c.place = g, i, group.callers
	if group.first == nil {
		group.first, group.last = c, c
	} else {
		group.last.next, group.last = c, c
	}
	group.callers++
	g.callers++
}

// enter makes an entry of a want, which is its caller's and is copied.
func (g *batch) enter(w *want, fingerprint uint64) int {
	start := len(g.counters)
	g.counters = append(g.counters, w.counters...)
	g.origins = append(g.origins, w.origins...)
	end := len(g.counters)
	g.entries = append(g.entries, Entry{
		Counters: g.counters[start:end:end], Enforced: w.enforced, Shadow: slices.Clone(w.shadow),
	})
	g.groups = append(g.groups, group{fingerprint: fingerprint, peek: w.peek, lease: w.lease, origins: g.origins[start:end:end]})
	i := len(g.entries) - 1
	if g.index != nil {
		g.index[fingerprint] = i
	}
	return i
}

func (g *batch) find(w *want, fingerprint uint64) int {
	if g.index == nil && len(g.groups) > few {
		g.index = make(map[uint64]int, 4*few)
		for i := range g.groups {
			g.index[g.groups[i].fingerprint] = i
		}
	}
	if g.index != nil {
		if i, ok := g.index[fingerprint]; ok && w.same(&g.groups[i], &g.entries[i]) {
			return i
		}
		return -1
	}
	for i := range g.groups {
		if g.groups[i].fingerprint == fingerprint && w.same(&g.groups[i], &g.entries[i]) {
			return i
		}
	}
	return -1
}

// seal readies a batch for the store and says whether anybody still waits for it. Callers who have left before it was
// sent ask for nothing.
func (b *batcher) seal(g *batch) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := 0
	for i := range g.groups {
		group := &g.groups[i]
		if group.gone > 0 || kept < i {
			group.settle(kept)
		}
		if group.callers == 0 {
			continue
		}
		group.extra = b.leases.ask(group, &g.entries[i])
		if kept < i {
			g.groups[kept], g.entries[kept] = *group, g.entries[i]
		}
		if !group.peek {
			g.entries[kept].N = group.callers + group.extra
		}
		kept++
	}
	g.groups, g.entries = g.groups[:kept], g.entries[:kept]
	g.answers = make([]Answer, kept)
	results := make([]algorithm.Result, len(g.counters))
	for i := range g.answers {
		n := len(g.entries[i].Counters)
		g.answers[i].Results, results = results[:0:n], results[n:]
	}
	return kept > 0
}

// settle leaves out the callers who have gone, in a group that is at an index from now on.
func (g *group) settle(index int) {
	callers := g.first
	g.first, g.last, g.callers, g.gone = nil, nil, 0, 0
	for c := callers; c != nil; c = c.next {
		if c.left {
			continue
		}
		c.group, c.place = index, g.callers
		if g.first == nil {
			g.first = c
		} else {
			g.last.next = c
		}
		g.last = c
		g.callers++
	}
	if g.last != nil {
		g.last.next = nil
	}
}
