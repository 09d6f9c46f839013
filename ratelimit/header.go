package ratelimit

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// SetHeader writes into the header of a response what the client should know of the decision, for applications that
// answer without Middleware: Retry-After, and the fields of draft-ietf-httpapi-ratelimit-headers-11, which are lists of RFC 9651:
//
//	RateLimit-Policy: "checkout/exports";q=5;w=60
//	RateLimit: "checkout/exports";r=0;t=40
//
// t is the time in seconds until there is more than r: RetryAfter of a denial, MoreAfter of an admission, and absent
// where that is 0.
func (d *Decision) SetHeader(h http.Header) { d.setHeader(h, d.RetryAfter) }

func (d *Decision) setHeader(h http.Header, retryAfter time.Duration) {
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(retryAfter), 10))
	}
	if d.Window == 0 {
		return
	}
	b := make([]byte, 0, 128)
	b = d.appendName(b)
	name := len(b)

	b = append(b, ";q="...)
	b = strconv.AppendInt(b, d.Limit, 10)
	if d.Window%time.Second == 0 { // w is a whole number of seconds, or nothing
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, int64(d.Window/time.Second), 10)
	}
	h["Ratelimit-Policy"] = []string{string(b)}

	b = append(b[:name], ";r="...)
	b = strconv.AppendInt(b, d.Remaining, 10)
	if more := d.more(); more > 0 {
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, seconds(more), 10)
	}
	h["Ratelimit"] = []string{string(b)}
}

// more is when there is more than what remains.
func (d *Decision) more() time.Duration {
	if d.Allowed {
		return d.MoreAfter
	}
	return d.RetryAfter
}

// reset is when all is there again or, of a denial, when it is worth to come back.
func (d *Decision) reset() time.Duration {
	if d.Allowed {
		return d.ResetAfter
	}
	return d.RetryAfter
}

// writeHeader is SetHeader with what the options add.
func (l *Limiter) writeHeader(h http.Header, r *http.Request, d *Decision) {
	retryAfter := d.RetryAfter
	if l.options.RetryJitter > 0 && retryAfter > 0 {
		retryAfter += rand.N(l.options.RetryJitter + 1)
	}
	d.setHeader(h, retryAfter)
	if l.options.LegacyHeaders && d.Window > 0 {
		d.setLegacyHeader(h, l.enforcer.StoreTime())
	}
	if l.options.ExposeHeaders && r.Header.Get("Origin") != "" {
		h.Add("Access-Control-Expose-Headers", exposed)
	}
}

const exposed = "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"

// resetSlack is by how much the store's time as this process knows it may be late: the end of a window, which is a whole
// second, is the same one for every request in the window.
const resetSlack = 100 * time.Millisecond

// setLegacyHeader writes X-RateLimit-Limit, -Remaining and -Reset. The last is Unix time by the store's clock, so that it
// stands while a window lasts, whichever replica answers.
func (d *Decision) setLegacyHeader(h http.Header, now time.Time) {
	h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(d.Limit, 10)}
	h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(d.Remaining, 10)}
	if reset := d.reset(); reset > 0 {
		at := now.Add(reset - resetSlack)
		unix := at.Unix()
		if at.Nanosecond() > 0 {
			unix++
		}
		h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(unix, 10)}
	}
}

// appendName appends the name of what limits, as a string of RFC 9651.
func (d *Decision) appendName(b []byte) []byte {
	b = append(b, '"')
	for _, name := range [...]string{d.Policy, "/", d.Rule} {
		for i := range len(name) {
			switch c := name[i]; {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c < ' ' || c > '~': // no name of Kubernetes has one
				b = append(b, '?')
			default:
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

// seconds rounds up: a client that comes back after so many is not too early.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// problem is a document of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

// WriteProblem answers a request that was denied: with the decision's status and a problem document of RFC 9457, which
// names the policy that is violated as the header does. SetHeader comes first.
func (d *Decision) WriteProblem(w http.ResponseWriter) {
	p := problem{Status: d.Status}
	switch d.Status {
	case http.StatusTooManyRequests:
		p.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		p.Title = "Request cannot be satisfied as assigned quota has been exceeded"
		p.Violated = []string{d.Policy + "/" + d.Rule}
	case http.StatusServiceUnavailable:
		p.Type = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
		p.Title = "Request cannot be satisfied due to temporary server capacity constraints"
	default:
		p.Type = "about:blank"
		p.Title = "Request lacks what its rate limit is counted by"
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte("{}") // strings and numbers always encode
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(d.Status)
	_, _ = w.Write(body) // a client that is gone does not read it
}
