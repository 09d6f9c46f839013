// Package ginlimit puts a ratelimit.Limiter before the routes of github.com/gin-gonic/gin. It is a module of its own, so
// that only applications that use gin get it.
//
//	router := gin.New()
//	router.Use(ginlimit.Middleware(limiter))
package ginlimit

import (
	"github.com/gin-gonic/gin"

	"github.com/weir-dev/weir/ratelimit"
)

// Middleware limits the requests that come through it, in Use of the engine or of a group, or before one handler. Those
// that are denied are answered as [ratelimit.Limiter.Middleware] does, and aborted.
//
// The route of a request is gin's full path: /users/:id is the route /users/{id} of policies. Requests that gin finds
// no route for have none, so that only rules without a route count them.
func Middleware(l *ratelimit.Limiter) gin.HandlerFunc {
	return func(c *gin.Context) {
		route := ratelimit.NoRoute
		if path := c.FullPath(); path != "" {
			route = ratelimit.ColonRoute(path)
		}
		r, ok := l.Admit(c.Writer, c.Request, route)
		if !ok {
			c.Abort()
			return
		}
		c.Request = r
	}
}
