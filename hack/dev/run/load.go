package run

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

// Request is what one client sends.
type Request struct {
	Method, Path, APIKey string
}

// Tally is what the clients saw. Its maps are never nil.
type Tally struct {
	Sent int
	// Statuses counts answers by status code, Sources by who decided.
	Statuses map[int]int
	Sources  map[string]int
	// Slowest is the slowest decision as the application measured it, without HTTP.
	Slowest time.Duration
	// Failed counts requests without an answer; Failure is why the first of them had none.
	Failed  int
	Failure error
}

// NewTally returns an empty one.
func NewTally() Tally { return Tally{Statuses: map[int]int{}, Sources: map[string]int{}} }

// Admitted counts the answers with 200 and 202.
func (t *Tally) Admitted() int { return t.Statuses[http.StatusOK] + t.Statuses[http.StatusAccepted] }

// Add adds what other clients saw.
func (t *Tally) Add(o Tally) {
	t.Sent += o.Sent
	t.Failed += o.Failed
	if t.Failure == nil {
		t.Failure = o.Failure
	}
	for code, n := range o.Statuses {
		t.Statuses[code] += n
	}
	for source, n := range o.Sources {
		t.Sources[source] += n
	}
	t.Slowest = max(t.Slowest, o.Slowest)
}

// Load sends n requests from as many clients at once, round robin over the addresses.
func Load(ctx context.Context, addresses []string, n int, r Request) Tally {
	const clients = 64 // at once; each has its own connection
	var next atomic.Int64
	results := make(chan Tally, clients)
	var wg sync.WaitGroup
	for range min(clients, n) {
		wg.Go(func() {
			mine := NewTally()
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				mine.send(ctx, addresses[i%int64(len(addresses))], r)
			}
			results <- mine
		})
	}
	wg.Wait()
	close(results)
	total := NewTally()
	for t := range results {
		total.Add(t)
	}
	return total
}

// LoadUntil keeps sending at a steady pace until stop is closed; the pace is per second over all addresses.
func LoadUntil(ctx context.Context, addresses []string, pace int, r Request, stop <-chan struct{}) Tally {
	ticker := time.NewTicker(time.Second / time.Duration(pace))
	defer ticker.Stop()
	results := make(chan Tally)
	total := NewTally()
	running := 0
	for i := 0; ; i++ {
		select {
		case <-ticker.C:
			running++
			go func() {
				mine := NewTally()
				mine.send(ctx, addresses[i%len(addresses)], r)
				results <- mine
			}()
		case t := <-results:
			running--
			total.Add(t)
			continue
		case <-stop:
			for ; running > 0; running-- {
				total.Add(<-results)
			}
			return total
		}
	}
}

var client = &http.Client{
	Timeout:   5 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64},
}

func (t *Tally) send(ctx context.Context, address string, r Request) {
	t.Sent++
	status, header, err := Do(ctx, address, r)
	if err != nil {
		t.Failed++
		if t.Failure == nil {
			t.Failure = err
		}
		return
	}
	t.Statuses[status]++
	t.Sources[header.Get("X-Weir-Source")]++
	if us, err := strconv.ParseInt(header.Get("X-Weir-Decision-Us"), 10, 64); err == nil {
		t.Slowest = max(t.Slowest, time.Duration(us)*time.Microsecond)
	}
}

// Do sends one request and gives status and header of the answer.
func Do(ctx context.Context, address string, r Request) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, "http://"+address+r.Path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("X-Api-Key", r.APIKey)
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

// Get asks one replica and gives status and body of the answer.
func Get(ctx context.Context, address, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", fmt.Errorf("making a request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", fmt.Errorf("reading the answer of %s: %w", address, err)
	}
	return resp.StatusCode, string(body), nil
}
