package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

// clusterWorld is a Redis Cluster of three with the two users of config/redis.
type clusterWorld struct {
	servers     *env.RedisClusterServers
	nodes       []redis.UniversalClient // may do everything
	controller  redis.UniversalClient
	application redis.UniversalClient
}

func newClusterWorld(t testing.TB) *clusterWorld {
	t.Helper()
	w := &clusterWorld{servers: env.RedisCluster(t)}
	for _, addr := range w.servers.Addrs {
		node := connect(t, addr, "")
		for _, user := range []string{acl(t, "controller.acl", ""), acl(t, "application.acl", "shop")} {
			args := []any{"acl", "setuser"}
			for _, word := range strings.Fields(user)[1:] {
				args = append(args, word)
			}
			if err := node.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.nodes = append(w.nodes, node)
	}
	client := func(user string) redis.UniversalClient {
		c := NewClient(&redis.UniversalOptions{Addrs: w.servers.Addrs, Username: user, Password: "secret"})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	w.controller, w.application = client("weir-controller"), client("weir-shop")
	return w
}

func (w *clusterWorld) store() *Store {
	return NewStore(StoreOptions{Client: w.application, Table: testTable, Namespace: "shop"})
}

// identityAt returns the n-th identity whose slot belongs to a node.
func identityAt(node, n int) enforcer.Identity {
	for i := 0; ; i++ {
		id := enforcer.Identity{byte(i), byte(i >> 8), byte(i >> 16)}
		if int(slotOf(id))*3/slots == node {
			if n == 0 {
				return id
			}
			n--
		}
	}
}

func fixed(id enforcer.Identity, name string, requests int64) enforcer.Counter {
	return enforcer.Counter{
		Identity: id, ID: name, Cost: 1,
		Limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: requests, Window: 24 * 3600e6},
	}
}

func peek(t *testing.T, s enforcer.Store, counters ...enforcer.Counter) []algorithm.Result {
	t.Helper()
	answers := make([]enforcer.Answer, 1)
	if _, err := s.Take(t.Context(), []enforcer.Entry{{Counters: counters, Enforced: len(counters)}}, answers); err != nil {
		t.Fatal(err)
	}
	if answers[0].Err != nil {
		t.Fatal(answers[0].Err)
	}
	return answers[0].Results
}

// within polls until a condition holds.
func within(t *testing.T, limit time.Duration, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := process.Poll(ctx, 5*time.Millisecond, condition); err != nil {
		t.Fatal(err)
	}
}

// TestCluster shares one cluster, which takes seconds to start; the last of its parts kills a node.
func TestCluster(t *testing.T) {
	w := newClusterWorld(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *clusterWorld)
	}{
		{"slots are those of the cluster", testSlots},
		{"only what every slot admits is admitted", testEverySlotAdmits},
		{"it is exact once refunds have settled", testExactOnceSettled},
		{"a moved slot is followed and charged once", testMovedSlot},
		{"lost scripts are loaded", testLostScripts},
		{"the table works", testTableOnCluster},
		{"without the slots of a dead node it answers", testDeadNode},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, w) })
	}
}

func testSlots(t *testing.T, w *clusterWorld) {
	for i := range 200 {
		c := fixed(enforcer.Identity{byte(i), byte(7 * i), 3}, "limit", 1)
		want, err := w.nodes[0].ClusterKeySlot(t.Context(), string(appendCounter(nil, "weir:t1:c:shop:{", &c))).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := slotOf(c.Identity); int64(got) != want {
			t.Fatalf("slot of %x is %d, want %d", c.Identity, got, want)
		}
	}
}

