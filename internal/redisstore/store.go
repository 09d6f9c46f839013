package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Store holds the counters of one namespace of a table. It is safe for concurrent use.
//
// On one Redis, or one behind sentinels, a batch is one script: the answers are those of a serial order. On a Redis
// Cluster it is one script for each slot, all at once. A request over several slots is admitted only if all of them
// admit it; what the others then hold too much goes back with the next call, at the latest after refundDelay, and may
// refuse others until then. It never admits too many.
type Store struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil when the client is not one
	prefix  string
	time    func() int64
	batches sync.Pool // of *batch
	owed    debts
}

var (
	_ enforcer.Prompt    = (*Store)(nil)
	_ enforcer.GivesBack = (*Store)(nil)
)

// StoreOptions says whose counters a Store holds.
type StoreOptions struct {
	Client redis.UniversalClient
	// Table is the name of the table; empty means DefaultTable.
	Table string
	// Namespace is the workload's. Counters of different namespaces have different keys, so that an ACL can part them.
	Namespace string
	// Time in µs replaces the clock of the server, for tests. Nil means the server's.
	Time func() int64
}

// NewStore returns a Store.
func NewStore(options StoreOptions) *Store {
	cluster, _ := options.Client.(*redis.ClusterClient)
	s := &Store{
		client:  options.Client,
		cluster: cluster,
		prefix:  newKeys(options.Table).counterPrefix(options.Namespace),
		time:    options.Time,
		batches: sync.Pool{New: func() any { return newBatch() }},
	}
	s.owed.pay = s.payDebts
	return s
}

// now is the first argument of the counter scripts.
func (s *Store) now() string {
	if s.time == nil {
		return ""
	}
	return strconv.FormatInt(s.time(), 10)
}

// Take answers the entries in order, in one round trip.
func (s *Store) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	if len(answers) < len(entries) {
		return 0, fmt.Errorf("taking: %d entries, but room for %d answers", len(entries), len(answers))
	}
	take := s.takeOnce
	if s.cluster != nil {
		take = s.takeParts
	}
	now, err := take(ctx, entries, answers)
	if err != nil {
		return 0, fmt.Errorf("taking: %w", classify(err))
	}
	return now, nil
}

// takeOnce is Take on one server.
func (s *Store) takeOnce(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	b := s.batches.Get().(*batch) //nolint:errcheck // the pool holds nothing else
	defer s.batches.Put(b)
	if err := b.encodeTake(s.prefix, entries); err != nil {
		return 0, err
	}
	cmd, err := b.script.run(ctx, s.client, b.args(s.now()))
	if err != nil {
		return 0, err
	}
	return decodeTake(cmd.Val(), entries, answers)
}

// Prompt says that a call returns with its context's deadline: the client sets it on the connection. In a cluster a batch
// goes to many nodes at once, and is better waited for.
func (s *Store) Prompt() bool { return s.cluster == nil }

// GivesBack says that requests over several slots, of which some refused, are given back at the others.
func (s *Store) GivesBack() bool { return s.cluster != nil }

// Refund gives back what still weighs, in one round trip. It is best effort and at most once.
func (s *Store) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	refund := s.refundOnce
	if s.cluster != nil {
		refund = s.refundParts
	}
	if err := refund(ctx, refunds); err != nil {
		return fmt.Errorf("refunding: %w", classify(err))
	}
	return nil
}

func (s *Store) refundOnce(ctx context.Context, refunds []enforcer.Refund) error {
	b := s.batches.Get().(*batch) //nolint:errcheck // the pool holds nothing else
	defer s.batches.Put(b)
	if err := b.encodeRefunds(s.prefix, refunds); err != nil || b.empty() {
		return err
	}
	cmd, err := b.script.run(ctx, s.client, b.args(s.now()))
	if err != nil {
		return err
	}
	return decodeRefund(cmd.Val())
}

const (
	// refundDelay is how long what a batch owes may wait for a next batch that takes it along.
	refundDelay = 5 * time.Millisecond
	// payTimeout bounds the call that pays debts when there is no next batch.
	payTimeout = time.Second
	// maxDebts bounds what is remembered. What is not given back ages out.
	maxDebts = 4096
)

// debts are refunds that a call left behind.
type debts struct {
	pay func() // called refundDelay after the first of them, unless take came before

	mu      sync.Mutex
	refunds []enforcer.Refund
	timer   *time.Timer
}

func (d *debts) add(refunds []enforcer.Refund) {
	if len(refunds) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refunds = append(d.refunds, refunds[:min(len(refunds), maxDebts-len(d.refunds))]...)
	if d.timer == nil {
		d.timer = time.AfterFunc(refundDelay, d.pay)
	}
}

// take returns all debts, once: whoever gets them tries to pay them, and they are never tried again.
func (d *debts) take() []enforcer.Refund {
	d.mu.Lock()
	defer d.mu.Unlock()
	refunds := d.refunds
	d.refunds = nil
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	return refunds
}

func (s *Store) payDebts() {
	ctx, cancel := context.WithTimeout(context.Background(), payTimeout)
	defer cancel()
	// Nobody waits for it. What is lost ages out.
	_ = s.Refund(ctx, s.owed.take())
}
