package controller

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
)

// gate stands between a controller and Redis, and keeps the first command that has a marker in it on its way.
type gate struct {
	addr, server string
	marker       []byte
	caught       chan struct{} // closed when the command is held
	open         chan struct{} // closed when it may go on

	mu      sync.Mutex
	hold    bool // until a command is held
	answers bytes.Buffer
}

// newGate starts a gate, which lets everything through until it is armed.
func newGate(t *testing.T, server, marker string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{
		addr: listener.Addr().String(), server: server, marker: []byte(marker),
		caught: make(chan struct{}), open: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { g.serve(ctx, client) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		serving.Wait()
	})
	return g
}

// arm has the next command with the marker held.
func (g *gate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = true
}

// holds says whether this is what was waited for.
func (g *gate) holds(command []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hold || !bytes.Contains(command, g.marker) {
		return false
	}
	g.hold = false
	return true
}

// answered is what Redis said to the command, and to what came behind it.
func (g *gate) answered() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answers.String()
}

func (g *gate) serve(ctx context.Context, client net.Conn) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", g.server)
	if err != nil {
		_ = client.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	held := make(chan struct{}) // closed when this connection is the one
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		buffer := make([]byte, 1<<20)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			if g.holds(buffer[:n]) {
				close(held)
				close(g.caught)
				select {
				case <-g.open:
				case <-ctx.Done():
					return
				}
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	both.Go(func() {
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			select {
			case <-held:
				g.mu.Lock()
				g.answers.Write(buffer[:n])
				g.mu.Unlock()
			default:
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return // whoever asked is gone; the answer was noted
			}
		}
	})
	both.Wait()
}
