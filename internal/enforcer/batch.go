package enforcer

import (
	"context"
	"errors"
	"sync"
	"time"
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
	// mirror takes over what the store said of an entry: it admitted so many of the callers, and charged others who had
	// been admitted without it at these times.
	mirror func(g *group, e *Entry, a *Answer, admitted int64, late []int64)
	opened func(cause string)
	// settled hears how each batch ended, after its callers.
	settled func(err error)

	callers sync.Pool // of *caller, those that nobody refers to

	mu        sync.Mutex
	gathering *batch
	inFlight  int
	// era ends when the breaker opens: batches of an earlier one no longer count as under way.
	era       uint64
	refunds   []Refund
	refunding bool
}

// batch is one round trip. What a caller reads of it after it is done does not change any more.
type batch struct {
	era uint64

	mu      sync.Mutex
	entries []Entry
	groups  []group // of each entry
	answers []Answer
	index   map[uint64]int // by fingerprint; nil while there are few
	size    int            // counters
	callers int
	sent    bool
	done    bool
	judged  bool
	sentAt  int64
}

// group is the callers of one entry, in the order in which they came.
type group struct {
	fingerprint uint64
	peek        bool
	origins     []origin
	callers     []*caller
}

// caller waits for its part of a batch. Everything but ready is guarded by the batch's lock until ready.
type caller struct {
	batch    *batch
	group    int
	state    callerState
	admitted bool  // locally, by one that left, at the time at
	at       int64 // on the store's clock
	granted  bool  // by the store
	place    int64 // among those granted
	err      error
	ready    chan struct{}
}

type callerState uint8

const (
	waiting  callerState = iota
	answered             // or failed: err says so
	left                 // answered without the store, and keeps its slot
)

func newCaller() any { return &caller{ready: make(chan struct{}, 1)} }

// fallback decides without the store. It says whether it admitted, and when on the store's clock.
type fallback interface {
	fallBack(cause string) (admitted bool, at int64)
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

// take asks the store and returns within the timeout. When the store is late, fallBack answers instead; it runs once,
// at the moment from which on the store's answer no longer counts for this caller, and says whether it admitted.
func (b *batcher) take(ctx context.Context, w *want, fallBack fallback) answer {
	c := b.callers.Get().(*caller)
	c.state, c.admitted, c.granted, c.place, c.err = waiting, false, false, 0, nil
	if !b.join(w, c) {
		b.callers.Put(c)
		b.counts.fail(ReasonFull)
		return answer{err: errFull}
	}
	deadline := b.runtime.Elapsed() + b.timeout
	early := b.timeout / 4
	wait := early
	for stage := 0; ; stage++ {
		switch b.runtime.Wait(c.ready, ctx.Done(), wait) {
		case WokenReady:
			return b.part(c)
		case WokenDone:
			if !c.leave(nil, "") {
				return b.part(c)
			}
			return answer{gone: true}
		case WokenLate:
		}
		switch late := b.runtime.Elapsed() - deadline; {
		case stage == 0:
			b.hurry(c.batch)
			wait = b.timeout - early
			continue
		case stage == 1 && late > descheduled:
			wait = early
			continue
		}
		if !c.leave(fallBack, timeoutCause) {
			return b.part(c)
		}
		return answer{local: true}
	}
}

// part returns what the batch wrote for the caller, and the caller to the pool.
func (b *batcher) part(c *caller) answer {
	a := answer{granted: c.granted, place: c.place, err: c.err}
	if c.err == nil {
		a.Answer = &c.batch.answers[c.group]
	}
	select { // leave looks for the answer before the signal is read
	case <-c.ready:
	default:
	}
	c.batch = nil
	b.callers.Put(c)
	return a
}

// leave gives up waiting, unless the answer has come. The caller stays in the batch, which may still be granted for
// it, and is not pooled.
func (c *caller) leave(fallBack fallback, cause string) bool {
	c.batch.mu.Lock()
	defer c.batch.mu.Unlock()
	if c.state == answered {
		return false
	}
	c.state = left
	if fallBack != nil {
		c.admitted, c.at = fallBack.fallBack(cause)
	}
	return true
}

// join puts a caller in the batch that gathers, and sends it if none is under way. It refuses when that batch is full
// and may not leave.
func (b *batcher) join(w *want, c *caller) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gathering != nil && b.gathering.full(len(w.counters)) {
		if b.inFlight >= maxInFlight {
			return false
		}
		b.send()
	}
	if b.gathering == nil {
		b.gathering = new(batch)
	}
	b.gathering.add(w, c)
	if b.inFlight == 0 {
		b.send()
	}
	return true
}

