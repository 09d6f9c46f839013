package ratelimit

import (
	"context"
	"net/http"
)

// Middleware limits the requests that next serves. Those that are denied get a status, headers and a problem document,
// and do not reach next; the others get the headers and do.
//
// It may stand anywhere. Around an http.ServeMux it asks the mux which pattern serves a request, and behind one it
// reads the pattern from the request. Where no pattern is known, rules with a route compare it with the path. For other
// routers see the packages ratelimit/chilimit, ginlimit, echolimit and muxlimit.
func (l *Limiter) Middleware(next http.Handler) http.Handler {
	mux, _ := next.(*http.ServeMux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route := r.Pattern
		if mux != nil {
			route = MuxRoute(mux, r)
		}
		if r, ok := l.Admit(w, r, route); ok {
			next.ServeHTTP(w, r)
		}
	})
}

// Admit is what Middleware does with one request, for routers that have middleware of their own: it decides, writes the
// headers of the response, and if the request is denied, answers it and returns false. If it returns true, the router
// goes on with the request that it returns. The route is Request.Route.
func (l *Limiter) Admit(w http.ResponseWriter, r *http.Request, route string) (*http.Request, bool) {
	request := l.request(r, route)
	var d Decision
	if l.options.Reserve != nil && l.options.Reserve(r) {
		reservation := l.Reserve(r.Context(), request)
		d = reservation.Decision
		r = r.WithContext(context.WithValue(r.Context(), reservationKey{}, reservation))
	} else {
		d = l.Decide(r.Context(), request)
	}
	if l.options.OnDecision != nil {
		l.options.OnDecision(w, r, d)
	}
	l.writeHeader(w.Header(), r, &d)
	switch {
	case d.Allowed:
	case l.options.Respond != nil:
		l.options.Respond(w, r, d)
	default:
		d.WriteProblem(w)
	}
	return r, d.Allowed
}

// request reads a request of HTTP. The application knows its route better than the router.
func (l *Limiter) request(r *http.Request, route string) Request {
	if l.options.Route != nil {
		if own := l.options.Route(r); own != "" {
			route = own
		}
	}
	out := Request{
		Method: r.Method,
		Host:   r.Host,
		Route:  route,
		Path:   r.URL.EscapedPath(),
		Header: r.Header,
		Remote: r.RemoteAddr,
	}
	if l.options.Attributes != nil {
		out.Attributes = l.options.Attributes(r)
	}
	return out
}
