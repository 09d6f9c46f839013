package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/internal/enforcer"
)

const (
	// DefaultSchema is the schema of the database that holds the table and its functions.
	DefaultSchema = "weir"
	// DefaultStatementTimeout is far above a decision, which takes under a millisecond, and short enough that rows are
	// not locked for long by a statement that is stuck.
	DefaultStatementTimeout = time.Second
	// DefaultCleanUpInterval is the mean time between two steps of the clean-up.
	DefaultCleanUpInterval = 10 * time.Second
)

// Options says where a Store keeps its counters. The zero value is ready for use.
type Options struct {
	// Schema of the database, DefaultSchema if empty. Two installations in one database need two.
	Schema string
	// StatementTimeout bounds one statement at the server, DefaultStatementTimeout if 0. The server counts it in ms.
	StatementTimeout time.Duration
	// CleanUpInterval is the mean time between two steps of the clean-up, DefaultCleanUpInterval if 0.
	CleanUpInterval time.Duration
	// Logger hears what [Store.Run] cannot do; nil is silent.
	Logger *slog.Logger
	// Time in µs replaces the database's clock, for tests. Nil means clock_timestamp().
	Time func() int64
}

// Store holds counters in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	schema   string
	sql      statements
	interval time.Duration
	logger   *slog.Logger
	time     func() int64
	// demanding is set once the database has shown that its default isolation is stricter than the statements need.
	demanding atomic.Bool
	readyOnce sync.Once
	ready     chan struct{}
}

var _ enforcer.Store = (*Store)(nil)

// New returns a Store. The table must exist, or [Store.Run] creates it.
func New(pool *pgxpool.Pool, options Options) *Store {
	schema := cmp.Or(options.Schema, DefaultSchema)
	return &Store{
		pool:     pool,
		schema:   schema,
		sql:      newStatements(schema, cmp.Or(options.StatementTimeout, DefaultStatementTimeout)),
		interval: cmp.Or(options.CleanUpInterval, DefaultCleanUpInterval),
		logger:   options.Logger,
		time:     options.Time,
		ready:    make(chan struct{}),
	}
}

// Ready is closed once Run has found the schema in the database, or created it.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Take answers the entries in order with one statement, in one round trip.
func (s *Store) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	if len(answers) < len(entries) {
		return 0, fmt.Errorf("taking: %d entries, but room for %d answers", len(entries), len(answers))
	}
	if len(entries) == 0 {
		return 0, nil
	}
	b := newBatch(len(entries))
	for i := range entries {
		if err := b.addEntry(&entries[i]); err != nil {
			return 0, fmt.Errorf("taking: %w", err)
		}
	}
	reply, err := s.step(ctx, b, false)
	if err != nil {
		return 0, fmt.Errorf("taking: %w", err)
	}
	if err := reply.decode(entries, answers); err != nil {
		return 0, fmt.Errorf("taking: %w", classify(err))
	}
	return reply.now, nil
}

// Refund is best effort and at most once. Counters that are not there, or not understood, stay as they are.
func (s *Store) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	b := newBatch(len(refunds))
	for i := range refunds {
		if err := b.addRefund(&refunds[i]); err != nil {
			return fmt.Errorf("refunding: %w", err)
		}
	}
	if len(b.refs) == 0 {
		return nil
	}
	if _, err := s.step(ctx, b, true); err != nil {
		return fmt.Errorf("refunding: %w", err)
	}
	return nil
}

// Reset forgets counters: their identities are full again.
func (s *Store) Reset(ctx context.Context, counters []enforcer.Counter) error {
	if len(counters) == 0 {
		return nil
	}
	b := newBatch(len(counters))
	for i := range counters {
		b.place(&counters[i])
	}
	reset := statement{
		sql:    s.sql.reset,
		oids:   []uint32{pgtype.ByteaArrayOID, pgtype.Int8OID},
		params: [][]byte{encodeByteas(b.sorted().keys), s.now()},
	}
	if _, err := s.run(ctx, reset); err != nil {
		return fmt.Errorf("resetting: %w", err)
	}
	return nil
}

// step runs the batch on the database and decodes what came back.
func (s *Store) step(ctx context.Context, b *batch, refunding bool) (reply, error) {
	row, err := s.run(ctx, b.statement(s.sql.step, refunding, s.now()))
	if err != nil {
		return reply{}, err
	}
	r, err := newReply(row)
	return r, classify(err)
}

// now is the time as an argument: null where the database has to look at its own clock.
func (s *Store) now() []byte {
	if s.time == nil {
		return nil
	}
	return encodeInt8(s.time())
}
