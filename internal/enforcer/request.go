package enforcer

import (
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// Request is what a decision reads of a request. ratelimit.Request has the same fields.
type Request = policy.Request

// Decision is what was decided. ratelimit.Decision has the same fields.
type Decision struct {
	Allowed    bool
	Status     int
	Policy     string
	Rule       string
	Limit      int64
	Window     time.Duration
	Remaining  int64
	RetryAfter time.Duration
	ResetAfter time.Duration
	MoreAfter  time.Duration
	Source     string
	Cause      string
}

// Sources of a decision, as metrics name them.
const (
	SourceStore      = "Store"
	SourceLease      = "Lease"
	SourceDenyCache  = "DenyCache"
	SourcePrefilter  = "Prefilter"
	SourceLocalShare = "LocalShare"
	SourceFailOpen   = "FailOpen"
	SourceFailClosed = "FailClosed"
	SourceExempt     = "Exempt"
	SourceNoRule     = "NoRule"
	SourceKeyMissing = "KeyMissing"
	SourceCanceled   = "Canceled"
)
