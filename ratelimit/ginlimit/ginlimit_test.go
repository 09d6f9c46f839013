package ginlimit_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/weir-dev/weir/internal/adaptertest"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/ginlimit"
)

func init() {
	gin.SetMode(gin.ReleaseMode)
	gin.DefaultErrorWriter = io.Discard
}

// serve registers the routes as gin writes them.
func serve(r gin.IRoutes, routes []adaptertest.Route, before ...gin.HandlerFunc) {
	for _, route := range routes {
		path := strings.NewReplacer("{path...}", "*path", "{$}", "", "{id}", ":id").Replace(route.Path)
		r.Handle(route.Method, path, append(before, gin.WrapH(route.Handler))...)
	}
}

func TestGin(t *testing.T) {
	adaptertest.Run(t, map[string]adaptertest.Mount{
		"Use": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := gin.New()
			r.Use(ginlimit.Middleware(l))
			serve(r, routes)
			return r
		}},
		"Use, behind Recovery, with escaped paths": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := gin.New()
			r.UseRawPath, r.UnescapePathValues = true, true
			r.Use(gin.Recovery(), ginlimit.Middleware(l))
			serve(r, routes)
			return r
		}},
		"Use of a group": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := gin.New()
			group := r.Group("")
			group.Use(ginlimit.Middleware(l))
			serve(group, routes)
			return r
		}},
		"before a handler": {New: func(l *ratelimit.Limiter, routes []adaptertest.Route) http.Handler {
			r := gin.New()
			serve(r, routes, ginlimit.Middleware(l))
			return r
		}},
	})
}
