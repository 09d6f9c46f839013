package redisstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

const testTable = "t1"

var checkout = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// world is a Redis with the two users of config/redis, of table t1 and namespace shop.
type world struct {
	server      *env.RedisServer
	admin       redis.UniversalClient // may do everything
	controller  redis.UniversalClient
	application redis.UniversalClient
}

// acl renders a file of config/redis.
func acl(t testing.TB, file, namespace string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "redis", file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("TABLE", testTable, "NAMESPACE", namespace, "PASSWORD", "secret").Replace(string(text))
}

func newWorld(t testing.TB, options env.RedisOptions) *world {
	t.Helper()
	options.ACL = "user default on nopass ~* &* +@all\n" + acl(t, "controller.acl", "") + acl(t, "application.acl", "shop")
	server := env.Redis(t, options)
	return &world{
		server:      server,
		admin:       connect(t, server.Addr, ""),
		controller:  connect(t, server.Addr, "weir-controller"),
		application: connect(t, server.Addr, "weir-shop"),
	}
}

func connect(t testing.TB, addr, user string) redis.UniversalClient {
	t.Helper()
	options := &redis.UniversalOptions{Addrs: []string{addr}}
	if user != "" {
		options.Username, options.Password = user, "secret"
	}
	client := NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (w *world) member() *Member { return NewMember(w.application, testTable, checkout) }

func (w *world) store(time func() int64) *Store {
	return NewStore(StoreOptions{Client: w.application, Table: testTable, Namespace: "shop", Time: time})
}
