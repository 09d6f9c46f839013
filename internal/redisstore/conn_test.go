package redisstore

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// connected returns both ends of a connection whose near end is made by lookFirst.
func connected(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := lookFirst(func(ctx context.Context, network, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	if near, err = dial(t.Context(), "tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return near, far
}

// A process that slept through the deadline finds the answer that came meanwhile.
func TestAnAnswerThatIsThereIsRead(t *testing.T) {
	near, far := connected(t)
	if _, err := far.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := near.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	n, err := near.Read(b)
	if err != nil || string(b[:n]) != "answer" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}

func TestASilentServerIsNotWaitedFor(t *testing.T) {
	near, _ := connected(t)
	for _, deadline := range []time.Time{time.Now().Add(-time.Second), time.Now().Add(time.Millisecond)} {
		if err := near.SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		if n, err := near.Read(make([]byte, 16)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes, %v, want a deadline", n, err)
		}
	}
}

// The driver finds out through it whether an idle connection was closed by the server.
func TestPlainConnectionsShowTheirSocket(t *testing.T) {
	near, _ := connected(t)
	raw, ok := near.(syscall.Conn)
	if !ok {
		t.Fatalf("%T hides its socket", near)
	}
	if _, err := raw.SyscallConn(); err != nil {
		t.Error(err)
	}
}
