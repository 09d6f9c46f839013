package ratelimit

import (
	"net/http"
	"reflect"

	"github.com/weir-dev/weir/internal/policy"
)

// Middleware limits the requests that next serves. Those that are denied get a status, headers and a problem document,
// and do not reach next; the others get the headers and do.
//
// It may stand anywhere. Around an http.ServeMux it asks the mux which pattern serves a request, and behind one it
// reads the pattern from the request. Where no pattern is known, rules with a route compare it with the path.
func (l *Limiter) Middleware(next http.Handler) http.Handler {
	mux, _ := next.(*http.ServeMux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := l.Decide(r.Context(), l.request(r, mux))
		if l.options.OnDecision != nil {
			l.options.OnDecision(w, r, d)
		}
		d.SetHeader(w.Header())
		if !d.Allowed {
			d.writeProblem(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (l *Limiter) request(r *http.Request, mux *http.ServeMux) Request {
	out := Request{
		Method: r.Method,
		Host:   r.Host,
		Route:  l.route(r, mux),
		Path:   r.URL.EscapedPath(),
		Header: r.Header,
		Remote: r.RemoteAddr,
	}
	if l.options.Attributes != nil {
		out.Attributes = l.options.Attributes(r)
	}
	return out
}

func (l *Limiter) route(r *http.Request, mux *http.ServeMux) string {
	if l.options.Route != nil {
		if route := l.options.Route(r); route != "" {
			return route
		}
	}
	if mux == nil {
		return r.Pattern
	}
	return MuxRoute(mux, r)
}

// MuxRoute returns the Route of a request that mux is going to serve: the pattern, or NoRoute where the mux redirects
// or refuses the request.
func MuxRoute(mux *http.ServeMux, r *http.Request) string {
	handler, pattern := mux.Handler(r)
	if pattern == "" {
		return NoRoute
	}
	// A mux redirects paths that are not clean or lack a slash at the end, and names the pattern that would serve the
	// other path. That handler does not serve this request.
	if reflect.TypeOf(handler) == redirect && !policy.Serves(pattern, r.URL.EscapedPath()) {
		return NoRoute
	}
	return pattern
}

var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusMovedPermanently))
