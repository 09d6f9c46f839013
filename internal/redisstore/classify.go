package redisstore

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
)

// reasonOfCode says what an error reply of the server means, by its first word.
var reasonOfCode = map[string]enforcer.Reason{
	"NOAUTH":      enforcer.ReasonAuth,
	"WRONGPASS":   enforcer.ReasonAuth,
	"NOPERM":      enforcer.ReasonAuth,
	"DENIED":      enforcer.ReasonAuth, // protected mode
	"READONLY":    enforcer.ReasonReadOnly,
	"NOREPLICAS":  enforcer.ReasonReadOnly, // min-replicas-to-write
	"MISCONF":     enforcer.ReasonReadOnly, // the last save failed
	"LOADING":     enforcer.ReasonLoading,
	"MASTERDOWN":  enforcer.ReasonLoading,
	"BUSY":        enforcer.ReasonLoading,
	"MOVED":       enforcer.ReasonMoved,
	"ASK":         enforcer.ReasonMoved,
	"TRYAGAIN":    enforcer.ReasonMoved,
	"CLUSTERDOWN": enforcer.ReasonMoved,
	"CROSSSLOT":   enforcer.ReasonCrossSlot,
	"OOM":         enforcer.ReasonMemory,
	"NOSCRIPT":    enforcer.ReasonNoScript,
	"WRONGTYPE":   enforcer.ReasonState,
}

// classify wraps an error with its reason, unless it has one.
func classify(err error) error {
	return enforcer.Classify(err, reasonOf)
}

// WorkloadError is a failure that is about the keys of one workload, while the store itself answers: a key of another
// type, a script that fails over what it finds, a reply that cannot be read. All other failures of a Table may befall
// every workload.
type WorkloadError struct{ Err error }

func (e *WorkloadError) Error() string { return e.Err.Error() }
func (e *WorkloadError) Unwrap() error { return e.Err }

// OfWorkload is how the controller knows it.
func (e *WorkloadError) OfWorkload() bool { return true }

// ofWorkload marks an error of a script over the keys of one workload, if it is about these. A reply that the client
// cannot parse is about the connection.
func ofWorkload(err error) error {
	switch reasonOf(err) {
	case enforcer.ReasonState, enforcer.ReasonScript:
		return &WorkloadError{err}
	case enforcer.ReasonReply:
		if errors.Is(err, errReply) {
			return &WorkloadError{err}
		}
	default:
	}
	return err
}

// reasonOf tells the kind of a failure. A caller that hung up is ReasonOther: that is no verdict on Redis.
func reasonOf(err error) enforcer.Reason {
	var known *enforcer.StoreError
	var reply redis.Error
	switch {
	case errors.As(err, &known):
		return known.Reason
	case errors.Is(err, context.Canceled):
		return enforcer.ReasonOther
	case errors.Is(err, errState):
		return enforcer.ReasonState
	case errors.Is(err, errReply), errors.Is(err, redis.Nil):
		return enforcer.ReasonReply
	case errors.As(err, &reply):
		return reasonOfReply(reply.Error())
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return enforcer.ReasonClients
	case errors.Is(err, redis.ErrClosed):
		return enforcer.ReasonReset
	}
	if known := enforcer.NetworkReason(err); known != enforcer.ReasonOther {
		return known
	}
	// What go-redis cannot read is an error without a type.
	if strings.Contains(err.Error(), "redis: can't parse") || strings.Contains(err.Error(), "redis: invalid") {
		return enforcer.ReasonReply
	}
	return enforcer.ReasonOther
}

func reasonOfReply(text string) enforcer.Reason {
	code, _, _ := strings.Cut(text, " ")
	if reason, ok := reasonOfCode[code]; ok {
		return reason
	}
	// Before 7.0 a script's error is "ERR Error running script (call to f_…): @user_script:7: -OOM command not …".
	if _, inner, ok := strings.Cut(text, ": -"); ok {
		code, _, _ := strings.Cut(inner, " ")
		if reason, ok := reasonOfCode[code]; ok {
			return reason
		}
	}
	switch {
	case strings.Contains(text, "max number of clients"):
		return enforcer.ReasonClients
	case strings.Contains(text, "can't run this command"), strings.Contains(text, "ACL failure"),
		strings.Contains(text, "No permissions"):
		return enforcer.ReasonAuth
	case strings.Contains(text, "script"):
		return enforcer.ReasonScript
	case strings.HasPrefix(text, "ERR Protocol error"):
		return enforcer.ReasonReply
	}
	return enforcer.ReasonOther
}
