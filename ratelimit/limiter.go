package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/redisstore"
)

// Limiter decides whether requests are within their limits. All of its methods are safe for concurrent use.
//
// New starts no goroutine, except that go-redis begins to connect. Run polls and listens until its context ends. A
// decision that asks the store may start goroutines of its own, which end with the store's answer, at the latest one
// second after StoreTimeout.
type Limiter struct {
	options  Options
	enforcer *enforcer.Enforcer
	store    enforcer.Store
	metrics  *metrics // nil without a Registerer
	lines    lines    // of those who Wait
	sleeper  sleeper
}

// New returns a limiter. It knows no policies until Run has read them.
func New(o Options) (*Limiter, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	workload, err := o.workload()
	if err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	if o.Pod == "" {
		if o.Pod, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("ratelimit: no Pod, and no host name either: %w", err)
		}
	}
	var client redis.UniversalClient
	if o.Redis != nil {
		if err := redisstore.ValidateTable(o.Table); o.Table != "" && err != nil {
			return nil, fmt.Errorf("ratelimit: %w", err)
		}
		client = redisstore.NewClient(o.Redis)
	}

	internal := enforcer.Options{
		Local:               memstore.New(memstore.Options{MaxKeys: o.MaxKeys}),
		TrustedProxies:      o.TrustedProxies,
		StoreTimeout:        o.StoreTimeout,
		StartTimeout:        o.StartTimeout,
		PollInterval:        o.PollInterval,
		ClosedWithoutPolicy: o.WhenNoPolicy == Closed,
		Pod:                 o.Pod,
		Library:             version(),
		Logger:              o.Logger,
	}
	if o.IdentityName != nil {
		internal.IdentityName = func(r *enforcer.Request) string { return o.IdentityName(Request(*r)) }
	}
	switch {
	case o.Policies != nil:
		internal.Table, internal.TableApart = sourceTable{o.Policies, workload}, true
	case client != nil:
		internal.Table = redisstore.NewMember(client, o.Table, workload)
		fallthrough
	default:
		internal.Files, internal.Workload = newSnapshotFiles(&o), workload.String()
	}
	if o.Counters == nil {
		internal.Store = redisstore.NewStore(redisstore.StoreOptions{
			Client: client, Table: o.Table, Namespace: workload.Namespace,
		})
	} else if internal.Store, err = o.Counters.OpenStore(o); err != nil {
		return nil, fmt.Errorf("opening the counters: %w", err)
	}
	_, internal.InProcess = internal.Store.(*memstore.Store)
	test, isTest := o.Counters.(testCounters)
	if isTest {
		internal.Runtime, internal.SettleAtOnce = test.Runtime(), true
	}

	l := &Limiter{options: o, enforcer: enforcer.New(internal), store: internal.Store, sleeper: process{}}
	if isTest {
		test.Serve(l.enforcer)
		l.sleeper = test
	}
	if o.Registerer != nil {
		if l.metrics, err = newMetrics(o.Registerer, l.enforcer); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return l, nil
}

// testCounters are those of package ratelimittest: they have a time of their own, and know whom they serve.
type testCounters interface {
	Runtime() enforcer.Runtime
	Serve(e *enforcer.Enforcer)
	sleeper
}

// Run keeps the policies current and reports to the controller that they are enforced, until ctx ends; then it returns
// nil. Decide works before, during and after it: after it, by what was read last, so that a server that drains is still
// limited. Run must not be called twice.
func (l *Limiter) Run(ctx context.Context) error {
	// A store may have work of its own: one that keeps counters in a table cleans it up.
	background, ok := l.store.(interface{ Run(context.Context) error })
	if !ok {
		return l.enforcer.Run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- background.Run(ctx) }()
	err := l.enforcer.Run(ctx)
	cancel()
	return errors.Join(err, <-ended)
}

// WaitReady returns nil once policies are in force, or it is known that there are none for this workload, and counters
// that need a schema have it. It returns an error when that is not so StartTimeout after Run began and WaitReady was
// called, or when ctx ends. The limiter works all the same: until it has read policies it does what WhenNoPolicy says.
func (l *Limiter) WaitReady(ctx context.Context) error {
	timeout := cmp.Or(l.options.StartTimeout, enforcer.DefaultStartTimeout)
	timer := time.NewTimer(timeout) // of both
	defer timer.Stop()
	if err := l.enforcer.WaitReady(ctx); err != nil {
		return err
	}
	counters, ok := l.store.(interface{ Ready() <-chan struct{} })
	if !ok {
		return nil
	}
	select {
	case <-counters.Ready():
		return nil
	case <-timer.C:
		return fmt.Errorf("the counters are not ready after %v", timeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Decide decides about a request and charges it if it is admitted. It returns within StoreTimeout, and 3 ms more if the
// process got no processor in time. When ctx ends before, the request is denied with the source Canceled.
func (l *Limiter) Decide(ctx context.Context, r Request) Decision {
	if l.metrics == nil {
		return Decision(l.enforcer.Decide(ctx, enforcer.Request(r)))
	}
	start := time.Now()
	d := Decision(l.enforcer.Decide(ctx, enforcer.Request(r)))
	l.metrics.observe(d, time.Since(start))
	return d
}

func (l *Limiter) reserve(ctx context.Context, r Request) (Decision, *enforcer.Charge) {
	start := time.Now()
	d, charge := l.enforcer.Reserve(ctx, enforcer.Request(r))
	if l.metrics != nil {
		l.metrics.observe(Decision(d), time.Since(start))
	}
	return Decision(d), charge
}

// Peek tells what Decide would say of a request at this moment, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, r Request) Decision {
	return Decision(l.enforcer.Peek(ctx, enforcer.Request(r)))
}

// version is that of this module as the application was built with it.
func version() string {
	const module = "github.com/weir-dev/weir"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return "unknown"
}
