package enforcer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxInFlight batches are under way at once; maxWaiting further ones wait for the first of them to return. What
	// waits behind so many would be late.
	maxInFlight = 4
	maxWaiting  = 32
	// callersAbreast may be under way in several batches before others wait to go together.
	callersAbreast = 8
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
	// grace is how long an answer is waited for at most when the process itself was late.
	grace = 2500 * time.Microsecond
)

// timeoutCause is what decisions say of a store that is late.
const timeoutCause = "timeout: the store did not answer in time"

var errFull = &StoreError{Reason: ReasonFull, Err: errors.New("too many requests wait for the store")}

// batcher asks the store for many callers at once. While a batch is under way the next one gathers; there is no timer
// to fill one, so a lone caller never waits for company. Nor do a few: while batches hold hardly anybody, several of
// them are under way at once, for to wait for the one before takes longer than it saves. Equal callers are one entry of
// the batch.
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

	mu       sync.Mutex
	waiting  []*batch // to leave, the oldest first; the last one gathers
	inFlight int
	// company is four times the callers that a batch held lately.
	company int
	// era ends when the breaker opens: batches of an earlier one no longer count as under way.
	era       uint64
	refunds   []Refund
	refunding bool
	// lastEntries and lastCounters are a little more than the last batch held.
	lastEntries, lastCounters int
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

// await waits for a caller's part of a batch, and returns within the timeout since he came. When the store is late he
// falls back; that happens once, at the moment from which on the store's answer no longer counts for him.
func (b *batcher) await(ctx context.Context, c *caller, since time.Duration, fallBack func() (bool, int64)) outcome {
	switch b.runtime.Wait(c.batch.wake, ctx.Done(), forever) {
	case WokenReady:
		if c.batch.done.Load() {
			return isAnswered
		}
	case WokenDone:
		return c.goneOr()
	case WokenLate:
	}
	return b.awaitLate(ctx, c, since+b.timeout, fallBack)
}

// awaitLate waits for a batch that is late, until the caller's own deadline.
func (b *batcher) awaitLate(ctx context.Context, c *caller, deadline time.Duration, fallBack func() (bool, int64)) outcome {
	wait := deadline - b.runtime.Elapsed()
	for again := false; ; again = true {
		switch b.runtime.Wait(c.batch.finished, ctx.Done(), max(0, wait)) {
		case WokenReady:
			return isAnswered
		case WokenDone:
			return c.goneOr()
		case WokenLate:
		}
		// A process that got no processor in time gives the answer, which may be there, a little more.
		if late := b.runtime.Elapsed() - deadline; again || late <= descheduled {
			break
		}
		wait = min(b.timeout/4, grace)
	}
	if !c.leave(fallBack) {
		return isAnswered
	}
	return isLocal
}

// outcome is how a wait for a batch ended.
type outcome uint8

const (
	isAnswered outcome = iota // by the batch: the caller's part of it is there
	isLocal                   // by the fallback
	isGone                    // not at all: the caller's context ended
)

// outcome reads a caller's part, if it is there, and takes the caller back.
func (b *batcher) outcome(c *caller, how outcome) answer {
	switch how {
	case isLocal:
		return answer{local: true}
	case isGone:
		return answer{gone: true}
	case isAnswered:
	}
	a := c.part()
	b.letGo(c)
	return a
}

func (b *batcher) caller() *caller {
	if c, ok := b.callers.Get().(*caller); ok {
		*c = caller{}
		return c
	}
	return new(caller)
}

// letGo takes back a caller whose part has been read.
func (b *batcher) letGo(c *caller) {
	c.batch = nil
	b.callers.Put(c)
}

// joining is what became of a caller who came.
type joining uint8

const (
	joined    joining = iota
	joinAlone         // little is under way: the caller asks himself, and has been counted as a batch under way
	joinFull          // too many batches wait
)

