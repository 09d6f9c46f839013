package chilimit_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/weir-dev/weir/internal/adaptertest"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/chilimit"
)

// serve registers the routes as chi writes them.
func serve(r chi.Router, routes []adaptertest.Route) {
	for _, route := range routes {
		path := strings.NewReplacer("{path...}", "*", "{$}", "", "{id}", "{id:[^/]+}").Replace(route.Path)
		r.Method(route.Method, path, route.Handler)
	}
}

func TestChi(t *testing.T) {
	adaptertest.Run(t, map[string]adaptertest.Mount{
		"Use": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := chi.NewRouter()
			r.Use(chilimit.Middleware(l))
			serve(r, routes)
			return r
		}},
		"With": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := chi.NewRouter()
			serve(r.With(chilimit.Middleware(l)), routes)
			return r
		}},
		"Use of a router that is mounted": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			inner := chi.NewRouter()
			inner.Use(chilimit.Middleware(l))
			serve(inner, routes)
			r := chi.NewRouter()
			r.Mount("/", inner)
			return r
		}},
		"around a router": {ByPath: true, New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := chi.NewRouter()
			serve(r, routes)
			return chilimit.Middleware(l)(r)
		}},
	})
}
