package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proxy stands between a client and a Redis, notes the commands that pass, and can lose replies.
type proxy struct {
	ctx    context.Context
	addr   string
	server string

	mu       sync.Mutex
	commands []string
	lose     string // the name of the command whose next reply is lost, with the connection
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ctx: t.Context(), addr: listener.Addr().String(), server: server}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(p.ctx, "tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		request, name, err := readRequest(requests)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.commands = append(p.commands, name)
		lose := p.lose == name
		if lose {
			p.lose = ""
		}
		p.mu.Unlock()
		if _, err := io.WriteString(server, request); err != nil {
			return
		}
		reply, err := readReply(replies)
		if err != nil || lose {
			return
		}
		if _, err := io.WriteString(client, reply); err != nil {
			return
		}
	}
}

// take returns the commands that passed since the last call.
func (p *proxy) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	commands := p.commands
	p.commands = nil
	return commands
}

func (p *proxy) loseReplyTo(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = command
}

// readRequest reads one command and returns its bytes and its name.
func readRequest(r *bufio.Reader) (request, name string, err error) {
	head, err := r.ReadString('\n')
	if err != nil {
		return "", "", err
	}
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "*")))
	if err != nil {
		return "", "", fmt.Errorf("no command: %q", head)
	}
	request = head
	for i := range n {
		argument, err := readReply(r)
		if err != nil {
			return "", "", err
		}
		request += argument
		if i == 0 {
			_, word, _ := strings.Cut(strings.TrimSpace(argument), "\r\n")
			name = strings.ToLower(word)
		}
	}
	return request, name, nil
}

// readReply reads one reply of RESP2 or RESP3.
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return line, nil
		}
		body := make([]byte, n+2)
		if _, err := io.ReadFull(r, body); err != nil {
			return "", err
		}
		return line + string(body), nil
	case '%':
		n *= 2
		fallthrough
	case '*', '~', '>':
		for range max(n, 0) {
			item, err := readReply(r)
			if err != nil {
				return "", err
			}
			line += item
		}
	}
	return line, nil
}
