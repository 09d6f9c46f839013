package env

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
)

func TestRedisClusterServesEverySlot(t *testing.T) {
	servers := RedisCluster(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: servers.Addrs[:1]})
	defer c.Close()
	for i := range 100 {
		key := fmt.Sprintf("key-%d", i)
		if err := c.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, primary := range servers.Primaries {
		size, err := client(t, redis.Options{Addr: primary.Addr}).DBSize(t.Context()).Result()
		if err != nil || size == 0 || size == 100 {
			t.Errorf("%s holds %d of 100 keys (%v), want a part of them", primary.Addr, size, err)
		}
	}
}

func TestRedisClusterServerComesBackWithItsSlots(t *testing.T) {
	servers := RedisCluster(t)
	servers.Primaries[1].Kill()
	servers.Primaries[1].Start()
	within(t, 20*time.Second, "the cluster is whole again", servers.whole)
}

func TestSentinelsReplaceAKilledPrimary(t *testing.T) {
	servers := Sentinel(t)
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.Master, SentinelAddrs: servers.Addrs})
	defer c.Close()
	if err := c.Set(t.Context(), "key", "before", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context(), 2, time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	servers.Primary.Kill()
	within(t, 30*time.Second, "another primary takes writes", func(ctx context.Context) error {
		return c.Set(ctx, "key", "after", 0).Err()
	})
	servers.Primary.Start()
	within(t, 30*time.Second, "the old primary follows the new one", servers.Primary.inSync)
}

// within waits until the condition holds and logs how long that took.
func within(t *testing.T, limit time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	if err := process.Poll(ctx, 20*time.Millisecond, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s after %.2fs", what, time.Since(began).Seconds())
}
