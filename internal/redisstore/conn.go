package redisstore

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// overslept is by how much a deadline must be exceeded for the process itself to be suspected.
	overslept = time.Millisecond
	// grace is how much longer such a process looks for the answer.
	grace = 2500 * time.Microsecond
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// lookFirst makes connections that look for the answer before they say that a deadline has passed, if the process slept
// through it: a pod that got no processor is not a server that does not answer.
func lookFirst(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		looking := &lookingConn{Conn: conn}
		// The driver asks a plain connection whether it is still alive; one with TLS has no such method.
		if raw, ok := conn.(syscall.Conn); ok {
			return &rawLookingConn{looking, raw}, nil
		}
		return looking, nil
	}
}

// lookingConn is used by one goroutine at a time, as the driver does.
type lookingConn struct {
	net.Conn
	deadline time.Time // of reads
}

type rawLookingConn struct {
	*lookingConn
	syscall.Conn
}

func (c *lookingConn) SetDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetDeadline(t)
}

func (c *lookingConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *lookingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	now := time.Now()
	if now.Sub(c.deadline) <= overslept || c.Conn.SetReadDeadline(now.Add(grace)) != nil {
		return n, err
	}
	return c.Conn.Read(b)
}
