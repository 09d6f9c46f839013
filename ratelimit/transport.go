package ratelimit

import "net/http"

// RoundTripper limits the requests that a client sends through next, http.DefaultTransport if nil: each waits, as Wait
// does, until it is admitted. If it cannot be, the error is a *WaitError, which http.Client wraps in a *url.Error, and
// nothing is sent.
//
// Policies read an outgoing request like an incoming one: its method, its path, its headers, and Host as the host that
// it goes to, so that {headers: [{name: Host, value: api.partner.example}]} matches all calls to a partner.
// Options.Attributes and Options.Route are asked, too. There is no client address.
func (l *Limiter) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &transport{limiter: l, next: next}
}

type transport struct {
	limiter *Limiter
	next    http.RoundTripper
}

// RoundTrip waits and sends.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	request := t.limiter.request(r, "")
	if request.Host == "" {
		request.Host = r.URL.Host
	}
	if request.Method == "" {
		request.Method = http.MethodGet
	}
	request.Remote = ""
	if _, err := t.limiter.Wait(r.Context(), request); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper does
		}
		return nil, err
	}
	return t.next.RoundTrip(r)
}

// CloseIdleConnections has http.Client.CloseIdleConnections reach the transport below.
func (t *transport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
