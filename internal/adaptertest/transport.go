package adaptertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/ratelimit"
)

// discard is for a server whose handlers panic.
var discard = log.New(io.Discard, "", 0)

const plenty = `
  rules: [{name: all, limits: [{requests: 3, window: 1h}]}]
`

func testBodies(t *testing.T, m Mount) {
	w := start(t, m, plenty, []Route{{Method: http.MethodPost, Path: "/echo", Handler: http.HandlerFunc(
		func(out http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || int64(len(body)) != r.ContentLength {
				out.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = out.Write(body)
		})}})
	large := strings.Repeat("0123456789abcdef", 1<<14)
	for _, body := range []string{"x", large} {
		r := w.send(http.MethodPost, "/echo", body)
		w.want("status", r.status, http.StatusOK)
		if r.body != body {
			t.Errorf("a body of %d bytes came back as one of %d", len(body), len(r.body))
		}
	}
	w.want("status", w.send(http.MethodPost, "/echo", "x").status, http.StatusOK)
	// A client that waits for a sign to send its body is told that there is no need to.
	r := w.send(http.MethodPost, "/echo", "", "Content-Length", "1000000", "Expect", "100-continue")
	w.want("status over the limit", r.status, http.StatusTooManyRequests)
}

func testStreaming(t *testing.T, m Mount) {
	proceed := make(chan struct{})
	w := start(t, m, plenty, []Route{{Method: http.MethodGet, Path: "/stream", Handler: http.HandlerFunc(
		func(out http.ResponseWriter, r *http.Request) {
			flush := http.NewResponseController(out)
			if err := flush.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				fmt.Fprintf(out, "no write deadline: %v\n", err)
			}
			for i := range 3 {
				fmt.Fprintf(out, "part %d\n", i)
				if err := flush.Flush(); err != nil {
					fmt.Fprintf(out, "no flush: %v\n", err)
				}
				if f, ok := out.(http.Flusher); ok {
					f.Flush()
				}
				select {
				case <-proceed:
				case <-r.Context().Done():
					return
				}
			}
		})}})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	w.want("RateLimit", r.Header.Get("RateLimit"), `"checkout/all";r=2;t=1200`)
	lines := bufio.NewReader(r.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf("part %d\n", i); line != want || err != nil {
			t.Fatalf("read %q, %v, want %q before the handler goes on", line, err, want)
		}
		proceed <- struct{}{}
	}
}

func testUpgrades(t *testing.T, m Mount) {
	w := start(t, m, `
  rules: [{name: sockets, limits: [{requests: 1, window: 1h}]}]
`, []Route{{Method: http.MethodGet, Path: "/socket", Handler: http.HandlerFunc(
		func(out http.ResponseWriter, _ *http.Request) {
			conn, both, err := http.NewResponseController(out).Hijack()
			if err != nil {
				http.Error(out, err.Error(), http.StatusInternalServerError)
				return
			}
			defer conn.Close()
			_, _ = both.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = both.Flush()
			line, err := both.ReadString('\n')
			if err == nil {
				_, _ = both.WriteString(strings.ToUpper(line))
				_ = both.Flush()
			}
		})}})
	conn := w.dial()
	defer conn.Close()
	const upgrade = "GET /socket HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	if _, err := io.WriteString(conn, upgrade); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	w.want("status", r.StatusCode, http.StatusSwitchingProtocols)
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	line, err := in.ReadString('\n')
	if line != "HELLO\n" || err != nil {
		t.Errorf("the connection answers %q, %v", line, err)
	}
	w.want("status over the limit", w.send(http.MethodGet, "/socket", "", "Upgrade", "echo").status, http.StatusTooManyRequests)
}

// testPanic: a handler that panics is a request that was made. The router or the server ends it as it would without a
// limiter, and the next one is served.
func testPanic(t *testing.T, m Mount) {
	w := start(t, m, plenty, []Route{
		{Method: http.MethodGet, Path: "/panic", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			panic("a handler's mistake")
		})},
		{Method: http.MethodGet, Path: "/calm"},
	})
	if r := w.send(http.MethodGet, "/panic", ""); r.status != 0 && r.status != http.StatusInternalServerError {
		t.Errorf("status %d of a handler that panicked", r.status)
	}
	w.want("status of the next request", w.send(http.MethodGet, "/calm", "").status, http.StatusOK)
	w.want("remaining", w.remaining(ratelimit.Request{Method: http.MethodGet}), int64(1))
}

// testGone: the handler hears that its client hung up.
func testGone(t *testing.T, m Mount) {
	reached, ended := make(chan struct{}), make(chan error, 1)
	w := start(t, m, plenty, []Route{{Method: http.MethodGet, Path: "/slow", Handler: http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			close(reached)
			<-r.Context().Done()
			ended <- r.Context().Err()
		})}})
	ctx, hangUp := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+"/slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-reached
		hangUp()
	}()
	if r, err := w.server.Client().Do(request); err == nil {
		_ = r.Body.Close()
		t.Error("a request that was given up was answered")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v", err)
	}
}
