package redisstore

import (
	"testing"

	"github.com/weir-dev/weir/test/env"
)

func TestEvictsNamesPoliciesThatDropRows(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	table := NewTable(w.controller, testTable, "a")
	for _, c := range []struct{ memory, policy, want string }{
		{"0", "allkeys-lru", ""}, // without a limit nothing has to go
		{"100mb", "noeviction", ""},
		{"100mb", "volatile-ttl", ""},
		{"100mb", "allkeys-lru", "allkeys-lru"},
		{"100mb", "allkeys-random", "allkeys-random"},
	} {
		w.admin.ConfigSet(t.Context(), "maxmemory", c.memory)
		w.admin.ConfigSet(t.Context(), "maxmemory-policy", c.policy)
		if got, err := table.Evicts(t.Context()); err != nil || got != c.want {
			t.Errorf("maxmemory %s, %s: %q, %v; want %q", c.memory, c.policy, got, err, c.want)
		}
	}
}

func TestEvictsAsksEveryServerOfACluster(t *testing.T) {
	w := newClusterWorld(t)
	table := NewTable(w.controller, testTable, "a")
	if got, err := table.Evicts(t.Context()); err != nil || got != "" {
		t.Errorf("%q, %v; want nothing", got, err)
	}
	w.nodes[1].ConfigSet(t.Context(), "maxmemory", "100mb")
	w.nodes[1].ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lfu")
	if got, err := table.Evicts(t.Context()); err != nil || got != "allkeys-lfu" {
		t.Errorf("%q, %v; want allkeys-lfu", got, err)
	}
}