// join puts a caller in the batch that gathers, and sends it if it may leave. The era is that of one who is alone.
func (b *batcher) join(ctx context.Context, w *want, now time.Duration) (c *caller, era uint64, how joining) {
	fingerprint := w.fingerprint()
	traced := b.tracer != nil && b.tracer.Traces(ctx)
	c = b.caller()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 && b.inFlight < b.abreast() && b.prompt && b.quick.Load() {
		b.inFlight++
		b.accompany(1)
		b.callers.Put(c)
		return nil, b.era, joinAlone
	}
	g := b.gathering()
	if g == nil || g.full(len(w.counters)) {
		if len(b.waiting) >= maxWaiting {
			b.callers.Put(c)
			return nil, 0, joinFull
		}
		g = b.gather(now)
		b.waiting = append(b.waiting, g)
	}
	g.add(w, fingerprint, c)
	if traced {
		g.traced = append(g.traced, ctx)
	}
	if b.inFlight < b.abreast() || len(b.waiting) > 1 && b.inFlight < maxInFlight {
		b.send()
	}
	return c, 0, joined
}

// gathering is the batch that callers join, if there is one. b.mu is held.
func (b *batcher) gathering() *batch {
	if len(b.waiting) == 0 {
		return nil
	}
	return b.waiting[len(b.waiting)-1]
}

// abreast is how many batches may be under way before the next one gathers: one, or several if they are small and the
// store answers each in its turn. b.mu is held.
func (b *batcher) abreast() int {
	if !b.prompt {
		return 1
	}
	return min(maxInFlight, max(1, 4*callersAbreast/max(1, b.company)))
}

// accompany notes how many callers a batch holds that leaves. b.mu is held.
func (b *batcher) accompany(callers int) { b.company += callers - b.company/4 }

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

// hurry sends a batch whose first caller has waited for long, and those before it, beside those under way. If there are
// too many of them, its callers are let go in time.
func (b *batcher) hurry(g *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for slices.Contains(b.waiting, g) {
		if b.inFlight >= maxInFlight {
			b.runtime.AfterFunc(b.timeout-b.timeout/4, g.release)
			return
		}
		b.send()
	}
}

// send lets the oldest batch leave. b.mu is held.
func (b *batcher) send() {
	g := b.leave()
	b.runtime.Go(func() { b.run(g) })
}

// leave takes the oldest batch to be sent. b.mu is held.
func (b *batcher) leave() *batch {
	g := b.waiting[0]
	b.waiting = slices.Delete(b.waiting, 0, 1)
	b.inFlight++
	b.accompany(g.callers)
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
	if len(b.waiting) == 0 || b.inFlight >= b.abreast() && len(b.waiting) == 1 {
		return nil
	}
	return b.leave()
}

// run sends a batch, and those that have gathered behind it. It stays on its goroutine, whose stack has grown as deep as
// a driver needs.
//
// Before the next batch leaves, those who are answered go on, and whoever else could: they may come for the next batch.
// So batches grow as the process gets busy, and an idle one waits for nothing; nobody waits longer than hurry lets him.
func (b *batcher) run(g *batch) {
	for g != nil {
		era := g.era
		if b.seal(g) {
			b.ask(g)
			if g.callers > 1 { // one who is alone asks for himself next time
				b.runtime.Yield()
			}
		}
		g = b.returned(era)
	}
}

// ask is one round trip, and what comes of it.
func (b *batcher) ask(g *batch) {
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
	b.conclude(g, now, took, err)
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
		b.runtime.AfterFunc(min(b.timeout/4, grace), func() { b.overdue(g, sent, true) })
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

// startOver answers those who wait for a batch that will not leave now, and lets go of those under way.
func (b *batcher) startOver(cause string) {
	b.mu.Lock()
	waiting := b.waiting
	b.waiting = nil
	b.inFlight = 0
	b.era++
	b.mu.Unlock()
	for _, g := range waiting {
		b.seal(g)
		b.finish(g, 0, &StoreError{Reason: ReasonOther, Err: errors.New(cause)})
	}
	b.opened(cause)
}
