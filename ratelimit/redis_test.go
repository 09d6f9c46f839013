package ratelimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
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
	published, _, err := c.table.Read(c.t.Context(), checkout)
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

// What a request holds does not reach Redis: no key, address or name of a user is in any key or value.
func TestNothingOfARequestReachesRedis(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	newController(t, server.Addr).publish(policy.Spec{Rules: []policy.Rule{
		{
			Name:   "all",
			Key:    []policy.KeyPart{{Header: "X-Api-Key"}, {Attribute: "user"}, {ClientIP: &policy.ClientIP{}}, {Request: policy.RequestKeyRoute}},
			Limits: []policy.Limit{{Requests: requests(5), Window: "1h"}, {Requests: requests(5), Window: "1h", Algorithm: policy.FixedWindow}},
		},
		{Name: "missing", Key: []policy.KeyPart{{Header: "X-Other"}}, Limits: []policy.Limit{{Requests: requests(5), Window: "1h"}}},
	}})
	limiter := newLimiter(t, server.Addr, func(o *ratelimit.Options) { o.StoreTimeout = 5 * time.Second })
	secrets := []string{"alice-secret", "user-17", "203.0.113.7", "very-special"}
	for range 7 {
		limiter.Decide(t.Context(), ratelimit.Request{
			Header: http.Header{"X-Api-Key": {secrets[0]}}, Attributes: ratelimit.Attributes{"user": secrets[1]},
			Remote: secrets[2] + ":4711", Route: "/" + secrets[3] + "/{id}",
		})
	}
	client := newClient(t, server.Addr)
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	counters := 0
	for _, key := range keys {
		dump, err := client.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(key, "weir:default:c:") {
			counters++
		}
		for _, secret := range secrets {
			if strings.Contains(key, secret) || strings.Contains(dump, secret) {
				t.Errorf("%q holds %q", key, secret)
			}
		}
	}
	if counters != 3 {
		t.Errorf("%d counters among the keys %q, want 3", counters, keys)
	}
}

// Whatever stands in the row's place, the last good row is enforced, and a metric says so.
func TestBadRowsInRedis(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	control := newController(t, server.Addr)
	control.publish(policy.Spec{Rules: []policy.Rule{{Name: "all", Limits: []policy.Limit{{Requests: requests(5), Window: "1h"}}}}})
	r := newRegistry()
	limiter := newLimiter(t, server.Addr, func(o *ratelimit.Options) {
		o.Registerer, o.StoreTimeout, o.PollInterval = r, 5*time.Second, 50*time.Millisecond
	})
	client := newClient(t, server.Addr)
	row := "weir:default:row:{" + checkout.String() + "}"
	good, err := client.Get(t.Context(), row).Result()
	if err != nil {
		t.Fatal(err)
	}
	problem := func(reason string) float64 {
		return r.value(t, "weir_row_problems_total", map[string]string{"reason": reason})
	}
	for reason, bad := range map[string]string{
		"corrupt": good[:len(good)/2], "newer_version": strings.Replace(good, `"v":1`, `"v":2`, 1),
	} {
		if err := client.Set(t.Context(), row, bad, 0).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the bad row is counted", func() bool { return problem(reason) > 0 })
		if d := limiter.Peek(t.Context(), ratelimit.Request{}); d.Rule != "all" {
			t.Errorf("%s: decided by %+v, want by the last good row", reason, d)
		}
	}
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing row is counted", func() bool { return problem("missing") > 0 })
	// For a while after a loss the local share must admit beside the store, so either of them may decide.
	if d := limiter.Decide(t.Context(), ratelimit.Request{}); d.Rule != "all" {
		t.Errorf("after FLUSHALL: decided by %+v, want by the last good row", d)
	}
}

// Peeks, shadow rules, costs and overrides mean the same through Redis as in memory.
func TestTheWholeLanguageThroughRedis(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	newController(t, server.Addr).publish(policy.Spec{Rules: []policy.Rule{
		{
			Name: "shadow", Mode: policy.ModeShadow, Key: []policy.KeyPart{{Header: "X-Api-Key"}},
			Limits: []policy.Limit{{Requests: requests(2), Window: "1h"}},
		},
		{
			Name: "rows", Key: []policy.KeyPart{{Header: "X-Api-Key"}}, Cost: &policy.Cost{Attribute: "rows", Max: 100},
			Limits: []policy.Limit{{Requests: requests(10), Window: "24h", Algorithm: policy.FixedWindow}},
			Overrides: []policy.Override{{
				When:   policy.AttributeMatch{Attribute: "plan", Values: []string{"scale"}},
				Limits: []policy.Limit{{Requests: requests(20), Window: "24h", Algorithm: policy.FixedWindow}},
			}},
		},
	}})
	r := newRegistry()
	limiter := newLimiter(t, server.Addr, func(o *ratelimit.Options) { o.Registerer, o.StoreTimeout = r, 5*time.Second })
	request := func(plan, rows string) ratelimit.Request {
		return ratelimit.Request{Header: http.Header{"X-Api-Key": {"alice"}}, Attributes: ratelimit.Attributes{"plan": plan, "rows": rows}}
	}
	steps := []struct {
		name      string
		peek      bool
		request   ratelimit.Request
		allowed   bool
		remaining int64
	}{
		{"a peek at a full limit", true, request("", ""), true, 10},
		{"a cost of 4", false, request("", "4"), true, 6},
		{"a cost of 7 does not fit", false, request("", "7"), false, 6},
		{"nor does a peek of 7", true, request("", "7"), false, 6},
		{"a cost of 6", false, request("", "6"), true, 0},
		{"nothing is left", false, request("", ""), false, 0},
		{"but for another plan, on the same counter", false, request("scale", "3"), true, 7},
	}
	for _, s := range steps {
		decide := limiter.Decide
		if s.peek {
			decide = limiter.Peek
		}
		if d := decide(t.Context(), s.request); d.Allowed != s.allowed || d.Remaining != s.remaining || d.Source != ratelimit.SourceStore {
			t.Errorf("%s: %+v, want allowed %t with %d left", s.name, d, s.allowed, s.remaining)
		}
	}
	for result, want := range map[string]float64{"admitted": 2, "denied": 1} { // of the three that were admitted
		got := r.value(t, "weir_decisions_total", map[string]string{"policy": "checkout", "rule": "shadow", "result": result, "source": "Shadow"})
		if got != want {
			t.Errorf("the shadow rule %s %g, want %g", result, got, want)
		}
	}
}

// A new count reaches the replicas by the channel, long before they poll.
func TestNewCountsReachReplicasAtOnce(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	control := newController(t, server.Addr)
	control.publish(policy.Spec{Rules: []policy.Rule{{Name: "all", Limits: []policy.Limit{{Requests: requests(5), Window: "1h"}}}}})
	r := newRegistry()
	newLimiter(t, server.Addr, func(o *ratelimit.Options) { o.Registerer, o.PollInterval = r, time.Hour })
	for _, n := range []int{3, 5, 2} {
		start := time.Now()
		control.count(n)
		eventually(t, "the replica knows the new count", func() bool { return r.value(t, "weir_replicas", nil) == float64(n) })
		took := time.Since(start)
		t.Logf("%d replicas known after %v", n, took.Round(time.Millisecond))
		if took > 10*2*time.Second {
			t.Errorf("%d replicas known after %v, want 2 s", n, took)
		}
	}
}
