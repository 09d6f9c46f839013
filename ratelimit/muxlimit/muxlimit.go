// Package muxlimit puts a ratelimit.Limiter before the routes of github.com/gorilla/mux. It is a module of its own, so
// that only applications that use gorilla/mux get it.
//
//	router := mux.NewRouter()
//	router.Use(muxlimit.Middleware(limiter))
package muxlimit

import (
	"net/http"
	"strings"
	"sync"

	"github.com/gorilla/mux"

	"github.com/weir-dev/weir/ratelimit"
)

// Middleware limits the requests that come through it, in Use of a router or a subrouter, or around one. Those that are
// denied are answered as [ratelimit.Limiter.Middleware] does.
//
// The route of a request is the path template of the router: /users/{id:[0-9]+} is the route /users/{id} of policies,
// and PathPrefix("/static") is /static/. Around a router the template is not known yet, and rules with a route compare
// it with the path. The router runs no middleware for what it finds no route for.
func Middleware(l *ratelimit.Limiter) mux.MiddlewareFunc {
	var known routes
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r, ok := l.Admit(w, r, known.of(mux.CurrentRoute(r))); ok {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// routes are the templates of the router's routes.
type routes struct{ sync.Map }

func (k *routes) of(r *mux.Route) string {
	if r == nil {
		return ""
	}
	if route, ok := k.Load(r); ok {
		return route.(string) //nolint:errcheck // nothing else is stored
	}
	route := template(r)
	k.Store(r, route)
	return route
}

// template is the route of a mux.Route, empty if it has no path.
func template(r *mux.Route) string {
	path, err := r.GetPathTemplate()
	if err != nil {
		return ""
	}
	route := ratelimit.BraceRoute(path)
	// What the router matches to its end has an end in its expression; a prefix has none.
	if exact, err := r.GetPathRegexp(); err == nil && !strings.HasSuffix(exact, "$") && !strings.HasSuffix(route, "/") {
		route += "/"
	}
	return route
}
