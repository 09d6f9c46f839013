// Package hammer sends two processes at one key at the same moment: fault B17, with whole limiters in processes of
// their own and a real store between them.
package hammer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
	"github.com/weir-dev/weir/test/env"
)

// target in the environment makes this test binary one of the two processes.
const target = "WEIR_TEST_HAMMER"

const rounds = 100

var algorithms = []string{"TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog"}

var loads = []struct{ limit, hits int }{{1, 50}, {100, 500}}

func TestMain(m *testing.M) {
	if os.Getenv(target) == "" {
		os.Exit(m.Run())
	}
	if err := hammer(os.Getenv(target), os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestB17TwoProcessesAdmitExactlyTheLimit(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		run(t, "redis://"+env.Redis(t, env.RedisOptions{}).Addr)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		run(t, env.Postgres(t).DSN)
	})
}

func run(t *testing.T, store string) {
	policies := writePolicies(t)
	one, two := start(t, store, policies), start(t, store, policies)
	for _, load := range loads {
		for _, algorithm := range algorithms {
			for round := range rounds {
				order := fmt.Sprintf("/%s/%d key-%d %d\n", algorithm, load.limit, round, load.hits/2)
				one.send(t, order)
				two.send(t, order)
				if admitted := one.admitted(t) + two.admitted(t); admitted != load.limit {
					t.Fatalf("%s, round %d: two processes admitted %d of %d", algorithm, round, admitted, load.limit)
				}
			}
		}
	}
}

// writePolicies writes a file with one rule for each algorithm and limit, and returns its name.
func writePolicies(t *testing.T) string {
	var text strings.Builder
	text.WriteString(`apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: hammer, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
`)
	for _, algorithm := range algorithms {
		for _, load := range loads {
			fmt.Fprintf(&text, "    - name: %s-%d\n      match: [{pathPrefix: /%s/%d}]\n      key: [{header: X-Api-Key}]\n"+
				"      limits: [{requests: %d, window: 24h, algorithm: %s}]\n",
				strings.ToLower(algorithm), load.limit, algorithm, load.limit, load.limit, algorithm)
		}
	}
	name := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

type process struct {
	orders  io.Writer
	answers *bufio.Scanner
}

func start(t *testing.T, store, policies string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], policies)
	cmd.Env = append(os.Environ(), target+"="+store)
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = orders.Close()
		_ = cmd.Wait()
	})
	return &process{orders, bufio.NewScanner(answers)}
}

func (p *process) send(t *testing.T, order string) {
	t.Helper()
	if _, err := io.WriteString(p.orders, order); err != nil {
		t.Fatal(err)
	}
}

func (p *process) admitted(t *testing.T) (n int) {
	t.Helper()
	if !p.answers.Scan() {
		t.Fatalf("the process ended: %v", p.answers.Err())
	}
	if _, err := fmt.Sscanf(p.answers.Text(), "admitted %d", &n); err != nil {
		t.Fatal(p.answers.Text())
	}
	return n
}

// hammer is one process: it sends as many requests at once as each line that it reads says, and answers with a line.
func hammer(store, policies string, orders io.Reader, answers io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	limiter, err := open(ctx, store, policies)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- limiter.Run(ctx) }()
	if err := limiter.WaitReady(ctx); err != nil {
		return err
	}
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		var path, key string
		var hits int
		if _, err := fmt.Sscan(lines.Text(), &path, &key, &hits); err != nil {
			return err
		}
		admitted, err := hit(ctx, limiter, ratelimit.Request{Method: http.MethodGet, Path: path, Header: http.Header{"X-Api-Key": {key}}}, hits)
		if err != nil {
			return err
		}
		fmt.Fprintf(answers, "admitted %d\n", admitted)
	}
	cancel()
	return errors.Join(lines.Err(), <-ended)
}

func open(ctx context.Context, store, policies string) (*ratelimit.Limiter, error) {
	source, err := file.Files(policies)
	if err != nil {
		return nil, err
	}
	options := ratelimit.Options{Namespace: "shop", Workload: "checkout", Policies: source, StoreTimeout: 10 * time.Second}
	if addr, ok := strings.CutPrefix(store, "redis://"); ok {
		options.Redis = &redis.UniversalOptions{Addrs: []string{addr}}
		return ratelimit.New(options)
	}
	pool, err := pgxpool.New(ctx, store)
	if err != nil {
		return nil, err
	}
	options.Counters = postgres.New(pool, postgres.Options{})
	return ratelimit.New(options)
}

// hit decides so many equal requests at the same time. Whoever is admitted, is by the store.
func hit(ctx context.Context, limiter *ratelimit.Limiter, r ratelimit.Request, hits int) (int64, error) {
	var admitted atomic.Int64
	var wrong atomic.Pointer[ratelimit.Decision]
	var callers sync.WaitGroup
	begin := make(chan struct{})
	for range hits {
		callers.Go(func() {
			<-begin
			d := limiter.Decide(ctx, r)
			if d.Source != ratelimit.SourceStore && d.Source != ratelimit.SourceDenyCache {
				wrong.Store(&d)
			}
			if d.Allowed {
				admitted.Add(1)
			}
		})
	}
	close(begin)
	callers.Wait()
	if d := wrong.Load(); d != nil {
		return 0, fmt.Errorf("decided by %v because of %q, want the store", d.Source, d.Cause)
	}
	return admitted.Load(), nil
}
