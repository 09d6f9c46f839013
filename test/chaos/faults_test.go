package chaos

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
)

// fault is one thing that fails, and what docs/outages.md promises then.
type fault struct {
	name  string
	modes []policy.OnStoreFailure
	bound bound
	// away says that no replica reaches the store from inject to heal.
	away bool
	// empty says that the store comes back without what it held.
	empty bool

	// prepare comes before the window of inject begins; it and heal may be nil.
	prepare, inject, heal func(*world)

	window time.Duration // of the limit; 2 s by default
	phase  float64       // when inject strikes, in windows from the beginning of one
	hold   float64       // how long after that heal comes, in windows
	form   form
	config []string // of redis-server
	// password of Redis; none by default.
	password string
	// clock is by how much the first replica's clock is ahead from the start.
	clock time.Duration
}

func (f *fault) length() time.Duration {
	if f.window == 0 {
		return 2 * time.Second
	}
	return f.window
}

var (
	localShare = []policy.OnStoreFailure{policy.OnStoreFailureLocalShare}
	all        = []policy.OnStoreFailure{policy.OnStoreFailureLocalShare, policy.OnStoreFailureFailOpen, policy.OnStoreFailureFailClosed}
)

// persistent is a Redis that has everything when it comes back.
var persistent = []string{"appendonly yes", "appendfsync no"} // what a killed process wrote, the system keeps

