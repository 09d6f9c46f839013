package env

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func client(t *testing.T, options redis.Options) *redis.Client {
	t.Helper()
	options.MaxRetries = -1
	options.DialerRetries = 1
	options.ContextTimeoutEnabled = true
	c := redis.NewClient(&options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRedisComesBackEmptyOnTheSamePort(t *testing.T) {
	ctx := t.Context()
	server := Redis(t, RedisOptions{})
	c := client(t, redis.Options{Addr: server.Addr})
	for _, end := range []func(){server.Stop, server.Kill} {
		if err := c.Set(ctx, "key", "value", 0).Err(); err != nil {
			t.Fatal(err)
		}
		end()
		if err := c.Get(ctx, "key").Err(); err == nil || errors.Is(err, redis.Nil) {
			t.Fatalf("a stopped Redis answered: %v", err)
		}
		server.Start()
		if err := c.Get(ctx, "key").Err(); !errors.Is(err, redis.Nil) {
			t.Fatalf("GET after the restart: got %v, want redis.Nil", err)
		}
	}
	server.Restart()
}

func TestPausedRedisIsSilentAndThenExecutes(t *testing.T) {
	ctx := t.Context()
	server := Redis(t, RedisOptions{})
	c := client(t, redis.Options{Addr: server.Addr})
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err := c.Incr(short, "count").Err()
	var network net.Error
	timedOut := errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &network) && network.Timeout())
	if !timedOut {
		t.Fatalf("INCR on a paused Redis: got %v, want a time-out", err)
	}
	server.Resume()
	if got, err := c.Get(ctx, "count").Int(); err != nil || got != 1 {
		t.Fatalf("count after Resume: got %d, %v; want 1", got, err)
	}
	server.Pause() // and the end of the test must not hang on a paused server
}

func TestRedisOptionsReachTheServer(t *testing.T) {
	ctx := t.Context()
	server := Redis(t, RedisOptions{
		Config: []string{"maxmemory 5mb"},
		ACL:    "user default off\nuser reader on >secret ~* +get +config|get\n",
	})
	anyone := client(t, redis.Options{Addr: server.Addr})
	if err := anyone.Get(ctx, "key").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Fatalf("GET without a user: got %v, want NOAUTH", err)
	}
	reader := client(t, redis.Options{Addr: server.Addr, Username: "reader", Password: "secret", DisableIdentity: true})
	if err := reader.Set(ctx, "key", "value", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Fatalf("SET by the reader: got %v, want NOPERM", err)
	}
	got, err := reader.ConfigGet(ctx, "maxmemory").Result()
	if err != nil || got["maxmemory"] != "5242880" {
		t.Fatalf("maxmemory: got %v, %v; want 5242880", got, err)
	}
}
