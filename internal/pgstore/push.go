package pgstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

var _ enforcer.Pusher = (*Store)(nil)

// keepTold (µs) is for how long what replicas told is remembered at least.
const keepTold = 3_600_000_000

// Push takes over what replicas tell after an outage, in one transaction. It is rare, so it reads the states, has
// package enforcer work out the new ones, and writes them: as many statements for a push of any size.
func (s *Store) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (now int64, err error) {
	if len(pushes) == 0 {
		return 0, nil
	}
	err = s.again(func() error {
		now, err = s.pushOnce(ctx, pushes, answers)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("pushing: %w", classify(err))
	}
	return now, nil
}

// told is a counter with what is beside it.
type told struct {
	key     []byte
	known   bool // both formats are
	state   algorithm.State
	ledger  enforcer.Ledger
	sum     algorithm.State
	expires int64 // of the row of counters
	keep    int64 // until when the row of told is kept
}

func (s *Store) pushOnce(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, fmt.Errorf("connecting: %w", &connectError{err})
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after the commit
	if _, err := tx.Exec(ctx, s.sql.timeout, pgx.QueryExecModeExec); err != nil {
		return 0, err
	}
	counters, now, err := s.lockTold(ctx, tx, pushes)
	if err != nil {
		return 0, err
	}
	for i := range pushes {
		answers[i] = counters[string(pushKey(&pushes[i]))].apply(&pushes[i], now)
	}
	if err := s.saveTold(ctx, tx, counters); err != nil {
		return 0, err
	}
	return now, tx.Commit(ctx)
}

func pushKey(p *enforcer.Push) []byte {
	return append(p.Identity[:len(p.Identity):len(p.Identity)], p.ID...)
}

// apply takes a push over.
func (c *told) apply(p *enforcer.Push, now int64) enforcer.Pushed {
	if !c.known {
		return enforcer.Pushed{Err: classify(errState)}
	}
	state, sum, answer := c.ledger.Apply(p, c.state, c.sum, now)
	c.state, c.sum = state, sum
	c.expires = now + p.Limit.TTL(state, now)
	c.keep = max(c.expires, now+keepTold, now+p.Limit.Window)
	return answer
}

// lockTold locks the rows of all counters, creating those that are missing, and reads them with all that is beside them.
func (s *Store) lockTold(ctx context.Context, tx pgx.Tx, pushes []enforcer.Push) (map[string]*told, int64, error) {
	counters := make(map[string]*told, len(pushes))
	keys := make([][]byte, 0, len(pushes))
	var logs [][]byte
	for i := range pushes {
		key := pushKey(&pushes[i])
		if counters[string(key)] != nil {
			continue
		}
		counters[string(key)] = &told{key: key, known: true}
		keys = append(keys, key)
		if pushes[i].Limit.Algorithm == algorithm.SlidingWindowLog {
			logs = append(logs, key)
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	if _, err := tx.Exec(ctx, s.sql.create, pgx.QueryExecModeExec, keys); err != nil {
		return nil, 0, err
	}
	now, err := s.pushTime(ctx, tx)
	if err != nil {
		return nil, 0, err
	}
	err = s.read(ctx, tx, s.sql.states, keys, func(rows pgx.Rows) error {
		var key []byte
		var format int16
		var state algorithm.State
		if err := rows.Scan(&key, &format, &state.At, &state.Used, &state.Carry); err != nil {
			return err
		}
		c := counters[string(key)]
		c.state, c.known = state, format == 1 && state.At >= 0 && state.Used >= 0 && state.Carry >= 0
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	for _, key := range logs {
		counters[string(key)].state = algorithm.State{}
	}
	err = s.read(ctx, tx, s.sql.charges, logs, func(rows pgx.Rows) error {
		var key []byte
		var charge algorithm.LogEntry
		if err := rows.Scan(&key, &charge.At, &charge.Cost); err != nil {
			return err
		}
		state := &counters[string(key)].state
		state.Log, state.Used = append(state.Log, charge), state.Used+charge.Cost
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	err = s.read(ctx, tx, s.sql.told, keys, func(rows pgx.Rows) error {
		var key, seen, sum []byte
		var format int16
		var ledger enforcer.Ledger
		if err := rows.Scan(&key, &format, &ledger.Round, &ledger.Reset, &seen, &sum); err != nil {
			return err
		}
		c := counters[string(key)]
		c.ledger = ledger
		err := errors.Join(json.Unmarshal(seen, &c.ledger.Seen), json.Unmarshal(sum, &c.sum))
		c.known = c.known && format == 1 && err == nil
		return nil
	})
	return counters, now, err
}

// pushTime (µs) is read under the locks, so that the charges of a row follow each other in time.
func (s *Store) pushTime(ctx context.Context, tx pgx.Tx) (now int64, err error) {
	if s.time != nil {
		return s.time(), nil
	}
	err = tx.QueryRow(ctx, s.sql.clock, pgx.QueryExecModeExec).Scan(&now)
	return now, err
}

func (s *Store) read(ctx context.Context, tx pgx.Tx, sql string, keys [][]byte, each func(pgx.Rows) error) error {
	if len(keys) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, sql, pgx.QueryExecModeExec, keys)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// saveTold writes all counters back with what is beside them, in four statements.
func (s *Store) saveTold(ctx context.Context, tx pgx.Tx, counters map[string]*told) error {
	var to columns
	for _, c := range counters {
		if !c.known {
			continue
		}
		if err := to.add(c); err != nil {
			return err
		}
	}
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{s.sql.saveStates, []any{to.keys, to.ats, to.useds, to.carries, to.expires}},
		{s.sql.dropCharges, []any{to.keys}},
		{s.sql.saveCharges, []any{to.charged, to.chargedAt, to.costs, to.befores}},
		{s.sql.saveTold, []any{to.keys, to.rounds, to.resets, to.seen, to.sums, to.keep}},
	} {
		if _, err := tx.Exec(ctx, statement.sql, append([]any{pgx.QueryExecModeExec}, statement.args...)...); err != nil {
			return err
		}
	}
	return nil
}

// columns are those of the tables: the first ones of counters, then those of charges and of told.
type columns struct {
	keys                         [][]byte
	ats, useds, carries, expires []int64

	charged                   [][]byte
	chargedAt, costs, befores []int64

	rounds, resets, keep []int64
	seen, sums           []string
}

func (to *columns) add(c *told) error {
	seen, err := json.Marshal(c.ledger.Seen)
	if err != nil {
		return err
	}
	sum, err := json.Marshal(c.sum)
	if err != nil {
		return err
	}
	var before int64
	at := c.state.At
	for _, charge := range c.state.Log {
		at = charge.At
		to.charged, to.chargedAt = append(to.charged, c.key), append(to.chargedAt, charge.At)
		to.costs, to.befores = append(to.costs, charge.Cost), append(to.befores, before)
		before += charge.Cost
	}
	to.keys, to.ats, to.useds = append(to.keys, c.key), append(to.ats, at), append(to.useds, c.state.Used)
	to.carries, to.expires = append(to.carries, c.state.Carry), append(to.expires, c.expires)
	to.rounds, to.resets = append(to.rounds, c.ledger.Round), append(to.resets, c.ledger.Reset)
	to.seen, to.sums, to.keep = append(to.seen, string(seen)), append(to.sums, string(sum)), append(to.keep, c.keep)
	return nil
}
