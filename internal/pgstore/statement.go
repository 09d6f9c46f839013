package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// attempts bounds how often a statement is sent that the database undid in favour of another one.
const attempts = 5

const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	readOnlyTransaction  = "25006"
)

// statements are the texts that a Store sends.
type statements struct {
	begin, timeout, step, reset, cleanUp, commit string

	// Those of a push.
	create, clock, states, charges, told, saveStates, dropCharges, saveCharges, saveTold string
}

func newStatements(schema string, timeout time.Duration) statements {
	ms := max(timeout.Milliseconds(), 1)
	return statements{
		// For databases whose default is a stricter isolation, which would refuse to wait for a row.
		begin:   "begin isolation level read committed",
		timeout: "select set_config('statement_timeout', '" + strconv.FormatInt(ms, 10) + "', true)",
		step:    inSchema(`select now, granted, results from "weir".step($1, $2, $3, $4, $5, $6, $7)`, schema),
		reset:   inSchema(`select "weir".reset($1, $2)`, schema),
		cleanUp: inSchema(`select pages, deleted from "weir".clean_up($1, $2, $3)`, schema),
		commit:  "commit",

		create: inSchema(`insert into "weir".counters as c (key, format, at, used, carry, expires)
			select u.key, 1, 0, 0, 0, 0 from unnest($1::bytea[]) u(key) on conflict (key) do update set format = 1 where false`, schema),
		clock:   "select (extract(epoch from clock_timestamp()) * 1000000)::bigint",
		states:  inSchema(`select key, format, at, used, carry from "weir".counters where key = any ($1::bytea[])`, schema),
		charges: inSchema(`select key, at, cost from "weir".charges where key = any ($1::bytea[]) order by key, at`, schema),
		told:    inSchema(`select key, format, round, reset, seen, sum from "weir".told where key = any ($1::bytea[])`, schema),
		saveStates: inSchema(`update "weir".counters c
			set at = u.at, used = u.used, carry = u.carry, expires = u.expires
			from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) u(key, at, used, carry, expires)
			where c.key = u.key`, schema),
		dropCharges: inSchema(`delete from "weir".charges where key = any ($1::bytea[])`, schema),
		saveCharges: inSchema(`insert into "weir".charges (key, at, cost, before)
			select * from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[])`, schema),
		saveTold: inSchema(`insert into "weir".told (key, format, round, reset, seen, sum, expires)
			select u.key, 1, u.round, u.reset, u.seen::jsonb, u.sum::jsonb, u.expires
			from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])
				u(key, round, reset, seen, sum, expires)
			on conflict (key) do update set format = 1, round = excluded.round, reset = excluded.reset,
				seen = excluded.seen, sum = excluded.sum, expires = excluded.expires`, schema),
	}
}

// statement is a statement with its arguments in binary form.
type statement struct {
	sql    string
	oids   []uint32
	params [][]byte
}

// run sends a statement and returns its first row, nil if it has none.
//
// A statement that the database undid because of another one (a deadlock, a serialization failure, two first charges
// of one key) is sent again: it has charged nothing. Nothing else ever is.
func (s *Store) run(ctx context.Context, st statement) (row [][]byte, err error) {
	err = s.again(func() error {
		row, err = s.runOnce(ctx, st)
		return err
	})
	return row, classify(err)
}

// again sends something until the database does not undo it, a few times at most.
func (s *Store) again(send func() error) (err error) {
	for range attempts {
		if err = send(); !undone(err) {
			return err
		}
		if sqlState(err) == serializationFailure {
			s.demanding.Store(true)
		}
	}
	// Not the error itself: callers must not take it for something that they have to send again.
	return fmt.Errorf("undone %d times in favour of other statements", attempts)
}

func undone(err error) bool {
	switch sqlState(err) {
	case uniqueViolation, serializationFailure, deadlockDetected:
		return true
	}
	return false
}

// sqlState is the code that the server gave, empty if the error is not the server's.
func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// runOnce sends the statement in one round trip, together with what holds for it alone. The messages are those of
// unnamed statements up to one Sync, which make one transaction: a pooler hands it to one server as a whole.
func (s *Store) runOnce(ctx context.Context, st statement) ([][]byte, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", &connectError{err})
	}
	defer conn.Release()
	var (
		messages pgconn.Batch
		demands  = s.demanding.Load()
		place    = 1
		binary   = []int16{pgtype.BinaryFormatCode}
	)
	if demands {
		messages.ExecParams(s.sql.begin, nil, nil, nil, nil)
		place++
	}
	messages.ExecParams(s.sql.timeout, nil, nil, nil, nil)
	messages.ExecParams(st.sql, st.params, st.oids, binary, binary)
	if demands {
		messages.ExecParams(s.sql.commit, nil, nil, nil, nil)
	}
	server := conn.Conn().PgConn()
	results, err := server.ExecBatch(ctx, &messages).ReadAll()
	if err == nil && len(results) > place && results[place].Err != nil {
		err = results[place].Err
	}
	if err != nil {
		if sqlState(err) == readOnlyTransaction && !server.IsClosed() {
			// A former primary keeps its connections. Closing this one lets the pool look for the present primary.
			_ = conn.Conn().Close(ctx)
		}
		return nil, err
	}
	if len(results) <= place {
		return nil, fmt.Errorf("%w: %d results", errReply, len(results))
	}
	if len(results[place].Rows) == 0 {
		return nil, nil
	}
	return results[place].Rows[0], nil
}