func testEverySlotAdmits(t *testing.T, w *clusterWorld) {
	s := w.store()
	wide := fixed(identityAt(0, 0), "wide", 100)
	narrow := fixed(identityAt(1, 0), "narrow", 3)
	shadow := fixed(identityAt(2, 0), "shadow", 2)
	beside := fixed(identityAt(0, 0), "beside", 50)
	entries := []enforcer.Entry{
		{Counters: []enforcer.Counter{wide, narrow, shadow, beside}, Enforced: 2, Shadow: []int{3, 4}, N: 10},
		{Counters: []enforcer.Counter{wide}, Enforced: 1, N: 1},
	}
	answers := make([]enforcer.Answer, 2)
	if _, err := s.Take(t.Context(), entries, answers); err != nil {
		t.Fatal(err)
	}
	got := answers[0]
	if got.Err != nil || got.Granted != 3 || got.Shadow[0] != 2 || got.Shadow[1] != 3 {
		t.Errorf("answer is %+v, want 3 granted, the shadow rules 2 and 3", got)
	}
	if got.Results[0].Remaining != 97 || got.Results[1].Remaining != 0 || got.Results[3].Remaining != 47 {
		t.Errorf("results are %+v, want 97, 0 and 47 left", got.Results)
	}
	if answers[1].Granted != 1 {
		t.Errorf("second entry: %+v", answers[1])
	}
	within(t, 10*time.Second, func(context.Context) error {
		left := peek(t, s, wide, narrow, shadow, beside)
		for i, want := range []int64{96, 0, 0, 47} {
			if left[i].Remaining != want {
				return fmt.Errorf("counter %d has %d left, want %d", i, left[i].Remaining, want)
			}
		}
		return nil
	})
}

func testExactOnceSettled(t *testing.T, w *clusterWorld) {
	var admitted atomic.Int64
	var calls sync.WaitGroup
	a, b := fixed(identityAt(0, 1), "exact", 100), fixed(identityAt(1, 1), "exact", 60)
	stores := []*Store{w.store(), w.store()}
	for i := range 200 {
		calls.Go(func() {
			answers := make([]enforcer.Answer, 1)
			_, err := stores[i%2].Take(t.Context(), []enforcer.Entry{{Counters: []enforcer.Counter{a, b}, Enforced: 2, N: 1}}, answers)
			if err != nil || answers[0].Err != nil {
				t.Error(err, answers[0].Err)
				return
			}
			admitted.Add(answers[0].Granted)
		})
	}
	calls.Wait()
	if n := admitted.Load(); n > 60 {
		t.Errorf("%d admitted of 60", n)
	}
	within(t, 10*time.Second, func(context.Context) error {
		left := peek(t, stores[0], a, b)
		if left[0].Remaining != 100-admitted.Load() || left[1].Remaining != 60-admitted.Load() {
			return fmt.Errorf("%d and %d left, but %d were admitted", left[0].Remaining, left[1].Remaining, admitted.Load())
		}
		return nil
	})
}

func testDeadNode(t *testing.T, w *clusterWorld) {
	s := w.store()
	alive, dead := fixed(identityAt(0, 0), "alive", 10), fixed(identityAt(2, 0), "dead", 10)
	peek(t, s, alive, dead)
	w.servers.Primaries[2].Kill()
	entries := []enforcer.Entry{
		{Counters: []enforcer.Counter{alive}, Enforced: 1, N: 1},
		{Counters: []enforcer.Counter{dead}, Enforced: 1, N: 1},
		{Counters: []enforcer.Counter{alive, dead}, Enforced: 2, N: 1},
		{Counters: []enforcer.Counter{alive, dead}, Enforced: 1, Shadow: []int{2}, N: 1},
	}
	answers := make([]enforcer.Answer, len(entries))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Take(ctx, entries, answers); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		granted int64
		fails   bool
	}{{1, false}, {0, true}, {0, true}, {1, false}} {
		if got := answers[i]; got.Granted != want.granted || (got.Err != nil) != want.fails {
			t.Errorf("entry %d: %d granted, %v", i, got.Granted, got.Err)
		}
	}
	if err := answers[1].Err; err != nil && reasonOf(err) == enforcer.ReasonOther {
		t.Errorf("a dead node is %v", err)
	}
}

