// Command checkout is the demo application: a few routes behind a limiter, and nothing of its own.
//
// It shows what an application adds to be limited, and, in response headers that a real one would not send, who decided
// and how long that took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
)

// settings are the flags.
type settings struct {
	listen string
	redis  string
	user   string
	start  time.Duration
	drain  time.Duration
	// storeTimeout is ratelimit.Options.StoreTimeout.
	storeTimeout time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.listen, "listen", envOr("LISTEN", ":8080"), "address to serve on (LISTEN)")
	flag.StringVar(&s.redis, "redis", envOr("REDIS", "127.0.0.1:6379"), "addresses of Redis, separated by commas (REDIS)")
	flag.StringVar(&s.user, "redis-user", os.Getenv("REDIS_USER"), "user of Redis (REDIS_USER); the password is REDIS_PASSWORD")
	flag.DurationVar(&s.start, "start", 5*time.Second, "how long to wait for policies before serving without")
	flag.DurationVar(&s.drain, "drain", 5*time.Second, "how long requests may take to end after SIGTERM")
	flag.DurationVar(&s.storeTimeout, "store-timeout", 0, "how long a decision waits for Redis (STORE_TIMEOUT); 0 is the library's default")
	flag.Parse()
	if text := os.Getenv("STORE_TIMEOUT"); text != "" && s.storeTimeout == 0 {
		var err error
		if s.storeTimeout, err = time.ParseDuration(text); err != nil {
			fmt.Fprintf(os.Stderr, "checkout: STORE_TIMEOUT: %v\n", err)
			os.Exit(2)
		}
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "checkout: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	redis.SetLogger(quiet{})
	if err := run(ctx, s, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "checkout: %v\n", err)
		os.Exit(1)
	}
}

// quiet drops what the Redis client logs to stderr on its own, a line for each connection that fails: the limiter tells
// an outage once. The client's logger is the process's, so it is the application's to set.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// run serves until ctx ends. It prints the address that it serves on.
func run(ctx context.Context, s settings, out io.Writer) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	registry := prometheus.NewRegistry()

	options, err := ratelimit.OptionsFromEnv()
	if err != nil {
		return err
	}
	options.Redis = &redis.UniversalOptions{
		Addrs:    strings.Split(s.redis, ","),
		Username: s.user,
		Password: os.Getenv("REDIS_PASSWORD"),
	}
	options.StoreTimeout = s.storeTimeout
	options.StartTimeout = s.start
	options.Attributes = attributes
	options.OnDecision = show
	options.Registerer = registry
	options.Logger = logger
	limiter, err := ratelimit.New(options)
	if err != nil {
		return err
	}

	// The limiter outlives the server: requests that drain are still limited.
	limiting, stopLimiting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLimiting()
	limited := make(chan error, 1)
	go func() { limited <- limiter.Run(limiting) }()
	if err := limiter.WaitReady(ctx); err != nil {
		logger.Warn("Serving without policies for now", "error", err)
	}

	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           handler(limiter, registry),
		ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(out, "listening on %s\n", listener.Addr())

	select {
	case <-ctx.Done():
	case err := <-served:
		return err
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	drained := server.Shutdown(draining)
	// The others share the limits anew as soon as this replica has taken its leave.
	stopLimiting()
	return errors.Join(drained, <-limited)
}

// handler is the application behind its limiter. Metrics are for the operator, not for clients, and stand outside.
func handler(limiter *ratelimit.Limiter, registry *prometheus.Registry) http.Handler {
	app := http.NewServeMux()
	app.HandleFunc("POST /exports", answer(http.StatusAccepted, "export started\n"))
	app.HandleFunc("POST /login", answer(http.StatusOK, "welcome\n"))
	app.HandleFunc("GET /healthz", answer(http.StatusOK, "ok\n"))
	app.HandleFunc("GET /users/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "user %s\n", r.PathValue("id"))
	})
	app.HandleFunc("/{$}", answer(http.StatusOK, "checkout\n"))
	limited := limiter.Middleware(app)

	outer := http.NewServeMux()
	outer.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	outer.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(&timed{ResponseWriter: w, start: time.Now()}, r)
	})
	return outer
}

func answer(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// attributes trusts what the client says of itself, as only a demo may: an application reads them from its session.
func attributes(r *http.Request) ratelimit.Attributes {
	a := ratelimit.Attributes{}
	for name, header := range map[string]string{"user": "X-User", "plan": "X-Plan", "rows": "X-Rows"} {
		if value := r.Header.Get(header); value != "" {
			a[name] = value
		}
	}
	return a
}

// timed remembers when the request came.
type timed struct {
	http.ResponseWriter
	start time.Time
}

// show tells the client who decided, and in how many µs.
func show(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	h := w.Header()
	h.Set("X-Weir-Source", d.Source)
	if d.Rule != "" {
		h.Set("X-Weir-Rule", d.Policy+"/"+d.Rule)
	}
	if t, ok := w.(*timed); ok {
		h.Set("X-Weir-Decision-Us", fmt.Sprint(time.Since(t.start).Microseconds()))
	}
	if d.Cause != "" {
		h.Set("X-Weir-Cause", d.Cause)
	}
}
