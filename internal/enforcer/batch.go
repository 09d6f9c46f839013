package enforcer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

const (
	// maxInFlight batches are under way at once; a further one waits for the first of them to return.
	maxInFlight = 4
	// maxEntries and maxCounters bound a batch, and with it the time that the store is busy with it.
	maxEntries  = 256
	maxCounters = 2048
	// maxCallers bounds the callers of a batch; the store counts them in 32 bits.
	maxCallers = 1 << 16
	// patience is how long a batch may stay under way behind the callers that it has lost: a late answer still tells
	// what was charged.
	patience = time.Second
	// descheduled is by how much a timer must be late for the process itself to be suspected: a pod that gets no
	// processor must not take the store for dead.
	descheduled = time.Millisecond
)

// timeoutCause is what decisions say of a store that is late.
const timeoutCause = "timeout: the store did not answer in time"

var errFull = &StoreError{Reason: ReasonFull, Err: errors.New("too many requests wait for the store")}

// batcher asks the store for many callers at once. While a batch is under way the next one gathers; there is no timer
// to fill one, so a lone caller never waits for company. Equal callers are one entry of the batch.
type batcher struct {
	store   Store
	timeout time.Duration
	runtime Runtime
	clock   *clock
	breaker *breaker
	counts  *counts
	denials *denials
	leases  *leases
	// mirror takes over what the store said of an entry: it admitted so many of the callers, and charged others who had
	// been admitted without it at these times.
	mirror func(g *group, e *Entry, a *Answer, admitted int64, late []int64)
	opened func(cause string)
	// settled hears how each batch ended, after its callers.
	settled func(err error)
	tracer  Tracer // nil if nobody traces

	// prompt says that a caller may ask the store on his own goroutine, and quick that the last batch was back early.
	prompt bool
	quick  atomic.Bool

	callers sync.Pool // of *caller, those that nobody refers to

	mu        sync.Mutex
	gathering *batch
	inFlight  int
	// era ends when the breaker opens: batches of an earlier one no longer count as under way.
	era       uint64
	refunds   []Refund
	refunding bool
	// lastEntries and lastCounters are a little more than the last batch held.
	lastEntries, lastCounters int
}

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
	// lease is what the entry's rules let a lease hold, and extra what of it is asked for beside the callers.
	lease, extra int64
}

// caller waits for its part of a batch. It is guarded by the batch's lock until the batch is done.
type caller struct {
	era      uint64 // in which one was to ask alone
	batch    *batch
	next     *caller // of its group
	group    int
	state    callerState
	admitted bool  // locally, by one that left, at the time at
	at       int64 // on the store's clock
	granted  bool  // by the store
	place    int64 // among those granted
	err      error
	traced   context.Context // nil unless the caller is traced
}

type callerState uint8

const (
	waiting  callerState = iota
	answered             // or failed: err says so
	left                 // answered without the store, and keeps its slot
)

func (b *batcher) caller() *caller {
	if c, ok := b.callers.Get().(*caller); ok {
		*c = caller{}
		return c
	}
	return new(caller)
}

// answer is what a caller got.
type answer struct {
	// results are the store's, when err is nil and local is false.
	*Answer
	granted bool
	place   int64
	err     error
	local   bool // it came too late, and the caller has been answered by its fallback
	gone    bool // the caller's context ended
}

// take asks the store and returns within the timeout. When the store is late, the decision falls back; it does so once,
// at the moment from which on the store's answer no longer counts for this caller.
func (b *batcher) take(ctx context.Context, w *want, d *decision) answer {
	since := b.runtime.Elapsed()
	c := b.caller()
	if b.tracer != nil && b.tracer.Traces(ctx) {
		c.traced = ctx
	}
	switch b.join(w, c, since) {
	case joinFull:
		b.callers.Put(c)
		b.counts.fail(ReasonFull)
		return answer{err: errFull}
	case joinAlone:
		era := c.era
		b.callers.Put(c)
		return b.alone(ctx, d, era, since)
	case joined:
	}
	switch b.runtime.Wait(c.batch.wake, ctx.Done(), forever) {
	case WokenReady:
		if c.batch.done.Load() {
			return b.part(c)
		}
	case WokenDone:
		return b.goneOr(c)
	case WokenLate:
	}
	return b.waitOn(ctx, c, since+b.timeout, d)
}

