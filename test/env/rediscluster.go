package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// RedisClusterServers is a Redis Cluster of three primaries without replicas.
type RedisClusterServers struct {
	// Addrs are the three servers' addresses.
	Addrs []string
	// Primaries are the servers, in the order of their slots: a third of the 16384 each.
	Primaries []*RedisServer
}

// busOffset is how far above its port a Redis Cluster server talks to the others.
const busOffset = 10000

// RedisCluster starts a Redis Cluster and returns when all three servers serve all slots.
func RedisCluster(t testing.TB) *RedisClusterServers {
	t.Helper()
	const size, slots = 3, 16384
	c := &RedisClusterServers{}
	for range size {
		server := startRedis(t, freePort(t, busOffset), RedisOptions{Config: []string{
			"cluster-enabled yes",
			"cluster-config-file nodes.conf",
			"cluster-node-timeout 2000",
		}})
		c.Primaries = append(c.Primaries, server)
		c.Addrs = append(c.Addrs, server.Addr)
	}
	ctx := readyContext(t)
	first, port, err := net.SplitHostPort(c.Addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, server := range c.Primaries {
		assign := []any{"CLUSTER", "ADDSLOTS"}
		for slot := slots * i / size; slot < slots*(i+1)/size; slot++ {
			assign = append(assign, slot)
		}
		server.do(ctx, assign...)
		server.do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i > 0 {
			server.do(ctx, "CLUSTER", "MEET", first, port)
		}
	}
	if err := process.Poll(ctx, 20*time.Millisecond, c.whole); err != nil {
		t.Fatalf("waiting for the Redis Cluster: %v", err)
	}
	return c
}

// whole is satisfied when each server says that all slots are served, and none is still shaking hands.
func (c *RedisClusterServers) whole(ctx context.Context) error {
	for _, server := range c.Primaries {
		info, err := server.info(ctx, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != "16384" || info["cluster_known_nodes"] != "3" {
			return fmt.Errorf("%s: %v", server.Addr, info)
		}
		client := server.admin()
		nodes, err := client.Do(ctx, "CLUSTER", "NODES").Text()
		_ = client.Close()
		if err != nil {
			return err
		}
		if strings.Contains(nodes, "handshake") {
			return errors.New(nodes)
		}
	}
	return nil
}
