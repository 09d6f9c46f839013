package enforcer

import (
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// Skewed is a process whose wall clock is ahead.
func Skewed(ahead time.Duration) Runtime { return skewed{newProcess(), ahead} }

type skewed struct {
	*process
	ahead time.Duration
}

func (s skewed) Now() time.Time { return time.Now().Add(s.ahead) }

// IdentityOf returns the identity by which the first rule in force counts a request.
func IdentityOf(e *Enforcer, r Request) Identity {
	s := e.snapshot.Load()
	match := policy.Request{Method: r.Method, Host: r.Host, Route: r.Route, Path: r.Path, Header: r.Header}
	walk := s.matcher.Walk(&match)
	walk.Next()
	id, _, _ := s.rules[0].key.identify(&subject{request: &r, walk: &walk, hasher: e.hasher()}, nil)
	return id
}