// waitOn waits for a batch that is late, until the caller's own deadline.
func (b *batcher) waitOn(ctx context.Context, c *caller, deadline time.Duration, d *decision) answer {
	wait := deadline - b.runtime.Elapsed()
	for again := false; ; again = true {
		switch b.runtime.Wait(c.batch.finished, ctx.Done(), max(0, wait)) {
		case WokenReady:
			return b.part(c)
		case WokenDone:
			return b.goneOr(c)
		case WokenLate:
		}
		// A process that got no processor in time gives the answer, which may be there, a little more.
		if late := b.runtime.Elapsed() - deadline; again || late <= descheduled {
			break
		}
		wait = b.timeout / 4
	}
	if !c.leave(d, timeoutCause) {
		return b.part(c)
	}
	return answer{local: true}
}

// goneOr answers a caller whose context ended.
func (b *batcher) goneOr(c *caller) answer {
	if !c.leave(nil, "") {
		return b.part(c)
	}
	return answer{gone: true}
}

// part returns what the batch wrote for the caller, and the caller to the pool.
func (b *batcher) part(c *caller) answer {
	a := answer{granted: c.granted, place: c.place, err: c.err}
	if c.err == nil {
		a.Answer = &c.batch.answers[c.group]
	}
	c.batch, c.traced = nil, nil
	b.callers.Put(c)
	return a
}

// leave gives up waiting, unless the answer has come. The caller stays in the batch, which may still be granted for
// it, and is not pooled. d, if any, falls back.
func (c *caller) leave(d *decision, cause string) bool {
	c.batch.mu.Lock()
	defer c.batch.mu.Unlock()
	if c.state == answered {
		return false
	}
	c.state = left
	if d != nil {
		c.admitted, c.at = d.fallBack(cause)
	}
	return true
}

// joining is what became of a caller who came.
type joining uint8

const (
	joined    joining = iota
	joinAlone         // nothing is under way: the caller asks himself, and has been counted as a batch under way
	joinFull          // the batch that gathers is full, and may not leave
)

// join puts a caller in the batch that gathers, and sends it if none is under way.
func (b *batcher) join(w *want, c *caller, now time.Duration) joining {
	fingerprint := w.fingerprint()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inFlight == 0 && b.gathering == nil && b.prompt && b.quick.Load() {
		b.inFlight++
		c.era = b.era
		return joinAlone
	}
	if b.gathering != nil && b.gathering.full(len(w.counters)) {
		if b.inFlight >= maxInFlight {
			return joinFull
		}
		b.send()
	}
	if b.gathering == nil {
		b.gathering = b.gather(now)
	}
	b.gathering.add(w, fingerprint, c)
	if b.inFlight == 0 {
		b.send()
	}
	return joined
}

// gather begins a batch with room for as much as the last one held. b.mu is held.
func (b *batcher) gather(now time.Duration) *batch {
	g := &batch{
		born:     now,
		wake:     make(chan struct{}),
		entries:  make([]Entry, 0, b.lastEntries),
		groups:   make([]group, 0, b.lastEntries),
		counters: make([]Counter, 0, b.lastCounters),
		origins:  make([]origin, 0, b.lastCounters),
	}
	if b.inFlight > 0 {
		g.calm = b.runtime.AfterFunc(b.timeout/4, func() { b.hurry(g) })
	}
	return g
}

// hurry sends a batch whose first caller has waited for long, beside those under way. If there are too many of them,
// its callers are let go in time.
func (b *batcher) hurry(g *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.gathering != g:
	case b.inFlight < maxInFlight:
		b.send()
	default:
		b.runtime.AfterFunc(b.timeout-b.timeout/4, g.release)
	}
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

// send lets the gathering batch leave. b.mu is held.
func (b *batcher) send() {
	g := b.leave()
	b.runtime.Go(func() { b.run(g) })
}

// leave takes the gathering batch to be sent. b.mu is held.
func (b *batcher) leave() *batch {
	g := b.gathering
	b.gathering = nil
	b.inFlight++
	b.lastEntries, b.lastCounters = len(g.entries)+len(g.entries)/8+1, len(g.counters)+len(g.counters)/8+1
	g.era = b.era
	if g.calm != nil {
		g.calm()
	}
	return g
}

// returned makes room when a batch of an era is back, and takes the next one to be sent.
func (b *batcher) returned(era uint64) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if era != b.era {
		return nil
	}
	b.inFlight--
	if b.gathering == nil {
		return nil
	}
	return b.leave()
}