// faults are those of the store. By default they strike in the middle of a window whose budget the key even has spent on
// all replicas, and last for two and a half.
var faults = []fault{
	{
		name: "redis killed", modes: all, bound: switching, away: true, config: persistent,
		inject: func(w *world) { w.server.Kill() },
		heal:   func(w *world) { w.server.Start() },
	},
	{
		// B27: a server that answers, but only that it is LOADING. Start returns when it has loaded everything.
		name: "redis killed, and slow to load", modes: localShare, bound: switching, away: true, hold: 0.1,
		config:  append([]string{"key-load-delay 1000", "loading-process-events-interval-bytes 1024"}, persistent...),
		prepare: fill,
		inject:  func(w *world) { w.server.Kill() },
		heal:    startSlowly,
	},
	{
		name: "redis stopped (SIGSTOP)", modes: localShare, bound: switching, away: true,
		inject: func(w *world) { w.server.Pause() },
		heal:   func(w *world) { w.server.Resume() },
	},
	{
		// B19
		name: "packets dropped, sockets open", modes: all, bound: switching, away: true,
		inject: func(w *world) { w.proxy.set(conduct{silent: true}) },
		heal:   func(w *world) { w.proxy.set(conduct{}) },
	},
	{
		name: "replies 200 ms late", modes: localShare, bound: switching, away: true,
		inject: func(w *world) { w.proxy.set(conduct{delay: 200 * time.Millisecond}) },
		heal:   func(w *world) { w.proxy.set(conduct{}) },
	},
	{
		// B25: what was charged is indeterminate, and nothing is sent twice.
		name: "connections reset in mid-reply", modes: all, bound: cutOff,
		inject: func(w *world) { w.proxy.set(conduct{reset: 0.3}) },
		heal:   func(w *world) { w.proxy.set(conduct{}) },
	},
	{
		// B25
		name: "SCRIPT FLUSH", modes: localShare, bound: cutOff,
		inject: func(w *world) { w.do("SCRIPT", "FLUSH") },
	},
	{
		name: "FLUSHALL", modes: localShare, bound: lost, window: 5 * time.Second, phase: 0.3, hold: 0.2,
		inject: func(w *world) { w.do("FLUSHALL") },
	},
	{
		name: "redis killed and restarted empty, budget spent", modes: all, bound: switching, away: true, empty: true,
		window: 5 * time.Second, phase: 0.25, hold: 0.15,
		inject: func(w *world) { w.server.Kill() },
		heal:   func(w *world) { w.server.Start() },
	},
	{
		name: "memory full, noeviction", modes: localShare, bound: switching, away: true,
		inject: func(w *world) { w.do("CONFIG", "SET", "maxmemory", "1") },
		heal:   func(w *world) { w.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		name: "counters evicted, allkeys-lru", modes: localShare, bound: lost, window: 5 * time.Second, phase: 0.3, hold: 0.2,
		inject: evict,
	},
	{
		// B27
		name: "failover with lost writes", modes: localShare, bound: switching, form: bySentinels, window: 5 * time.Second, phase: 0.3, hold: 0.01,
		prepare: cutReplication,
		inject:  func(w *world) { w.server.Kill() },
		heal:    awaitPrimary,
	},
	{
		// B27: the connections of a primary that was demoted survive.
		name: "READONLY", modes: localShare, bound: switching, away: true,
		inject: func(w *world) { w.do("REPLICAOF", "127.0.0.1", "1") },
		heal:   func(w *world) { w.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "maxclients reached", modes: localShare, bound: switching, away: true,
		inject: func(w *world) { w.do("CONFIG", "SET", "maxclients", "1"); w.dropClients() },
		heal:   func(w *world) { w.do("CONFIG", "SET", "maxclients", "1000") },
	},
	{
		name: "password rotated", modes: localShare, bound: switching, away: true, password: "old", config: []string{"requirepass old"},
		inject: func(w *world) { w.do("CONFIG", "SET", "requirepass", "new"); w.dropClients() },
		heal:   func(w *world) { w.write("new") },
	},
	{
		name: "Cluster slots moved", modes: localShare, bound: cutOff, form: inCluster,
		inject: moveSlots,
	},
	{
		name: "clock stepped in a pod, redis killed", modes: localShare, bound: switching, away: true, config: persistent, clock: time.Hour,
		inject: func(w *world) { w.fleet.stepClock(0, -2*time.Hour); w.server.Kill() },
		heal:   func(w *world) { w.server.Start() },
	},
}

// fill gives the server so much that it needs a while to load it, at a millisecond each.
func fill(w *world) {
	w.t.Helper()
	pipeline := w.admin.Pipeline()
	for i := range 3000 {
		pipeline.Set(w.t.Context(), fmt.Sprint("filling-", i), "something", time.Minute)
	}
	if _, err := pipeline.Exec(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// startSlowly starts a server that was filled.
func startSlowly(w *world) {
	w.t.Helper()
	began := time.Now()
	w.server.Start()
	if took := time.Since(began); took < 2*time.Second {
		w.t.Errorf("the server was LOADING for %v only", took)
	}
}

// evict has the server evict everything once, because it has less memory than it needs. The commands go together, so
// that nobody is refused in between.
func evict(w *world) {
	w.t.Helper()
	ctx := w.t.Context()
	pipeline := w.admin.Pipeline()
	pipeline.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru")
	pipeline.ConfigSet(ctx, "maxmemory-eviction-tenacity", "100")
	pipeline.ConfigSet(ctx, "maxmemory", "1")
	left := pipeline.Keys(ctx, "*")
	pipeline.ConfigSet(ctx, "maxmemory", "0")
	evicted := pipeline.InfoMap(ctx, "stats")
	if _, err := pipeline.Exec(ctx); err != nil {
		w.t.Fatal(err)
	}
	if len(left.Val()) > 0 || evicted.Item("Stats", "evicted_keys") == "0" {
		w.t.Fatalf("%q remain, %s keys were evicted", left.Val(), evicted.Item("Stats", "evicted_keys"))
	}
}

// cutReplication has the replicas hear nothing any more: what the primary writes from now on, it alone has.
func cutReplication(w *world) {
	w.t.Helper()
	for _, replica := range w.sentinels.Replicas {
		w.at(replica.Addr, "CONFIG", "SET", "masterauth", "wrong")
	}
	w.at(w.server.Addr, "CLIENT", "KILL", "TYPE", "replica")
}

// awaitPrimary ends when the sentinels have made another primary, and lets that one have its replica.
func awaitPrimary(w *world) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		return w.admin.Set(ctx, "written", "by the new primary", time.Minute).Err()
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, replica := range w.sentinels.Replicas {
		w.at(replica.Addr, "CONFIG", "SET", "masterauth", "")
	}
}

// moveSlots moves the slots of all counters to the next server, while requests come: first the slot is announced as
// moving, then its keys go, and then it belongs to the other.
func moveSlots(w *world) {
	w.t.Helper()
	servers := w.cluster.Addrs
	ids := make([]string, len(servers))
	slots := make([][]any, len(servers))
	for i, address := range servers {
		ids[i] = fmt.Sprint(w.at(address, "CLUSTER", "MYID"))
		for _, key := range list(w.at(address, "KEYS", "weir:default:c:*")) {
			if slot := w.at(address, "CLUSTER", "KEYSLOT", key); !slices.Contains(slots[i], slot) {
				slots[i] = append(slots[i], slot)
			}
		}
	}
	for i, from := range servers {
		next := (i + 1) % len(servers)
		to := servers[next]
		host, port, err := net.SplitHostPort(to)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, slot := range slots[i] {
			w.at(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[i])
			w.at(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[next])
			w.wait(time.Now().Add(100 * time.Millisecond)) // new keys go to the other already
			keys := list(w.at(from, "CLUSTER", "GETKEYSINSLOT", slot, 1000))
			w.at(from, append([]any{"MIGRATE", host, port, "", 0, 1000, "KEYS"}, keys...)...)
			w.wait(time.Now().Add(100 * time.Millisecond)) // so do all others
			for _, server := range []string{to, from, servers[(i+2)%len(servers)]} {
				w.at(server, "CLUSTER", "SETSLOT", slot, "NODE", ids[next])
			}
		}
	}
}

func list(reply any) []any {
	items, _ := reply.([]any)
	return items
}