// hurry sends a batch whose callers have waited for long, beside those under way.
func (b *batcher) hurry(g *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gathering == g && b.inFlight < maxInFlight {
		b.send()
	}
}

// send lets the gathering batch leave. b.mu is held.
func (b *batcher) send() {
	g := b.gathering
	b.gathering = nil
	b.inFlight++
	g.era = b.era
	b.runtime.Go(func() { b.run(g) })
}

// returned makes room for the next batch when one is back.
func (b *batcher) returned(g *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.era != b.era {
		return
	}
	b.inFlight--
	if b.gathering != nil {
		b.send()
	}
}

// run is one round trip.
func (b *batcher) run(g *batch) {
	if !g.seal(b.clock.monotonic()) {
		b.returned(g)
		return
	}
	sent := b.runtime.Elapsed()
	inTime := b.runtime.AfterFunc(b.timeout, func() { b.overdue(g, sent, false) })
	ctx, cancel := b.runtime.WithTimeout(b.timeout + patience)
	now, err := b.store.Take(ctx, g.entries, g.answers)
	took := b.runtime.Elapsed() - sent
	inTime()
	cancel()
	b.returned(g)

	switch {
	case err != nil:
		b.counts.fail(reasonOf(err))
		b.judge(g, false, err.Error())
	case took <= b.timeout:
		b.clock.learn(now, b.clock.monotonic())
		b.judge(g, true, "")
	default:
		b.judge(g, false, timeoutCause)
	}
	b.finish(g, now, err)
	b.settled(err)
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
	if judged {
		return
	}
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
		g.seal(b.clock.monotonic())
		b.finish(g, 0, &StoreError{Reason: ReasonOther, Err: errors.New(cause)})
	}
	b.opened(cause)
}

func (g *batch) full(counters int) bool {
	return len(g.entries) >= maxEntries || g.size+counters > maxCounters && g.size > 0 || g.callers >= maxCallers
}

// few entries are searched without an index.
const few = 8

func (g *batch) add(w *want, c *caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fingerprint := w.fingerprint()
	i := g.find(w, fingerprint)
	if i < 0 {
		i = len(g.entries)
		e := w.entry()
		g.entries = append(g.entries, e)
		g.groups = append(g.groups, group{
			fingerprint: fingerprint, peek: w.peek, origins: append([]origin(nil), w.origins...),
		})
		g.size += len(w.counters)
		if g.index != nil {
			g.index[fingerprint] = i
		}
	}
	c.batch, c.group = g, i
	g.groups[i].callers = append(g.groups[i].callers, c)
	g.callers++
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
func (g *batch) seal(now int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := 0
	for i := range g.groups {
		staying := g.groups[i].callers[:0]
		for _, c := range g.groups[i].callers {
			if c.state == waiting {
				c.group = kept
				staying = append(staying, c)
			}
		}
		if len(staying) == 0 {
			continue
		}
		g.groups[i].callers = staying
		g.groups[kept], g.entries[kept] = g.groups[i], g.entries[i]
		if !g.groups[kept].peek {
			g.entries[kept].N = int64(len(staying))
		}
		kept++
	}
	g.groups, g.entries = g.groups[:kept], g.entries[:kept]
	g.answers = make([]Answer, kept)
	g.sent, g.sentAt = true, now
	return kept > 0
}
