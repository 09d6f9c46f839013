package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Store holds the counters of one namespace of a table. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	prefix string
	time   func() int64
	pool   sync.Pool // of *batch
}

var _ enforcer.Store = (*Store)(nil)

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
	return &Store{
		client: options.Client,
		prefix: newKeys(options.Table).counterPrefix(options.Namespace),
		time:   options.Time,
		pool:   sync.Pool{New: func() any { return newBatch() }},
	}
}

// now is the first argument of the counter scripts.
func (s *Store) now() string {
	if s.time == nil {
		return ""
	}
	return strconv.FormatInt(s.time(), 10)
}

// Take answers the entries in order with one script, in one round trip.
func (s *Store) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	if len(answers) < len(entries) {
		return 0, fmt.Errorf("taking: %d entries, but room for %d answers", len(entries), len(answers))
	}
	b := s.pool.Get().(*batch)
	defer s.pool.Put(b)
	if err := b.encodeTake(s.prefix, entries); err != nil {
		return 0, fmt.Errorf("taking: %w", err)
	}
	cmd, err := takeScript.run(ctx, s.client, b.args(takeScript, s.now()))
	if err != nil {
		return 0, fmt.Errorf("taking: %w", err)
	}
	reply, err := textOf(cmd)
	if err != nil {
		return 0, fmt.Errorf("taking: %w", err)
	}
	now, err := decodeTake(reply, entries, answers)
	if err != nil {
		return 0, fmt.Errorf("taking: %w", classify(err))
	}
	return now, nil
}

// Refund gives back what still weighs, with one script. It is best effort and at most once.
func (s *Store) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	b := s.pool.Get().(*batch)
	defer s.pool.Put(b)
	if err := b.encodeRefunds(s.prefix, refunds); err != nil {
		return fmt.Errorf("refunding: %w", err)
	}
	if len(b.index) == 0 {
		return nil
	}
	cmd, err := refundScript.run(ctx, s.client, b.args(refundScript, s.now()))
	if err != nil {
		return fmt.Errorf("refunding: %w", err)
	}
	if failed, err := integer(cmd.Val()); err != nil {
		return fmt.Errorf("refunding: %w", classify(err))
	} else if failed > 0 {
		return fmt.Errorf("refunding %d counters: %w", failed, classify(errState))
	}
	return nil
}

// Reset forgets counters: their identities are full again.
func (s *Store) Reset(ctx context.Context, counters []enforcer.Counter) error {
	if len(counters) == 0 {
		return nil
	}
	names := make([]string, len(counters))
	for i := range counters {
		names[i] = string(appendCounter(nil, s.prefix, &counters[i]))
	}
	if err := s.client.Del(ctx, names...).Err(); err != nil {
		return classify(fmt.Errorf("resetting %d counters: %w", len(counters), err))
	}
	return nil
}

// textOf returns the reply of a script that answers with one string.
func textOf(cmd *redis.Cmd) (string, error) {
	text, ok := cmd.Val().(string)
	if !ok {
		return "", classify(fmt.Errorf("%w: %T, want a string", errReply, cmd.Val()))
	}
	return text, nil
}
