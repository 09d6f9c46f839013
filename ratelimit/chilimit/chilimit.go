// Package chilimit puts a ratelimit.Limiter before the routes of github.com/go-chi/chi. It is a module of its own, so
// that only applications that use chi get it.
//
//	router := chi.NewRouter()
//	router.Use(chilimit.Middleware(limiter))
package chilimit

import (
	"net/http"
	"sync"

	"github.com/go-chi/chi/v5"

	"github.com/weir-dev/weir/ratelimit"
)

// Middleware limits the requests that come through it, in Use, With, Group or Route. Those that are denied are answered
// as [ratelimit.Limiter.Middleware] does.
//
// The route of a request is chi's pattern, also in Use, where chi has not routed yet: /users/{id:[0-9]+} is the route
// /users/{id} of policies. Middleware behind this one that changes the path or the method, such as StripSlashes or
// GetHead, should stand before it. What chi finds no pattern for is compared by its path, since something behind may
// still serve it.
func Middleware(l *ratelimit.Limiter) func(http.Handler) http.Handler {
	var known routes
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r, ok := l.Admit(w, r, known.of(pattern(r))); ok {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// pattern is that of the endpoint that chi is going to serve the request by.
func pattern(r *http.Request) string {
	c := chi.RouteContext(r.Context())
	if c == nil {
		return ""
	}
	method := c.RouteMethod
	if method == "" {
		method = r.Method
	}
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	if len(c.RoutePatterns) == 0 && c.RoutePath != "" {
		path = c.RoutePath // as a middleware has changed it
	}
	if c.Routes == nil {
		return c.RoutePattern()
	}
	if found := c.Routes.Find(chi.NewRouteContext(), method, path); found != "" {
		return found
	}
	return c.RoutePattern()
}

// routes are the templates of patterns: as many as the router has.
type routes struct{ sync.Map }

func (k *routes) of(pattern string) string {
	if pattern == "" {
		return ""
	}
	if route, ok := k.Load(pattern); ok {
		return route.(string) //nolint:errcheck // nothing else is stored
	}
	route := ratelimit.BraceRoute(pattern)
	k.Store(pattern, route)
	return route
}
