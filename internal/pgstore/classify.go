package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-dev/weir/internal/enforcer"
)

// reasonOfState says what an error of the server means, by SQLSTATE.
var reasonOfState = map[string]enforcer.Reason{
	"42501": enforcer.ReasonAuth,     // insufficient_privilege
	"25006": enforcer.ReasonReadOnly, // read_only_sql_transaction
	"53100": enforcer.ReasonMemory,   // disk_full
	"53200": enforcer.ReasonMemory,   // out_of_memory
	"53300": enforcer.ReasonClients,  // too_many_connections
	"57014": enforcer.ReasonTimeout,  // query_canceled: the statement's time-out
	"55P03": enforcer.ReasonTimeout,  // lock_not_available: a lock's time-out
	"57P01": enforcer.ReasonLoading,  // admin_shutdown
	"57P02": enforcer.ReasonLoading,  // crash_shutdown
	"57P03": enforcer.ReasonLoading,  // cannot_connect_now
	"3F000": enforcer.ReasonNoScript, // invalid_schema_name: the schema was not created
	"42883": enforcer.ReasonNoScript, // undefined_function
	"42P01": enforcer.ReasonNoScript, // undefined_table
}

// reasonOfClass serves the states that are not named above.
var reasonOfClass = map[string]enforcer.Reason{
	"08": enforcer.ReasonReset,   // connection exception; poolers say it for a server that is gone
	"22": enforcer.ReasonScript,  // data exception
	"28": enforcer.ReasonAuth,    // invalid authorization
	"53": enforcer.ReasonClients, // insufficient resources
	"P0": enforcer.ReasonScript,  // PL/pgSQL error
	"XX": enforcer.ReasonScript,  // internal error
}

// connectError is a failure to get a connection, before anything was sent.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// classify wraps an error with its reason, unless it has one.
func classify(err error) error {
	return enforcer.Classify(err, reason)
}

// reason tells the kind of a failure. A caller that hung up is ReasonOther: that is no verdict on the database.
func reason(err error) enforcer.Reason {
	var (
		refused *pgconn.PgError
		connect *connectError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return enforcer.ReasonOther
	case errors.Is(err, errState):
		return enforcer.ReasonState
	case errors.Is(err, errReply):
		return enforcer.ReasonReply
	case errors.As(err, &refused):
		if known, ok := reasonOfState[refused.Code]; ok {
			return known
		}
		if known, ok := reasonOfClass[refused.Code[:min(2, len(refused.Code))]]; ok {
			return known
		}
		return enforcer.ReasonOther
	}
	known := enforcer.NetworkReason(err)
	if known == enforcer.ReasonOther && pgconn.Timeout(err) {
		known = enforcer.ReasonTimeout
	}
	if known == enforcer.ReasonTimeout && errors.As(err, &connect) && !dialed(err) {
		return enforcer.ReasonClients // all connections of the pool are busy
	}
	return known
}

// dialed reports whether it was the dial that failed, and not the wait for a connection of the pool.
func dialed(err error) bool {
	var dial *pgconn.ConnectError
	return errors.As(err, &dial)
}
