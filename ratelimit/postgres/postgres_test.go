package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/hack/dev/deps"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
	"github.com/weir-dev/weir/test/env"
)

const policies = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: exports
      match: [{methods: [POST], route: /exports}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 60, window: 24h}, {requests: 1000, window: 744h, algorithm: FixedWindow}]
    - name: short
      match: [{methods: [GET], route: /short}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 5, window: 100ms}]
    - name: free
      match: [{methods: [GET], route: /free}]
      key: [{header: X-Api-Key}]
      limits: [{requests: 1000000000, window: 1h}]
`

// connect opens a pool that ends with the test.
func connect(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// start runs a replica of an application whose store may take its time.
func start(t testing.TB, counters ratelimit.Counters, timeout time.Duration) *ratelimit.Limiter {
	t.Helper()
	source, err := file.Text(policies)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Policies: source, Counters: counters, StoreTimeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- limiter.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if err := limiter.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return limiter
}

func request(method, route, apiKey string) ratelimit.Request {
	return ratelimit.Request{Method: method, Route: route, Header: http.Header{"X-Api-Key": {apiKey}}}
}

// waitFor polls a condition.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := process.Poll(ctx, 5*time.Millisecond, func(context.Context) error {
		if !holds() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// patience is a StoreTimeout for machines that do much else.
const patience = 30 * time.Second

func TestThreeReplicasShareOneLimit(t *testing.T) {
	server := env.Postgres(t)
	var replicas []*ratelimit.Limiter
	for range 3 {
		counters := postgres.New(connect(t, server.DSN), postgres.Options{StatementTimeout: patience})
		if err := counters.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		replicas = append(replicas, start(t, counters, patience))
	}
	for round := range 10 {
		key := fmt.Sprintf("sk_live_%d", round)
		var admitted atomic.Int64
		var wait sync.WaitGroup
		for i := range 300 {
			wait.Go(func() {
				d := replicas[i%3].Decide(t.Context(), request(http.MethodPost, "/exports", key))
				if d.Source != "Store" && d.Source != "DenyCache" {
					t.Errorf("answered by %s: %v", d.Source, d.Cause)
				}
				if d.Allowed {
					admitted.Add(1)
				}
			})
		}
		wait.Wait()
		if got := admitted.Load(); got != 60 {
			t.Fatalf("round %d: %d of 300 admitted by three replicas, want 60", round, got)
		}
	}
	t.Run("no key of a client is in a dump of the database", func(t *testing.T) {
		program, err := deps.Find("pg_dump")
		if err != nil {
			t.Fatal(err)
		}
		dump, err := exec.CommandContext(t.Context(), program, "--dbname="+server.DSN, "--inserts").Output()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(dump), "INSERT INTO weir.counters") {
			t.Fatal("the dump has no counters")
		}
		for _, form := range []string{"sk_live", fmt.Sprintf("%x", "sk_live")} {
			if bytes.Contains(dump, []byte(form)) {
				t.Errorf("the dump has %q", form)
			}
		}
	})
}

func TestRunPreparesAndCleansUp(t *testing.T) {
	pool := connect(t, env.Postgres(t).DSN)
	limiter := start(t, postgres.New(pool, postgres.Options{CleanUpInterval: time.Millisecond, StatementTimeout: patience}), patience)
	rows := func() (n int) {
		// An error is a table that is not there yet.
		_ = pool.QueryRow(t.Context(), "select count(*) from weir.counters").Scan(&n)
		return n
	}
	waitFor(t, "a decision by the store", func() bool {
		return limiter.Decide(t.Context(), request(http.MethodGet, "/short", "acme")).Source == "Store"
	})
	limiter.Decide(t.Context(), request(http.MethodPost, "/exports", "acme"))
	if rows() == 0 {
		t.Fatal("a decision left no row")
	}
	// The two limits of exports stay.
	waitFor(t, "the clean-up", func() bool { return rows() == 2 })
}

func TestAnOutageIsAnsweredByTheShare(t *testing.T) {
	server := env.Postgres(t)
	counters := postgres.New(connect(t, server.DSN), postgres.Options{StatementTimeout: patience})
	if err := counters.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	limiter := start(t, counters, 100*time.Millisecond)
	if d := limiter.Decide(t.Context(), request(http.MethodPost, "/exports", "acme")); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	server.Kill()
	start := time.Now()
	d := limiter.Decide(t.Context(), request(http.MethodPost, "/exports", "acme"))
	if !d.Allowed || d.Source != "LocalShare" {
		t.Errorf("without a database: %+v", d)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v", took)
	}
	server.Start()
	waitFor(t, "a decision by the store that is back", func() bool {
		return limiter.Decide(t.Context(), request(http.MethodGet, "/free", "acme")).Source == "Store"
	})
}

func TestWrongOptionsAreRefused(t *testing.T) {
	pool := connect(t, "postgres://nobody@127.0.0.1:1/none")
	for name, counters := range map[string]*postgres.Counters{
		"no pool":                 postgres.New(nil, postgres.Options{}),
		"a name that is too long": postgres.New(pool, postgres.Options{Schema: strings.Repeat("x", 64)}),
		"a time below zero":       postgres.New(pool, postgres.Options{StatementTimeout: -1}),
	} {
		source, err := file.Text(policies)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ratelimit.New(ratelimit.Options{Namespace: "shop", Workload: "checkout", Policies: source, Counters: counters})
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
