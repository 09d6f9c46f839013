// Command enforcer is a replica that the chaos suite puts under load. It sends itself requests, as many and for as long
// as it is told to over HTTP, and tells of each decision who made it and how long it took.
package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/chaos"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	redis.SetLogger(quiet{})
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "enforcer: %v\n", err)
		os.Exit(1)
	}
}

// quiet drops what the Redis client logs of each connection that fails.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func run(ctx context.Context) error {
	options, err := ratelimit.OptionsFromEnv()
	if err != nil {
		return err
	}
	if options.StoreTimeout, err = time.ParseDuration(os.Getenv("STORE_TIMEOUT")); err != nil {
		return fmt.Errorf("STORE_TIMEOUT: %w", err)
	}
	options.Redis = &redis.UniversalOptions{
		Addrs:      strings.Split(os.Getenv("REDIS"), ","),
		MasterName: os.Getenv("REDIS_MASTER"),
	}
	if file := os.Getenv("REDIS_PASSWORD_FILE"); file != "" { // read for each connection
		options.Redis.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := os.ReadFile(file)
			return "", strings.TrimSpace(string(password)), err
		}
	}
	options.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var wrong *wrongClock
	if ahead := os.Getenv("CLOCK_AHEAD"); ahead != "" {
		if wrong, err = newWrongClock(ahead); err != nil {
			return err
		}
		options.Counters = counters{wrong}
	}
	limiter, err := ratelimit.New(options)
	if err != nil {
		return err
	}
	limited := make(chan error, 1)
	go func() { limited <- limiter.Run(ctx) }()
	if err := limiter.WaitReady(ctx); err != nil {
		return err
	}
	r := &replica{limiter: limiter}
	r.sending.Go(func() { r.listen(ctx) })
	listener, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "listening on %s\n", listener.Addr())
	server := &http.Server{Handler: r.handler(ctx, wrong), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	r.sending.Wait()
	return errors.Join(server.Close(), <-limited)
}

// replica sends requests to its limiter and writes down what comes of them.
type replica struct {
	limiter *ratelimit.Limiter
	sending sync.WaitGroup

	mu      sync.Mutex
	records []chaos.Record
	state   chaos.State
}

func (r *replica) handler(ctx context.Context, wrong *wrongClock) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /send", func(w http.ResponseWriter, q *http.Request) {
		every, err := time.ParseDuration(q.FormValue("every"))
		if err != nil || every <= 0 {
			http.Error(w, "every", http.StatusBadRequest)
			return
		}
		r.sending.Go(func() { r.send(ctx, q.FormValue("key"), every) })
	})
	mux.HandleFunc("POST /hurry", func(w http.ResponseWriter, q *http.Request) {
		batches, err := strconv.Atoi(q.FormValue("batches"))
		if err != nil || batches < 1 {
			http.Error(w, "batches", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, r.hurry(ctx, batches, q.FormValue("key")))
	})
	mux.HandleFunc("POST /clock", func(w http.ResponseWriter, q *http.Request) {
		if err := wrong.step(q.FormValue("by")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.state.Goroutines = runtime.NumGoroutine()
		_ = gob.NewEncoder(w).Encode(r.state) // who asked has gone
	})
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		records := r.records
		r.mu.Unlock()
		_ = gob.NewEncoder(w).Encode(records)
	})
	return mux
}

// send sends requests with a key until the process ends.
func (r *replica) send(ctx context.Context, key string, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.note(r.decide(ctx, key))
		}
	}
}

// decide sends one request.
func (r *replica) decide(ctx context.Context, key string) chaos.Record {
	request := ratelimit.Request{Method: http.MethodPost, Path: "/", Header: http.Header{"X-Api-Key": {key}}, Remote: "203.0.113.7:1"}
	began := time.Now()
	d := r.limiter.Decide(ctx, request)
	return chaos.Record{
		Key: key, Began: began.UnixMicro(), Took: int64(time.Since(began)), Allowed: d.Allowed, Source: d.Source,
		Guarded: d.Source == ratelimit.SourceLocalShare && strings.HasPrefix(d.Cause, "the store came back"),
		Limit:   d.Limit, Remaining: d.Remaining, Resets: d.ResetAfter.Microseconds(),
	}
}

func (r *replica) note(record chaos.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, record)
	if record.Source != ratelimit.SourceDenyCache && !record.Guarded {
		r.state.Asks = record.Source == ratelimit.SourceStore
	}
	if record.Limit > 0 {
		r.state.Limit = record.Limit
	}
}

// listen writes down how late the machine wakes a goroutine that waits, until the process ends.
func (r *replica) listen(ctx context.Context) {
	const wait = 5 * time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		began := time.Now()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		noise := chaos.Record{Key: chaos.KeyNoise, Began: began.UnixMicro(), Took: int64(time.Since(began) - wait)}
		r.mu.Lock()
		r.records = append(r.records, noise)
		r.mu.Unlock()
	}
}

// hurry makes so many decisions without a pause between them, in batches of a hundred, and returns how many ns each took
// in the median batch: in some of them the process has to wait for a processor.
func (r *replica) hurry(ctx context.Context, batches int, key string) int64 {
	request := ratelimit.Request{Method: http.MethodPost, Path: "/", Header: http.Header{"X-Api-Key": {key}}, Remote: "203.0.113.7:1"}
	took := make([]int64, batches)
	for i := range took {
		began := time.Now()
		for range 100 {
			r.limiter.Decide(ctx, request)
		}
		took[i] = int64(time.Since(began)) / 100
	}
	slices.Sort(took)
	return took[batches/2]
}
