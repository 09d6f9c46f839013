package enforcer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// Options says what an Enforcer works with. Store, Local and Table must be set; the other zero values are defaults.
type Options struct {
	Store Store
	// InProcess says that the store answers at once and cannot fail: it is asked without batches, deadline or breaker.
	InProcess bool
	// Local holds what this replica admitted, for the time that the store is away.
	Local Local
	Table Table

	TrustedProxies []netip.Prefix
	StoreTimeout   time.Duration // DefaultStoreTimeout
	StartTimeout   time.Duration // DefaultStartTimeout
	PollInterval   time.Duration // DefaultPollInterval
	// ClosedWithoutPolicy denies while no row was ever read; otherwise such requests are admitted.
	ClosedWithoutPolicy bool

	// Pod is this replica's name in reports, and Library the version of the library.
	Pod     string
	Library string
	Logger  *slog.Logger
	// Runtime is this process, unless a scenario brings its own.
	Runtime Runtime
}

// Defaults of Options.
const (
	DefaultStoreTimeout = 10 * time.Millisecond
	DefaultStartTimeout = 5 * time.Second
	DefaultPollInterval = 5 * time.Second
)

// Local holds the local shares. memstore.Store is one.
type Local interface {
	// TakeAt answers an entry at a time of the caller's, in µs.
	TakeAt(now int64, e *Entry, a *Answer)
	// Note charges c for what the store admitted, with weighs in use there of the whole limit, and leaves no more than
	// left.
	Note(now int64, c *Counter, charged, weighs, left int64)
}

// Enforcer decides. All of its methods are safe for concurrent use; Decide and Peek also before and after Run.
type Enforcer struct {
	options Options
	member  string
	log     *slog.Logger
	clock   *clock
	breaker *breaker
	batcher *batcher
	counts  *counts
	denials *denials
	tallies *tallies

	snapshot atomic.Pointer[snapshot]
	standing atomic.Pointer[policy.Replica]
	owned    atomic.Bool
	lastRead atomic.Int64 // µs of the monotonic clock
	wasRead  atomic.Bool

	table tableView // belongs to Poll
	poll  sync.Mutex

	ready     chan struct{} // closed once WaitReady may return
	readyOnce sync.Once
	readyErr  error

	decisions sync.Pool // of *decision
}

// New returns an Enforcer that knows no policies yet.
func New(o Options) *Enforcer {
	if o.StoreTimeout <= 0 {
		o.StoreTimeout = DefaultStoreTimeout
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	if o.PollInterval <= 0 {
		o.PollInterval = DefaultPollInterval
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Runtime == nil {
		o.Runtime = newProcess()
	}
	if o.Runtime == nil {
		o.Runtime = newProcess()
	}
	o.TrustedProxies = unmapPrefixes(o.TrustedProxies)
	e := &Enforcer{
		options: o,
		member:  o.Pod + "/" + nonce(),
		log:     o.Logger,
		clock:   newClock(o.Runtime),
		breaker: &breaker{runtime: o.Runtime},
		counts:  new(counts),
		denials: newDenials(),
		tallies: new(tallies),
		ready:   make(chan struct{}),
	}
	e.standing.Store(&policy.Replica{N: 1})
	e.owned.Store(true)
	e.batcher = &batcher{
		store:   o.Store,
		timeout: o.StoreTimeout,
		runtime: o.Runtime,
		clock:   e.clock,
		breaker: e.breaker,
		counts:  e.counts,
		denials: e.denials,
		mirror:  e.mirror,
		opened:  e.breakerOpened,
	}
	if store, ok := o.Store.(GivesBack); ok && store.GivesBack() {
		e.denials.most = shortDenial
	}
	if store, ok := o.Store.(Prompt); ok {
		e.batcher.prompt = store.Prompt()
	}
	return e
}

func nonce() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// Decide decides about a request and charges it.
func (e *Enforcer) Decide(ctx context.Context, r Request) Decision { return e.decide(ctx, r, false) }

// Peek tells what Decide would say, and charges nothing.
func (e *Enforcer) Peek(ctx context.Context, r Request) Decision { return e.decide(ctx, r, true) }

func (e *Enforcer) decide(ctx context.Context, r Request, peek bool) Decision {
	s := e.snapshot.Load()
	if s == nil {
		return e.withoutPolicy(peek)
	}
	d, ok := e.decisions.Get().(*decision)
	if !ok {
		d = &decision{e: e}
	}
	answer := d.decide(ctx, s, r, peek)
	d.release()
	e.decisions.Put(d)
	return answer
}

// withoutPolicy decides while no row was ever read.
func (e *Enforcer) withoutPolicy(peek bool) Decision {
	general := NoPolicyOpen
	cause := "no policies were ever read"
	switch {
	case e.options.ClosedWithoutPolicy:
		general = NoPolicyClosed
	case e.wasRead.Load():
		general, cause = NoRule, "the table holds no row for this workload"
	}
	if !peek {
		e.counts.general[general].Add(1)
	}
	return generalDecision(general, cause)
}

// place is this replica's among those that share the limits.
func (e *Enforcer) place() policy.Replica { return *e.standing.Load() }

// mirror keeps the local share in step with what the store said of an entry: it is charged with what was admitted
// here, and left with no more than this replica's part of what is left.
func (e *Enforcer) mirror(now int64, g *group, entry *Entry, a *Answer, admitted int64) {
	place := e.place()
	for i := range entry.Counters[:entry.Enforced] {
		o := g.origins[i]
		if o.rule.onFailure != policy.OnStoreFailureLocalShare {
			continue
		}
		c := entry.Counters[i]
		remaining := a.Results[i].Remaining
		weighs := max(0, c.Limit.Capacity()-remaining)
		c.Limit = o.rule.share(o.limit, place, c.Identity)
		e.options.Local.Note(now, &c, admitted*c.Cost, weighs, place.Part(remaining, c.Identity.turn()))
	}
}

func (e *Enforcer) breakerOpened(cause string) {
	e.counts.opened.Add(1)
	e.log.Warn("Store does not answer, deciding without it", "cause", cause)
}

// probeIdentity is the identity of the counter that probes write, so that a store which takes no writes is not healthy.
var probeIdentity = hash([]byte("probe"))

// probe asks the store whether it is back, if it is time to, behind the decisions.
func (e *Enforcer) probe() {
	if e.breaker.claimProbe(e.clock.monotonic()) {
		e.options.Runtime.Go(e.sendProbe)
	}
}

// Probe asks the store now whether it is back, if decisions are made without it. Run and decisions do so by themselves,
// from time to time.
func (e *Enforcer) Probe() {
	if e.breaker.claimProbe(math.MaxInt64) {
		e.sendProbe()
	}
}

func (e *Enforcer) sendProbe() {
	ctx, cancel := e.options.Runtime.WithTimeout(e.options.StoreTimeout + patience)
	defer cancel()
	sent := e.options.Runtime.Elapsed()
	answers := make([]Answer, 1)
	now, err := e.options.Store.Take(ctx, []Entry{probeEntry()}, answers)
	took := e.options.Runtime.Elapsed() - sent
	cause := ""
	switch {
	case err == nil && answers[0].Err != nil:
		err = answers[0].Err
		fallthrough
	case err != nil:
		e.counts.fail(reasonOf(err))
		cause = err.Error()
	case took > e.options.StoreTimeout:
		e.counts.fail(ReasonTimeout)
		cause = timeoutCause
	}
	if cause == "" {
		e.clock.learn(now, e.clock.monotonic())
	}
	if e.breaker.probed(e.clock.monotonic(), cause == "", cause) {
		e.log.Info("Store answers again")
	}
}
