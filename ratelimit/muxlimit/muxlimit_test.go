package muxlimit_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/mux"

	"github.com/weir-dev/weir/internal/adaptertest"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/muxlimit"
)

// serve registers the routes as gorilla/mux writes them. Of several that match it takes the first.
func serve(r *mux.Router, routes []adaptertest.Route) *mux.Router {
	for _, parameters := range []bool{false, true} {
		for _, route := range routes {
			path := strings.NewReplacer("{path...}", "{path:.*}", "{$}", "").Replace(route.Path)
			if strings.Contains(path, "{") == parameters {
				r.Handle(path, route.Handler).Methods(route.Method)
			}
		}
	}
	return r
}

func TestMux(t *testing.T) {
	adaptertest.Run(t, map[string]adaptertest.Mount{
		"Use": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := serve(mux.NewRouter(), routes)
			r.Use(muxlimit.Middleware(l))
			return r
		}},
		"Use, with escaped paths": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := serve(mux.NewRouter().UseEncodedPath().SkipClean(true), routes)
			r.Use(muxlimit.Middleware(l))
			return r
		}},
		"Use of a subrouter": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := mux.NewRouter()
			inner := serve(r.NewRoute().Subrouter(), routes)
			inner.Use(muxlimit.Middleware(l))
			return r
		}},
		"around a router": {ByPath: true, New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			return muxlimit.Middleware(l)(serve(mux.NewRouter(), routes))
		}},
	})
}
