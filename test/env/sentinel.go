package env

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// SentinelServers is one Redis primary with two replicas, watched by three sentinels that agree by two votes. They
// miss a silent primary after half a second and have another one a second or two later.
type SentinelServers struct {
	// Master is the name under which the sentinels know the primary.
	Master string
	// Addrs are the three sentinels' addresses.
	Addrs []string
	// Primary is the server that was the primary at the start.
	Primary *RedisServer
	// Replicas are the servers that were replicas at the start.
	Replicas []*RedisServer
	// Sentinels are the sentinels themselves.
	Sentinels []*RedisServer
}

// Sentinel starts servers and sentinels and returns when all of them know each other.
func Sentinel(t testing.TB) *SentinelServers {
	t.Helper()
	const replicas, sentinels, votes = 2, 3, 2
	s := &SentinelServers{Master: "weir"}
	s.Primary = Redis(t, RedisOptions{Config: []string{"repl-diskless-sync-delay 0"}})
	host, port, err := net.SplitHostPort(s.Primary.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for range replicas {
		s.Replicas = append(s.Replicas, Redis(t, RedisOptions{Config: []string{
			"repl-diskless-sync-delay 0",
			fmt.Sprintf("replicaof %s %s", host, port),
		}}))
	}
	ctx := readyContext(t)
	for _, replica := range s.Replicas {
		if err := process.Poll(ctx, 20*time.Millisecond, replica.inSync); err != nil {
			t.Fatalf("waiting for a replica: %v", err)
		}
	}
	for range sentinels {
		sentinel := startRedis(t, freePort(t), RedisOptions{Config: []string{
			fmt.Sprintf("sentinel monitor %s %s %s %d", s.Master, host, port, votes),
			"sentinel down-after-milliseconds " + s.Master + " 500",
			"sentinel failover-timeout " + s.Master + " 3000",
		}}, "--sentinel")
		s.Sentinels = append(s.Sentinels, sentinel)
		s.Addrs = append(s.Addrs, sentinel.Addr)
	}
	for _, sentinel := range s.Sentinels {
		if err := process.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
			return sentinel.knows(ctx, s.Master, replicas, sentinels-1)
		}); err != nil {
			t.Fatalf("waiting for the sentinels: %v", err)
		}
	}
	return s
}

func (s *RedisServer) inSync(ctx context.Context) error {
	info, err := s.info(ctx, "INFO", "replication")
	if err == nil && info["master_link_status"] != "up" {
		err = fmt.Errorf("%s: %v", s.Addr, info)
	}
	return err
}

// knows asks a sentinel whether it sees the primary, so many replicas and so many other sentinels.
func (s *RedisServer) knows(ctx context.Context, master string, replicas, others int) error {
	client := s.admin()
	defer client.Close()
	reply, err := client.Do(ctx, "SENTINEL", "MASTER", master).StringSlice()
	if err != nil {
		return err
	}
	fields := map[string]string{}
	for i := 0; i+1 < len(reply); i += 2 {
		fields[reply[i]] = reply[i+1]
	}
	if fields["flags"] != "master" || fields["num-slaves"] != strconv.Itoa(replicas) || fields["num-other-sentinels"] != strconv.Itoa(others) {
		return fmt.Errorf("sentinel %s: flags %s, %s replicas, %s other sentinels", s.Addr, fields["flags"], fields["num-slaves"], fields["num-other-sentinels"])
	}
	return nil
}
