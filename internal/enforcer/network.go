package enforcer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Classify wraps an error of a store with its reason, unless it has one.
func Classify(err error, reason func(error) Reason) error {
	if err == nil {
		return nil
	}
	var known *StoreError
	if errors.As(err, &known) {
		return err
	}
	return &StoreError{Reason: reason(err), Err: err}
}

// NetworkReason tells the kind of a failure to reach a server, ReasonOther if it is none.
func NetworkReason(err error) Reason {
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
		return ReasonDNS
	case errors.As(err, &certificate), errors.As(err, &alert), errors.As(err, &record), errors.As(err, &authority),
		errors.As(err, &hostname), errors.As(err, &invalid):
		return ReasonTLS
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENOENT):
		return ReasonRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return ReasonReset
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &network) && network.Timeout():
		return ReasonTimeout
	}
	return ReasonOther
}
