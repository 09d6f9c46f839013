package echolimit_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/weir-dev/weir/internal/adaptertest"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/echolimit"
)

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	return e
}

// router is an Echo or one of its groups.
type router interface {
	Add(method, path string, handler echo.HandlerFunc, middleware ...echo.MiddlewareFunc) echo.RouteInfo
}

// serve registers the routes as echo writes them.
func serve(r router, routes []adaptertest.Route, before ...echo.MiddlewareFunc) {
	for _, route := range routes {
		path := strings.NewReplacer("{path...}", "*", "{$}", "", "{id}", ":id").Replace(route.Path)
		r.Add(route.Method, path, echo.WrapHandler(route.Handler), before...)
	}
}

func TestEcho(t *testing.T) {
	adaptertest.Run(t, map[string]adaptertest.Mount{
		"Use": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			e := newEcho()
			e.Use(echolimit.Middleware(l))
			serve(e, routes)
			return e
		}},
		"Pre": {ByPath: true, New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			e := newEcho()
			e.Pre(echolimit.Middleware(l))
			serve(e, routes)
			return e
		}},
		"a group": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			e := newEcho()
			serve(e.Group("", echolimit.Middleware(l)), routes)
			return e
		}},
		"before a handler": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			e := newEcho()
			serve(e, routes, echolimit.Middleware(l))
			return e
		}},
	})
}
