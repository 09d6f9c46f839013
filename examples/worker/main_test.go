package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// partner counts what it gets, and refuses what is over its quota of 10 a second and 2 at once.
type partner struct {
	mu    sync.Mutex
	first time.Time
	n     int
	over  int
}

func (p *partner) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n++; p.n == 1 {
		p.first = time.Now()
	}
	// Two at once and then one every 100 ms; a clock of its own may see the first one a moment late.
	if allowed := 2 + int((time.Since(p.first)+30*time.Millisecond)/(100*time.Millisecond)); p.n > allowed {
		p.over++
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

func TestWorkerStaysUnderTheQuota(t *testing.T) {
	p := new(partner)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	var orders, out strings.Builder
	for i := range 12 {
		fmt.Fprintf(&orders, "order-%d\n", i)
	}
	began := time.Now()
	err := run(t.Context(), settings{partner: server.URL, policies: "policy.yaml", senders: 4}, strings.NewReader(orders.String()), &out)
	if err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("12 orders took %v: 2 at once and 10 a second need a second", took)
	}
	if n := strings.Count(out.String(), " sent, after "); n != 12 || p.n != 12 || p.over != 0 {
		t.Errorf("%d sent; the partner got %d, %d of them over its quota:\n%s", n, p.n, p.over, out.String())
	}
}

func TestWorkerTellsWhatItCannotSend(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	var out strings.Builder
	err := run(t.Context(), settings{partner: server.URL, policies: "policy.yaml", senders: 1}, strings.NewReader("order-1\n"), &out)
	if err == nil || !strings.Contains(err.Error(), "order order-1: the partner says 404 Not Found") {
		t.Errorf("error %v", err)
	}
	if err := run(t.Context(), settings{policies: "none.yaml"}, strings.NewReader(""), &out); err == nil {
		t.Error("a worker without policies ran")
	}
}
