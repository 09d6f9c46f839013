package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Evicts returns the maxmemory-policy of a server that may drop rows to make room, such as "allkeys-lru", and nothing
// where none does. Rows have no time to live, so the volatile policies leave them alone. A server that does not say is
// taken for one that drops nothing: a managed Redis may forbid the question.
func (t *Table) Evicts(ctx context.Context) (string, error) {
	cluster, ok := t.redis().(*redis.ClusterClient)
	if !ok {
		return evicts(ctx, t.redis())
	}
	var mu sync.Mutex
	var found string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		name, err := evicts(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		found = max(found, name)
		return err
	})
	return found, err
}

func evicts(ctx context.Context, client redis.Cmdable) (string, error) {
	text, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return "", fmt.Errorf("asking for the maxmemory-policy: %w", classify(err))
	}
	return evictionOf(text), nil
}

// evictionOf reads the answer to INFO memory.
func evictionOf(info string) string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	name := fields["maxmemory_policy"]
	if limit := fields["maxmemory"]; limit == "" || limit == "0" || !strings.HasPrefix(name, "allkeys-") {
		return ""
	}
	return name
}
