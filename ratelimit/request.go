package ratelimit

import (
	"net/http"
	"time"
)

// Attributes are what the application knows of a request, by names that policies use: {"user": "17", "plan": "scale"}.
type Attributes = map[string]string

// Request is what a decision reads of a request. Middleware fills it in; applications that do not serve HTTP, or decide
// elsewhere, set what their policies read. Nothing in it is kept or changed.
type Request struct {
	// Method such as "POST". Policies with methods match no request without one.
	Method string

	// Host is the request's Host header, which Go keeps out of Header.
	Host string

	// Route is the template that serves the request, "/users/{id}"; a method and a host in front of it are ignored.
	// Empty means that it is not known: then policies compare their routes with Path. See NoRoute.
	Route string

	// Path is the escaped path, r.URL.EscapedPath(). Empty means that only Route is known.
	Path string

	// Header has canonical names, as http.Header does.
	Header http.Header

	// Remote is the peer's address, with or without a port. Behind a trusted proxy the client is found in Header's
	// X-Forwarded-For.
	Remote string

	// Attributes for keys, overrides and costs.
	Attributes Attributes
}

// Decision is what was decided. It is complete for every kind of decision; the examples are of one that denied the
// sixth request of 5 per minute, 20 s after the first.
type Decision struct {
	// Allowed says whether the request may proceed. False.
	Allowed bool

	// Status is the HTTP status to answer with: 200 if Allowed, 429 over a limit, 503 if the store is away and the rule
	// fails closed, 400 if the rule denies requests without its key.
	Status int

	// Policy and Rule name the rule that decided: "checkout", "exports". Empty if none did. If Allowed it is the rule
	// with room for the fewest more requests like this one.
	Policy string
	Rule   string

	// Limit and Window are the rule's numbers: 5 in 1 min. 0 if no limit decided.
	Limit  int64
	Window time.Duration

	// Remaining is the cost that would still be admitted now: 0.
	Remaining int64

	// RetryAfter is when a request of the same cost would be admitted, if nobody else came: 40 s for a fixed window.
	// 0 if Allowed, and also if no wait helps.
	RetryAfter time.Duration

	// ResetAfter is when all of the limit would be there again, if nobody came: 40 s.
	ResetAfter time.Duration

	// MoreAfter is when more than Remaining would be admitted, if nobody came: the next token of a bucket, the end of a fixed
	// window. 0 if nothing is missing or not Allowed, and where it is not known: with the algorithms that slide, and by
	// local shares.
	MoreAfter time.Duration

	// Source says who decided, one of the Source constants: "Store".
	Source string

	// Cause is for the log: why not the store. Empty if the store decided. It may hold addresses of the store.
	Cause string
}

// Sources of decisions.
const (
	SourceStore      = "Store"      // the counters
	SourceLease      = "Lease"      // admitted without asking: this replica had taken the request before
	SourcePrefilter  = "Prefilter"  // denied without asking: this replica has let pass as much as it may
	SourceDenyCache  = "DenyCache"  // known without asking: denied a moment ago, a limit of 0, or a cost above any limit
	SourceLocalShare = "LocalShare" // the store is away: this replica's share of the limit
	SourceFailOpen   = "FailOpen"   // the store is away, or no policies were ever read: admitted
	SourceFailClosed = "FailClosed" // the store is away, or no policies were ever read: denied
	SourceExempt     = "Exempt"     // exempt by a policy, or unlimited by an override
	SourceNoRule     = "NoRule"     // no enforced rule applies
	SourceKeyMissing = "KeyMissing" // the rule denies requests that lack its key
	SourceCanceled   = "Canceled"   // the caller's context ended before the answer
)
