package ratelimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

var checkout = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// controller writes to the table what the real one would.
type controller struct {
	t     *testing.T
	table *redisstore.Table
	n     int64
}

func newClient(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newController(t *testing.T, addr string) *controller {
	t.Helper()
	return &controller{t: t, table: redisstore.NewTable(newClient(t, addr), "", "test")}
}

func (c *controller) publish(spec policy.Spec) {
	c.t.Helper()
	spec.TargetRef = policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"}
	row, verdicts := policy.Compile(checkout, "test", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: "shop", Name: "checkout", UID: "uid", Generation: c.n + 1}, Spec: spec,
	}})
	for _, v := range verdicts {
		if !v.Accepted() {
			c.t.Fatalf("policy refused: %s", v.Message)
		}
	}
	c.n++
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: c.n}, strconv.FormatInt(c.n, 10)
	if _, err := c.table.Claim(c.t.Context(), "1"); err != nil {
		c.t.Fatal(err)
	}
	if refusal, err := c.table.Publish(c.t.Context(), checkout, row); err != nil || refusal != policy.Accepted {
		c.t.Fatalf("publishing: %q, %v", refusal, err)
	}
}

// count publishes that n replicas run, and the members that there are now.
func (c *controller) count(n int) {
	c.t.Helper()
	published, err := c.table.Read(c.t.Context(), checkout)
	if err != nil {
		c.t.Fatal(err)
	}
	refusal, err := c.table.PublishReplicas(c.t.Context(), checkout, "1", policy.Replicas{
		Version: policy.RowVersion, N: n, Ready: n, Desired: n, At: time.Now().UnixMicro(),
		MembersVersion: published.MembersVersion,
	})
	if err != nil || refusal != policy.Accepted {
		c.t.Fatalf("publishing the count: %q, %v", refusal, err)
	}
}

func requests(n int64) *int64 { return &n }

func newLimiter(t *testing.T, addr string, change ...func(*ratelimit.Options)) *ratelimit.Limiter {
	t.Helper()
	options := ratelimit.Options{
		Namespace:    "shop",
		Workload:     "checkout",
		Redis:        &redis.UniversalOptions{Addrs: []string{addr}},
		PollInterval: time.Second,
	}
	for _, c := range change {
		c(&options)
	}
	limiter, err := ratelimit.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- limiter.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := limiter.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return limiter
}

// Three replicas under 300 concurrent requests on one key admit exactly the limit, whatever the round.
func TestThreeReplicasAdmitExactlyTheLimit(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	control := newController(t, server.Addr)
	control.publish(policy.Spec{Rules: []policy.Rule{{
		Name:   "exports",
		Match:  []policy.Match{{Methods: []string{"POST"}, Route: "/exports"}},
		Key:    []policy.KeyPart{{Header: "X-Api-Key"}},
		Limits: []policy.Limit{{Requests: requests(5), Window: "1h"}, {Requests: requests(50), Window: "24h", Algorithm: policy.FixedWindow}},
	}}})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /exports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	var handlers []http.Handler
	for range 3 {
		// A store that is merely slow on a busy machine must not turn this into a test of local shares.
		limiter := newLimiter(t, server.Addr, func(o *ratelimit.Options) { o.StoreTimeout = 5 * time.Second })
		handlers = append(handlers, limiter.Middleware(mux))
	}
	for round := range 20 {
		var admitted, denied, other atomic.Int64
		var group sync.WaitGroup
		for i := range 300 {
			group.Go(func() {
				r := httptest.NewRequest(http.MethodPost, "/exports", nil)
				r.Header.Set("X-Api-Key", "key of round "+strconv.Itoa(round))
				w := httptest.NewRecorder()
				handlers[i%3].ServeHTTP(w, r)
				switch w.Code {
				case http.StatusAccepted:
					admitted.Add(1)
				case http.StatusTooManyRequests:
					denied.Add(1)
				default:
					other.Add(1)
				}
			})
		}
		group.Wait()
		if admitted.Load() != 5 || denied.Load() != 295 {
			t.Fatalf("round %d: admitted %d, denied %d, other %d, want 5 and 295", round, admitted.Load(), denied.Load(), other.Load())
		}
	}
}
