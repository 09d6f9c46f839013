package enforcer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// Options says what an Enforcer works with. Store, Local, and Table or Files must be set; the other zero values are
// defaults.
type Options struct {
	Store Store
	// InProcess says that the store answers at once and cannot fail: it is asked without batches, deadline or breaker.
	// Without a table it is not asked at all: each replica has its own, so each decides by its share of the limits.
	InProcess bool
	// Local holds what this replica admitted, for the time that the store is away.
	Local Local
	Table Table
	// TableApart says that the policies are not kept where requests are counted: what befalls them says nothing of the store.
	TableApart bool
	// Files are where row and count come from beside the table, or instead of it.
	Files SnapshotFiles
	// Workload is "namespace/group/kind/name": files of another one are refused.
	Workload string

	// SettleAtOnce has the store hear of what is settled before Settle returns, for tests.
	SettleAtOnce bool

	TrustedProxies []netip.Prefix
	StoreTimeout   time.Duration // DefaultStoreTimeout
	StartTimeout   time.Duration // DefaultStartTimeout
	PollInterval   time.Duration // DefaultPollInterval
	// ClosedWithoutPolicy denies while no row was ever read; otherwise such requests are admitted.
	ClosedWithoutPolicy bool

	// IdentityName names who makes a request, for people who look at whom rules deny. Nil: they see hashes.
	IdentityName func(*Request) string

	// Pod is this replica's name in reports, and Library the version of the library.
	Pod     string
	Library string
	Logger  *slog.Logger
	// Tracer hears of requests to the store. Nil if nobody traces.
	Tracer Tracer
	// Runtime is this process, unless a scenario brings its own.
	Runtime Runtime
}

// Defaults of Options.
const (
	DefaultStoreTimeout = 10 * time.Millisecond
	DefaultStartTimeout = 5 * time.Second
	DefaultPollInterval = 5 * time.Second
)

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
	leases  *leases
	filters filters
	tallies *tallies
	// throttles hears whom rules deny; nil: nobody counts them.
	throttles DenialTable
	throttledView
	recovery

	snapshot atomic.Pointer[snapshot]
	places   atomic.Pointer[policy.Places]
	owned    atomic.Bool
	lastRead atomic.Int64 // µs of the monotonic clock
	wasRead  atomic.Bool

	table tableView // belongs to Poll
	files filesView // belongs to Poll
	poll  sync.Mutex

	ready     chan struct{} // closed once WaitReady may return
	readyOnce sync.Once
	readyErr  error

	// split says that the replicas share no store, only the limits.
	split bool

	decisions sync.Pool // of *decision

	settling atomic.Bool  // the store is about to be told of what was charged afterwards
	settles  atomic.Int64 // of them, in this process
	noted    sync.Pool    // of *noted
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
		split:   o.InProcess && o.Table == nil,
	}
	e.places.Store(policy.NewPlaces(e.clock.monotonic(), 0))
	e.pusher, _ = o.Store.(Pusher)
	e.throttles, _ = o.Table.(DenialTable)
	e.owned.Store(true)
	e.leases = &leases{
		clock:    e.clock,
		runtime:  o.Runtime,
		counts:   e.counts,
		local:    o.Local,
		replicas: func() int { return max(1, e.place().N) },
		current:  e.snapshot.Load,
		careful:  func() bool { return e.following.Load() || e.guarding() },
	}
	e.batcher = &batcher{
		store:   o.Store,
		timeout: o.StoreTimeout,
		runtime: o.Runtime,
		clock:   e.clock,
		breaker: e.breaker,
		counts:  e.counts,
		denials: e.denials,
		leases:  e.leases,
		mirror:  e.mirror,
		opened:  e.breakerOpened,
		settled: e.batchSettled,
		tracer:  o.Tracer,
	}
	e.leases.refund = e.batcher.refund
	if store, ok := o.Store.(GivesBack); ok && store.GivesBack() {
		e.denials.most = shortDenial
		e.leases.oneIdentity = true
	}
	if store, ok := o.Store.(Prompt); ok {
		e.batcher.prompt = store.Prompt()
	}
	return e
}

// hasher is private where no other process has to know the same identities: those that split the limits turn the richer
// shares by them.
func (e *Enforcer) hasher() hasher { return hasher{private: e.options.InProcess && !e.split} }

func nonce() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// Decide decides about a request and charges it.
func (e *Enforcer) Decide(ctx context.Context, r Request) (answer Decision) {
	e.decide(ctx, &r, false, &answer)
	return answer
}

// Peek tells what Decide would say, and charges nothing.
func (e *Enforcer) Peek(ctx context.Context, r Request) (answer Decision) {
	e.decide(ctx, &r, true, &answer)
	return answer
}

func (e *Enforcer) decide(ctx context.Context, r *Request, peek bool, answer *Decision) {
	s := e.snapshot.Load()
	if s == nil {
		*answer = e.withoutPolicy(peek)
		return
	}
	d := e.decision()
	c, since := d.decide(ctx, s, r, peek)
	if c == nil {
		*answer = d.verdict
		e.done(d)
		return
	}
	// Hundreds may wait: what each of them holds meanwhile is not in the processor's cache any more when they go on.
	e.done(d)
	e.await(ctx, s, r, c, since, answer)
}

// await waits for a batch and answers by what it holds.
func (e *Enforcer) await(ctx context.Context, s *snapshot, r *Request, c *caller, since time.Duration, answer *Decision) {
	var again *decision
	late := func() (bool, int64) {
		again = e.decision()
		return again.fallBackAgain(s, r, timeoutCause)
	}
	switch e.batcher.await(ctx, c, since, late) {
	case isLocal:
		*answer = again.verdict
		e.done(again)
		return
	case isGone:
		e.counts.general[Canceled].Add(1)
		*answer = generalDecision(Canceled, context.Cause(ctx).Error())
		return
	case isAnswered:
	}
	a, entry, origins := c.part(), &c.batch.entries[c.group], c.batch.groups[c.group].origins
	e.batcher.letGo(c)
	enforced := entry.Counters[:entry.Enforced]
	switch {
	case a.err != nil:
		again = e.decision()
		again.fallBackAgain(s, r, a.err.Error())
		*answer = again.verdict
		e.done(again)
	case a.granted:
		answer.admittedBy(enforced, origins, a.Answer, a.Granted-1-a.place).tally.add(StoreAdmitted)
	default:
		i := answer.deniedBy(enforced, origins, a.Answer)
		e.throttle(origins[i].rule, enforced[i].Identity, r)
		origins[i].rule.tally.add(StoreDenied)
	}
}

// decision returns an empty one, and done takes it back.
func (e *Enforcer) decision() *decision {
	if d, ok := e.decisions.Get().(*decision); ok {
		return d
	}
	return newDecision(e)
}

func (e *Enforcer) done(d *decision) {
	d.tellThrottled()
	d.release()
	e.decisions.Put(d)
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

// Probe asks the store now whether it is back, if decisions are made without it, and also while another probe is under
// way. Polls and decisions do so by themselves, from time to time.
func (e *Enforcer) Probe() {
	if e.breaker.open.Load() {
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
		if err := e.catchUp(); err != nil {
			e.counts.fail(reasonOf(err))
			cause = err.Error()
		}
	}
	if cause != "" && cause != e.breaker.why() {
		e.log.Warn("Still deciding without the store", "cause", cause)
	}
	if e.breaker.probed(e.clock.monotonic(), cause == "", cause) {
		e.log.Info("Store answers again, and knows what this replica used without it")
	}
}