// run sends a batch, and those that have gathered behind it. It stays on its goroutine, whose stack has grown as deep as
// a driver needs; the callers are answered on another one, while the next batch is under way.
func (b *batcher) run(g *batch) {
	for g != nil {
		if !b.seal(g) {
			g = b.returned(g.era)
			continue
		}
		sent := b.runtime.Elapsed()
		g.sentAt = b.clock.at(sent)
		inTime := b.watch(g, sent)
		ctx, cancel := b.runtime.WithTimeout(b.timeout + patience)
		traced := b.trace(g.traced, len(g.entries))
		now, err := b.store.Take(ctx, g.entries, g.answers)
		traced.end(err)
		took := b.runtime.Elapsed() - sent
		inTime()
		cancel()
		next := b.returned(g.era)
		if next == nil {
			b.conclude(g, now, took, err)
			return
		}
		back := g
		b.runtime.Go(func() { b.conclude(back, now, took, err) })
		g = next
	}
}

// conclude takes what came of a round trip.
func (b *batcher) conclude(g *batch, now int64, took time.Duration, err error) {
	b.quick.Store(err == nil && took <= b.timeout/4)
	switch {
	case err != nil:
		b.counts.fail(reasonOf(err))
		b.judge(g, false, err.Error())
	default:
		if took <= b.timeout { // a late answer tells an old time
			b.clock.learn(now, b.clock.monotonic())
		}
		b.judge(g, true, "") // unless overdue came first
	}
	b.finish(g, now, err)
	b.settled(err)
}

// watch lets the callers of a batch go when the first of them has waited for long enough, and gives its verdict at its
// own deadline.
func (b *batcher) watch(g *batch, sent time.Duration) (stop func() bool) {
	deadline := sent + b.timeout
	return b.runtime.AfterFunc(max(0, g.born+b.timeout-sent), func() {
		g.release()
		if rest := deadline - b.runtime.Elapsed(); rest > 0 {
			b.runtime.AfterFunc(rest, func() { b.overdue(g, sent, false) })
			return
		}
		b.overdue(g, sent, false)
	})
}

// overdue is the verdict at a batch's deadline. If the process itself was late, the store gets a little more time.
func (b *batcher) overdue(g *batch, sent time.Duration, again bool) {
	if late := b.runtime.Elapsed() - sent - b.timeout; !again && late > descheduled {
		b.runtime.AfterFunc(b.timeout/4, func() { b.overdue(g, sent, true) })
		return
	}
	b.judge(g, false, timeoutCause)
}

// judge gives the breaker one verdict for each batch.
func (b *batcher) judge(g *batch, ok bool, cause string) {
	g.mu.Lock()
	judged := g.judged
	g.judged = true
	g.mu.Unlock()
	if !judged {
		b.verdict(ok, cause)
	}
}

func (b *batcher) verdict(ok bool, cause string) {
	if ok {
		b.breaker.success()
		return
	}
	if b.breaker.failure(b.clock.monotonic(), cause) {
		b.startOver(cause)
	}
}

// startOver answers those who gather for a batch that will not leave now, and lets go of those under way.
func (b *batcher) startOver(cause string) {
	b.mu.Lock()
	g := b.gathering
	b.gathering = nil
	b.inFlight = 0
	b.era++
	b.mu.Unlock()
	if g != nil {
		b.seal(g)
		b.finish(g, 0, &StoreError{Reason: ReasonOther, Err: errors.New(cause)})
	}
	b.opened(cause)
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
	c.batch, c.group = g, i
	if group := &g.groups[i]; group.first == nil {
		group.first, group.last = c, c
	} else {
		group.last.next, group.last = c, c
	}
	g.callers++
	if c.traced != nil {
		g.traced = append(g.traced, c.traced)
	}
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
		group, waiters := &g.groups[i], int64(0)
		callers := group.first
		group.first, group.last = nil, nil
		for c := callers; c != nil; c = c.next {
			if c.state != waiting {
				continue
			}
			c.group = kept
			if waiters++; group.first == nil {
				group.first = c
			} else {
				group.last.next = c
			}
			group.last = c
		}
		if waiters == 0 {
			continue
		}
		group.last.next = nil
		group.extra = b.leases.ask(group, &g.entries[i])
		g.groups[kept], g.entries[kept] = *group, g.entries[i]
		if !group.peek {
			g.entries[kept].N = waiters + group.extra
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
