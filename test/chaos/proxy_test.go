package chaos

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between clients and a server, and does to their bytes what it is told.
type proxy struct {
	addr   string
	server string

	mu      sync.Mutex
	how     conduct
	changed chan struct{} // closed when how changes
	random  *rand.Rand
	open    map[net.Conn]bool
}

// conduct is how a proxy treats what passes. The zero value lets everything through.
type conduct struct {
	silent bool          // nothing passes, but connections stay open and are accepted: it passes when that ends
	delay  time.Duration // of each reply
	reset  float64       // the part of replies in whose middle the connection is reset
	refuse bool          // connections are closed, and new ones at once
}

func newProxy(t *testing.T, server string, seed uint64) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		addr: listener.Addr().String(), server: server, changed: make(chan struct{}), open: map[net.Conn]bool{},
		random: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // to be replayed
	}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(ctx, client) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		p.set(conduct{refuse: true})
		serving.Wait()
	})
	return p
}

// set changes the conduct of all connections.
func (p *proxy) set(how conduct) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.how = how
	close(p.changed)
	p.changed = make(chan struct{})
	if how.refuse {
		for conn := range p.open {
			_ = conn.Close()
		}
	}
}

func (p *proxy) now() (conduct, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.how, p.changed
}

// keep notes a connection that is open, unless connections are refused.
func (p *proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.how.refuse {
		p.open[conn] = true
	}
	return !p.how.refuse
}

func (p *proxy) forget(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	defer p.forget(client)
	if !p.keep(client) {
		return
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.server)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(ctx, client, server, false) })
	both.Go(func() { p.pump(ctx, server, client, true) })
	both.Wait()
}

// chunk is what was read at once.
type chunk struct {
	data []byte
	at   time.Time
}

// pump carries what comes from one side to the other, until one of them closes.
func (p *proxy) pump(ctx context.Context, from, to net.Conn, replies bool) {
	ctx, cancel := context.WithCancel(ctx)
	chunks := make(chan chunk, 1024)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer cancel()
		for c := range chunks {
			if !p.pass(ctx, c, from, to, replies) {
				_ = from.Close()
				_ = to.Close()
				return
			}
		}
		_ = to.Close()
	})
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case chunks <- chunk{buffer[:n], time.Now()}:
			case <-ctx.Done():
			}
		}
		if err != nil {
			break
		}
	}
	close(chunks)
	cancel() // what is held back of a closed connection goes nowhere
	writing.Wait()
}

// pass carries a chunk when it is time to, and says whether the connection goes on.
func (p *proxy) pass(ctx context.Context, c chunk, from, to net.Conn, replies bool) bool {
	for {
		how, changed := p.now()
		wait := time.Until(c.at.Add(how.delay))
		if !how.silent && (!replies || wait <= 0) {
			break
		}
		var due <-chan time.Time
		if !how.silent {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
	if replies && p.breaks() {
		_, _ = to.Write(c.data[:len(c.data)/2])
		for _, conn := range []net.Conn{from, to} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // a reset instead of an end
			}
		}
		return false
	}
	_, err := to.Write(c.data)
	return err == nil
}

// breaks says whether the connection is reset in the middle of this reply.
func (p *proxy) breaks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.how.reset > 0 && p.random.Float64() < p.how.reset
}
