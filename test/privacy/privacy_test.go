// Package privacy looks for what clients sent in everything that a limiter writes: the store, its log, its metrics.
package privacy

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/redis/go-redis/v9"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
	"github.com/weir-dev/weir/test/env"
)

// secrets are what one client sends: a key, a user and an address.
var secrets = []string{"sk-live-4f9a1c77e2b0", "jane.roe@example.com", "203.0.113.77"}

const policies = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: secretive, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - {name: by-key, key: [{header: X-Api-Key}], limits: [{requests: 2, window: 1h}]}
    - {name: by-user, key: [{attribute: user}], limits: [{requests: 3, window: 1h, algorithm: SlidingWindowLog}]}
    - {name: by-address, key: [{clientIP: {}}, {request: Method}], limits: [{requests: 3, window: 1h, algorithm: FixedWindow}]}
    - {name: shadow, mode: Shadow, key: [{header: X-Api-Key}, {attribute: user}], limits: [{requests: 1, window: 1h, algorithm: SlidingWindowCounter}]}
`

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestNothingOfAClientIsWritten(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		server := env.Redis(t, env.RedisOptions{})
		written := decide(t, ratelimit.Options{Redis: &redis.UniversalOptions{Addrs: []string{server.Addr}}}, false)
		search(t, "the store", dumpRedis(t, server.Addr), "weir:default:c:shop:")
		searchWritten(t, written)
	})
	t.Run("Redis with the policy table, and who is denied most", func(t *testing.T) {
		server := env.Redis(t, env.RedisOptions{})
		publish(t, server.Addr)
		written := decide(t, ratelimit.Options{Redis: &redis.UniversalOptions{Addrs: []string{server.Addr}}, PollInterval: 20 * time.Millisecond}, true)
		search(t, "the store", dumpRedis(t, server.Addr), "weir:default:denied:{shop/apps/Deployment/checkout}:")
		searchWritten(t, written)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		server := env.Postgres(t)
		pool, err := pgxpool.New(t.Context(), server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		written := decide(t, ratelimit.Options{Counters: postgres.New(pool, postgres.Options{})}, false)
		search(t, "the store", dumpPostgres(t, server.DSN), "weir.")
		searchWritten(t, written)
	})
	t.Run("no store in reach", func(t *testing.T) {
		searchWritten(t, decide(t, ratelimit.Options{Redis: &redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}}}, false))
	})
}

// A password for Redis, right or wrong, is in no log, no metric and no decision's cause.
func TestNoPasswordIsWritten(t *testing.T) {
	const right, wrong = "tJ4-right-password", "tJ4-wrong-password"
	server := env.Redis(t, env.RedisOptions{ACL: "user default off\nuser weir-shop on >" + right + " ~* &* +@all\n"})
	for _, password := range []string{right, wrong} {
		t.Run(password, func(t *testing.T) {
			var causes []string
			written := decide(t, ratelimit.Options{
				Redis: &redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "weir-shop", Password: password},
				OnDecision: func(_ http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
					causes = append(causes, d.Cause)
				},
			}, false)
			failed := strings.Contains(written.log+strings.Join(causes, " "), "WRONGPASS")
			if failed != (password == wrong) {
				t.Errorf("the log and the causes tell of a wrong password: %t", failed)
			}
			for where, text := range map[string]string{"log": written.log, "metrics": written.metrics, "causes": strings.Join(causes, "\n")} {
				if strings.Contains(text, password) {
					t.Errorf("the password is in the %s:\n%s", where, text)
				}
			}
		})
	}
}

// writings are what a limiter wrote besides counters.
type writings struct{ log, metrics string }

// decide runs a limiter that admits some requests of the client and denies others. Its policies are those of a file, or
// in the table, where it also reports who is denied.
func decide(t *testing.T, options ratelimit.Options, inTable bool) writings {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(name, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := file.Files(name)
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	registry := prometheus.NewRegistry()
	options.Namespace, options.Workload, options.StoreTimeout = "shop", "checkout", time.Second
	if !inTable {
		options.Policies = source
	}
	options.Registerer = registry
	options.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	options.Attributes = func(*http.Request) ratelimit.Attributes { return ratelimit.Attributes{"user": secrets[1]} }
	limiter, err := ratelimit.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- limiter.Run(ctx) }()
	if err := limiter.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	handler := limiter.Middleware(http.NotFoundHandler())
	denied := 0
	for range 10 {
		r := httptest.NewRequest(http.MethodGet, "/reports?token="+secrets[0], nil)
		r.Header.Set("X-Api-Key", secrets[0])
		r.RemoteAddr = secrets[2] + ":40000"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests {
			denied++
		}
	}
	if denied == 0 {
		t.Error("nothing was denied: denials would not be seen in what was written")
	}
	// What a store keeps beside counters: when they were reset.
	reset := ratelimit.Request{Method: http.MethodGet, Remote: secrets[2] + ":40000"}
	if err := limiter.Reset(ctx, "secretive", "by-address", reset); err != nil && options.Redis == nil {
		t.Error(err)
	}
	if inTable {
		reported(t, options.Redis.Addrs[0])
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var metrics bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&metrics, family); err != nil {
			t.Fatal(err)
		}
	}
	return writings{log.String(), metrics.String()}
}

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// publish writes the policies as a controller would.
func publish(t *testing.T, addr string) {
	t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	defer client.Close()
	var p policy.Policy
	if err := yaml.Unmarshal([]byte(policies), &p); err != nil {
		t.Fatal(err)
	}
	row, verdicts := policy.Compile(workload, "test", []policy.Policy{p})
	if !verdicts[0].Accepted() {
		t.Fatal(verdicts[0].Message)
	}
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: 1}, "1"
	table := redisstore.NewTable(client, "", "test")
	if _, err := table.Claim(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if refusal, err := table.Publish(t.Context(), workload, row); err != nil || refusal != policy.Accepted {
		t.Fatalf("publishing: %q, %v", refusal, err)
	}
}

// reported waits until the limiter said who is denied most.
func reported(t *testing.T, addr string) {
	t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		reports, err := redisstore.Denied(ctx, client, "", workload)
		if err == nil && (len(reports) == 0 || len(reports[0].Rules) == 0 || len(reports[0].Rules[0].Identities) == 0) {
			err = errors.New("no report yet")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func searchWritten(t *testing.T, w writings) {
	t.Helper()
	search(t, "the log", w.log, "Policies in force")
	search(t, "the metrics", w.metrics, "weir_")
}

// search looks for the secrets as they are and as they are often spelt. What must be there shows that it could.
func search(t *testing.T, where, text, must string) {
	t.Helper()
	if !strings.Contains(text, must) {
		t.Errorf("%s has no %q: it is not what was to be searched:\n%.300s", where, must, text)
	}
	for _, secret := range secrets {
		for _, spelling := range []string{
			secret,
			hex.EncodeToString([]byte(secret)),
			base64.StdEncoding.EncodeToString([]byte(secret)),
			base64.RawURLEncoding.EncodeToString([]byte(secret)),
		} {
			if i := strings.Index(text, spelling); i >= 0 {
				t.Errorf("%s contains %q: …%s…", where, secret, text[max(0, i-60):min(len(text), i+60)])
			}
		}
	}
}

// dumpRedis returns every key with its value, whatever its type.
func dumpRedis(t *testing.T, addr string) string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	ctx := t.Context()
	var all strings.Builder
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		var value any
		switch kind := client.Type(ctx, key).Val(); kind {
		case "string":
			value = client.Get(ctx, key).Val()
		case "list":
			value = client.LRange(ctx, key, 0, -1).Val()
		case "hash":
			value = client.HGetAll(ctx, key).Val()
		case "zset":
			value = client.ZRange(ctx, key, 0, -1).Val()
		case "set":
			value = client.SMembers(ctx, key).Val()
		default:
			t.Fatalf("%s is a %s", key, kind)
		}
		fmt.Fprintf(&all, "%s %v\n", key, value)
	}
	return all.String()
}

// dumpPostgres returns every row of every table that is not PostgreSQL's own.
func dumpPostgres(t *testing.T, dsn string) string {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `select format('%I.%I', schemaname, tablename) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, table := range tables {
		fmt.Fprintln(&all, table)
		tag, err := conn.PgConn().CopyTo(ctx, &all, "copy "+table+" to stdout")
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			t.Errorf("%s is empty: it shows nothing", table)
		}
	}
	return all.String()
}
