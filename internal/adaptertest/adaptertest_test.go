package adaptertest_test

import (
	"net/http"
	"testing"

	"github.com/weir-dev/weir/internal/adaptertest"
	"github.com/weir-dev/weir/ratelimit"
)

func mux(routes []adaptertest.Route, wrap func(http.Handler) http.Handler) *http.ServeMux {
	m := http.NewServeMux()
	for _, r := range routes {
		m.Handle(r.Method+" "+r.Path, wrap(r.Handler))
	}
	return m
}

func same(h http.Handler) http.Handler { return h }

// The middleware of package ratelimit passes what the adapters do.
func TestServeMux(t *testing.T) {
	adaptertest.Run(t, map[string]adaptertest.Mount{
		"around the mux": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			return l.Middleware(mux(routes, same))
		}},
		"around each handler": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			return mux(routes, l.Middleware)
		}},
		"around something that has a mux": {ByPath: true, New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			return l.Middleware(http.HandlerFunc(mux(routes, same).ServeHTTP))
		}},
		"behind the prefix of another mux": {ByPath: true, New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			outer := http.NewServeMux()
			outer.Handle("/", l.Middleware(http.HandlerFunc(mux(routes, same).ServeHTTP)))
			return outer
		}},
	})
}
