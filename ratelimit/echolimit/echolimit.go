// Package echolimit puts a ratelimit.Limiter before the routes of github.com/labstack/echo. It is a module of its own,
// so that only applications that use echo get it.
//
//	e := echo.New()
//	e.Use(echolimit.Middleware(limiter))
package echolimit

import (
	"github.com/labstack/echo/v5"

	"github.com/weir-dev/weir/ratelimit"
)

// Middleware limits the requests that come through it, in Use, in a group or before one handler. Those that are denied
// are answered as [ratelimit.Limiter.Middleware] does; echo's error handler does not see them.
//
// The route of a request is echo's path: /users/:id is the route /users/{id} of policies. Requests that echo finds no
// route for have none, so that only rules without a route count them. In Pre echo has not routed yet, and rules with a
// route compare it with the path.
func Middleware(l *ratelimit.Limiter) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			r, ok := l.Admit(c.Response(), c.Request(), route(c))
			if !ok {
				return nil
			}
			c.SetRequest(r)
			return next(c)
		}
	}
}

func route(c *echo.Context) string {
	switch c.RouteInfo().Name {
	case echo.NotFoundRouteName, echo.MethodNotAllowedRouteName:
		return ratelimit.NoRoute
	}
	return ratelimit.ColonRoute(c.Path())
}
