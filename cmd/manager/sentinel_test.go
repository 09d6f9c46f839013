package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/test/env"
)

// The Sentinels get another password, and then another master: the controller finds it with the new password, and goes
// on with the old one while the Sentinels do not take the new one yet.
func TestTheSentinelsPasswordIsReplaced(t *testing.T) {
	servers := env.Sentinel(t)
	set := func(password string) {
		for _, address := range servers.Addrs {
			sentinel := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true, Protocol: 2})
			err := sentinel.Do(t.Context(), "ACL", "SETUSER", "weir", "on", "resetpass", ">"+password, "resetchannels", "&*", "-@all",
				"+sentinel|get-master-addr-by-name", "+sentinel|sentinels", "+sentinel|replicas", "+ping", "+subscribe").Err()
			_ = sentinel.Close()
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("first")
	write("first")
	r := &redisOptions{addresses: servers.Addrs, sentinelMaster: servers.Master, sentinelUsername: "weir", sentinelPasswordFile: file}
	client, err := r.client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	inUse := client
	rotation, err := newSentinelRotation(r, client, func(c redis.UniversalClient) { inUse = c }, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inUse.Close() }()
	ping := func(c redis.UniversalClient) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return c.Ping(ctx).Err()
	}
	if err := ping(client); err != nil {
		t.Fatal(err)
	}

	rotation.look(t.Context())
	if inUse != client {
		t.Fatal("another client for the same password")
	}
	write("second")
	rotation.look(t.Context())
	if inUse != client || ping(client) != nil {
		t.Fatal("a password that the Sentinels do not take yet was taken into use")
	}
	set("second")
	rotation.look(t.Context())
	if inUse == client {
		t.Fatal("the new password was not taken into use")
	}
	if err := ping(inUse); err != nil {
		t.Errorf("with the new password: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	rotation.look(t.Context())
	if err := ping(inUse); err != nil {
		t.Errorf("while the file is being replaced: %v", err)
	}
}