func testMovedSlot(t *testing.T, w *clusterWorld) {
	ctx := t.Context()
	s := w.store()
	c := fixed(identityAt(0, 2), "moved", 100)
	take := func() int64 {
		t.Helper()
		answers := make([]enforcer.Answer, 1)
		if _, err := s.Take(ctx, []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1}}, answers); err != nil {
			t.Fatal(err)
		}
		if answers[0].Err != nil || answers[0].Granted != 1 {
			t.Fatalf("%+v", answers[0])
		}
		return answers[0].Results[0].Remaining
	}
	if left := take(); left != 99 {
		t.Fatalf("%d left, want 99", left)
	}
	slot := int(slotOf(c.Identity))
	ids := make([]string, 2)
	for i := range ids {
		ids[i] = w.nodes[i].Do(ctx, "cluster", "myid").Val().(string)
	}
	do := func(node int, args ...any) {
		t.Helper()
		if err := w.nodes[node].Do(ctx, args...).Err(); err != nil {
			t.Fatal(args, err)
		}
	}
	do(1, "cluster", "setslot", slot, "importing", ids[0])
	do(0, "cluster", "setslot", slot, "migrating", ids[1])
	if left := take(); left != 98 {
		t.Fatalf("while migrating, %d left, want 98", left)
	}
	host, port, _ := strings.Cut(w.servers.Addrs[1], ":")
	do(0, "migrate", host, port, string(appendCounter(nil, s.prefix, &c)), 0, 5000)
	if left := take(); left != 97 {
		t.Fatalf("behind ASK, %d left, want 97", left)
	}
	do(1, "cluster", "setslot", slot, "node", ids[1])
	do(0, "cluster", "setslot", slot, "node", ids[1])
	if left := take(); left != 96 {
		t.Fatalf("behind MOVED, %d left, want 96", left)
	}
}

func testLostScripts(t *testing.T, w *clusterWorld) {
	s := w.store()
	a, b := fixed(identityAt(0, 3), "lost", 10), fixed(identityAt(1, 3), "lost", 10)
	answers := make([]enforcer.Answer, 1)
	for i := range 3 {
		for _, node := range w.nodes {
			node.ScriptFlush(t.Context())
		}
		_, err := s.Take(t.Context(), []enforcer.Entry{{Counters: []enforcer.Counter{a, b}, Enforced: 2, N: 1}}, answers)
		if err != nil || answers[0].Err != nil || answers[0].Results[0].Remaining != int64(9-i) {
			t.Fatalf("take %d: %+v, %v", i, answers[0], err)
		}
	}
}

func testTableOnCluster(t *testing.T, w *clusterWorld) {
	ctx := t.Context()
	table := NewTable(w.controller, testTable, "blue")
	if owner, err := table.Claim(ctx, "100"); err != nil || owner != "blue" {
		t.Fatal(owner, err)
	}
	if refusal, err := table.Publish(ctx, checkout, rowOf("blue", "100", 1, nil)); err != nil || refusal != policy.Accepted {
		t.Fatal(refusal, err)
	}
	if refusal, err := table.PublishReplicas(ctx, checkout, "100", policy.Replicas{Version: 1, N: 3}); err != nil || refusal != policy.Accepted {
		t.Fatal(refusal, err)
	}
	member := NewMember(w.application, testTable, checkout)
	if _, err := member.Heartbeat(ctx, policy.Report{Member: "a/1", Pod: "a"}, time.Second); err != nil {
		t.Fatal(err)
	}
	state, err := member.Read(ctx)
	if err != nil || state.Owner != "blue" || state.Row == nil || state.Replicas == nil {
		t.Fatalf("%+v, %v", state, err)
	}
	published, _, err := table.Read(ctx, checkout)
	if err != nil || len(published.Members) != 1 || published.Row == nil {
		t.Fatalf("%+v, %v", published, err)
	}
	if workloads, err := table.Workloads(ctx); err != nil || len(workloads) != 1 {
		t.Fatal(workloads, err)
	}
	if err := w.store().Reset(ctx, []enforcer.Counter{fixed(identityAt(0, 0), "x", 1), fixed(identityAt(1, 0), "x", 1)}); err != nil {
		t.Fatal(err)
	}
}
