package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/internal/scenario"
)

// stores are the real ones whose addresses were given.
func (o *testOptions) stores() (map[scenario.StoreName]scenario.OpenStore, func()) {
	stores := make(map[scenario.StoreName]scenario.OpenStore)
	var shut []func()
	if o.redis != "" {
		client := redisstore.NewClient(&redis.UniversalOptions{Addrs: strings.Split(o.redis, ",")})
		shut = append(shut, func() { _ = client.Close() }) // nothing is left to lose
		stores[scenario.Redis] = openRedis(client)
	}
	return stores, func() {
		for _, f := range shut {
			f()
		}
	}
}

// openRedis gives each run a table of its own.
func openRedis(client redis.UniversalClient) scenario.OpenStore {
	return func(ctx context.Context, namespace string, clock func() int64) (enforcer.Store, func(), error) {
		if err := client.Ping(ctx).Err(); err != nil {
			return nil, nil, fmt.Errorf("asking Redis: %w", err)
		}
		store := redisstore.NewStore(redisstore.StoreOptions{
			Client: client, Table: "scenario-" + strings.ToLower(rand.Text()[:12]), Namespace: namespace, Time: clock,
		})
		return store, func() {}, nil
	}
}
