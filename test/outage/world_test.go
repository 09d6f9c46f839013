// Package outage_test kills a real Redis under real enforcers, and counts what they admit.
package outage_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
)

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

const (
	requests = 300
	// window is so long that none ends while a test runs.
	window = "744h"
	// patience is for what happens by itself, in seconds at most.
	patience = 30 * time.Second
)

// world is a Redis, a row in it, and replicas.
type world struct {
	t        *testing.T
	server   *env.RedisServer
	client   redis.UniversalClient
	table    *redisstore.Table
	limit    policy.Limit
	replicas []*enforcer.Enforcer
}

func newWorld(t *testing.T, kind policy.Algorithm, replicas int) *world {
	t.Helper()
	n := int64(requests)
	w := &world{t: t, server: env.Redis(t, env.RedisOptions{}), limit: policy.Limit{Requests: &n, Window: window, Algorithm: kind}}
	w.client = redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{w.server.Addr}})
	t.Cleanup(func() { _ = w.client.Close() })
	w.table = redisstore.NewTable(w.client, "", "test")
	w.publish(replicas)
	for i := range replicas {
		w.replicas = append(w.replicas, w.replica(i))
	}
	return w
}

// publish writes what a controller would: the row, and a count that says that nobody ran before.
func (w *world) publish(replicas int) {
	w.t.Helper()
	ctx := w.t.Context()
	row, verdicts := policy.Compile(workload, "test", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: "shop", Name: "p", UID: "uid", Generation: 1},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules:     []policy.Rule{{Name: "r", Key: []policy.KeyPart{{Header: "X-Api-Key"}}, Limits: []policy.Limit{w.limit}}},
		},
	}})
	if !verdicts[0].Accepted() {
		w.t.Fatal(verdicts[0].Message)
	}
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: 1}, "1"
	if _, err := w.table.Claim(ctx, "1"); err != nil {
		w.t.Fatal(err)
	}
	if refusal, err := w.table.Publish(ctx, workload, row); err != nil || refusal != policy.Accepted {
		w.t.Fatalf("publishing: %q, %v", refusal, err)
	}
	refusal, err := w.table.PublishReplicas(ctx, workload, "1", policy.Replicas{
		Version: policy.RowVersion, N: replicas, Ready: replicas, Desired: replicas, IdleSince: 1, At: time.Now().UnixMicro(),
	})
	if err != nil || refusal != policy.Accepted {
		w.t.Fatalf("publishing the count: %q, %v", refusal, err)
	}
}

// replica starts an enforcer with a client of its own.
func (w *world) replica(i int) *enforcer.Enforcer {
	w.t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{w.server.Addr}})
	w.t.Cleanup(func() { _ = client.Close() })
	e := enforcer.New(enforcer.Options{
		Store: redisstore.NewStore(redisstore.StoreOptions{Client: client, Namespace: "shop"}),
		Local: memstore.New(memstore.Options{}),
		Table: redisstore.NewMember(client, "", workload),
		Pod:   "checkout-" + strconv.Itoa(i), Library: "test",
		PollInterval: time.Second,
		// A machine that is busy with other tests must not look like a dead Redis.
		StoreTimeout: 500 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	if err := e.WaitReady(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return e
}

// until waits for a condition that comes true by itself.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			w.t.Fatalf("after %v: not %s", patience, what)
		case <-look.C:
		}
	}
}

// kill ends Redis, and waits until every replica decides without it.
func (w *world) kill() {
	w.t.Helper()
	w.server.Kill()
	for _, e := range w.replicas {
		w.until("deciding alone", func() bool {
			e.Decide(w.t.Context(), request("nobody"))
			return e.Figures().BreakerOpen
		})
	}
}

// back starts Redis, which has nothing left, and waits until every replica asks it again.
func (w *world) back() {
	w.t.Helper()
	w.server.Start()
	for _, e := range w.replicas {
		w.until("asking the store again", func() bool { return !e.Figures().BreakerOpen })
	}
}

func request(key string) enforcer.Request {
	return enforcer.Request{Method: http.MethodPost, Path: "/exports", Header: http.Header{"X-Api-Key": {key}}, Remote: "203.0.113.7:1"}
}

// send decides n times at one replica.
func (w *world) send(replica, n int, key string) (admitted int) {
	for range n {
		if w.replicas[replica].Decide(w.t.Context(), request(key)).Allowed {
			admitted++
		}
	}
	return admitted
}

// sendAll decides n times at each replica.
func (w *world) sendAll(n int, key string) (admitted int) {
	for i := range w.replicas {
		admitted += w.send(i, n, key)
	}
	return admitted
}

// counted is what Redis counts for a key: what remains of the limit tells it.
func (w *world) counted(key string) int64 {
	w.t.Helper()
	d := w.replicas[0].Peek(w.t.Context(), request(key))
	if d.Source != enforcer.SourceStore {
		w.t.Fatalf("peek by %s: %s", d.Source, d.Cause)
	}
	return requests - d.Remaining
}

// earned is what a bucket may have earned since a time: 300 in 31 days are one in 2.5 hours.
func (w *world) earned(since time.Time) int {
	if w.limit.Algorithm != policy.TokenBucket {
		return 0
	}
	return 1 + int(time.Since(since)/(31*24*time.Hour/requests))
}

var algorithms = []policy.Algorithm{
	policy.FixedWindow, policy.TokenBucket, policy.SlidingWindowLog, policy.SlidingWindowCounter,
}
