package pgstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

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
	if err == nil {
		return nil
	}
	var known *enforcer.StoreError
	if errors.As(err, &known) {
		return err
	}
	return &enforcer.StoreError{Reason: reason(err), Err: err}
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
	known := reasonOfNetwork(err)
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

func reasonOfNetwork(err error) enforcer.Reason {
	var (
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		alert       tls.AlertError
		record      tls.RecordHeaderError
		authority   x509.UnknownAuthorityError
		hostname    x509.HostnameError
		invalid     x509.CertificateInvalidError
		network     net.Error
	)
	switch {
	case errors.As(err, &dns):
		return enforcer.ReasonDNS
	case errors.As(err, &certificate), errors.As(err, &alert), errors.As(err, &record), errors.As(err, &authority),
		errors.As(err, &hostname), errors.As(err, &invalid):
		return enforcer.ReasonTLS
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENOENT):
		return enforcer.ReasonRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return enforcer.ReasonReset
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), pgconn.Timeout(err),
		errors.As(err, &network) && network.Timeout():
		return enforcer.ReasonTimeout
	}
	return enforcer.ReasonOther
}
