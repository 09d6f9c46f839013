package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// request is what one client sends; the replicas take turns.
type request struct {
	method, path, apiKey string
}

// tally is what the clients saw: status codes, who decided, and the slowest decision as the application measured it.
type tally struct {
	sent     int
	statuses map[int]int
	sources  map[string]int
	slowest  time.Duration
	failed   int
	failure  error
}

func (t *tally) admitted() int { return t.statuses[http.StatusOK] + t.statuses[http.StatusAccepted] }

func (t *tally) add(o tally) {
	t.sent += o.sent
	t.failed += o.failed
	if t.failure == nil {
		t.failure = o.failure
	}
	for code, n := range o.statuses {
		t.statuses[code] += n
	}
	for source, n := range o.sources {
		t.sources[source] += n
	}
	t.slowest = max(t.slowest, o.slowest)
}

func newTally() tally { return tally{statuses: map[int]int{}, sources: map[string]int{}} }

// load sends n requests from as many clients at once, round robin over the addresses.
func load(ctx context.Context, addresses []string, n int, r request) tally {
	const clients = 64 // at once; each has its own connection
	var next atomic.Int64
	results := make(chan tally, clients)
	var wg sync.WaitGroup
	for range min(clients, n) {
		wg.Go(func() {
			mine := newTally()
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				mine.send(ctx, addresses[i%int64(len(addresses))], r)
			}
			results <- mine
		})
	}
	wg.Wait()
	close(results)
	total := newTally()
	for t := range results {
		total.add(t)
	}
	return total
}

// loadUntil keeps sending at a steady pace until stop is closed; the pace is per second over all addresses.
func loadUntil(ctx context.Context, addresses []string, pace int, r request, stop <-chan struct{}) tally {
	ticker := time.NewTicker(time.Second / time.Duration(pace))
	defer ticker.Stop()
	results := make(chan tally)
	total := newTally()
	running := 0
	for i := 0; ; i++ {
		select {
		case <-ticker.C:
			running++
			go func() {
				mine := newTally()
				mine.send(ctx, addresses[i%len(addresses)], r)
				results <- mine
			}()
		case t := <-results:
			running--
			total.add(t)
			continue
		case <-stop:
			for ; running > 0; running-- {
				total.add(<-results)
			}
			return total
		}
	}
}

var client = &http.Client{
	Timeout:   5 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64},
}

func (t *tally) send(ctx context.Context, address string, r request) {
	t.sent++
	status, header, err := do(ctx, address, r)
	if err != nil {
		t.failed++
		if t.failure == nil {
			t.failure = err
		}
		return
	}
	t.statuses[status]++
	t.sources[header.Get("X-Decision-Source")]++
	if us, err := strconv.ParseInt(header.Get("X-Decision-Micros"), 10, 64); err == nil {
		t.slowest = max(t.slowest, time.Duration(us)*time.Microsecond)
	}
}

func do(ctx context.Context, address string, r request) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+address+r.path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("X-Api-Key", r.apiKey)
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, nil, fmt.Errorf("reading the answer of %s: %w", address, err)
	}
	return resp.StatusCode, resp.Header, nil
}
