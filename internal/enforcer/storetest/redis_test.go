package storetest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/storetest"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
)

const table = "conformance"

// redisTarget is a Redis in one of its forms.
type redisTarget struct {
	options redis.UniversalOptions
	nodes   []string // addresses of all that hold keys
	split   bool
}

func runRedis(t *testing.T, target redisTarget, steps int) {
	t.Helper()
	redisTest := &redisSuite{target: target}
	for _, addr := range target.nodes {
		node := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true, Protocol: 2})
		t.Cleanup(func() { _ = node.Close() })
		redisTest.nodes = append(redisTest.nodes, node)
		addApplication(t, node)
	}
	storetest.Run(t, redisTest.newStore, storetest.Options{
		Split:      target.split,
		Pusher:     true,
		Steps:      steps,
		TimeToLive: redisTest.timeToLive,
		Spoil:      redisTest.spoil,
	})
}

func TestRedis(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	runRedis(t, redisTarget{
		options: redis.UniversalOptions{Addrs: []string{server.Addr}},
		nodes:   []string{server.Addr},
	}, 50_000)
}

func TestRedisCluster(t *testing.T) {
	servers := env.RedisCluster(t)
	runRedis(t, redisTarget{
		options: redis.UniversalOptions{Addrs: servers.Addrs},
		nodes:   servers.Addrs,
		split:   true,
	}, 20_000)
}

func TestRedisSentinel(t *testing.T) {
	servers := env.Sentinel(t)
	runRedis(t, redisTarget{
		options: redis.UniversalOptions{Addrs: servers.Addrs, MasterName: servers.Master},
		nodes:   []string{servers.Primary.Addr},
	}, 20_000)
}

type redisSuite struct {
	target redisTarget
	nodes  []*redis.Client
}

func (r *redisSuite) newStore(t *testing.T, clock func() int64) enforcer.Store {
	client := r.connect(t)
	if clock != nil {
		client.AddHook(keep{r.connect(t)})
	}
	return redisstore.NewStore(redisstore.StoreOptions{Client: client, Table: table, Namespace: "shop", Time: clock})
}

// connect makes an application's client as the library makes it.
func (r *redisSuite) connect(t *testing.T) redis.UniversalClient {
	t.Helper()
	options := r.target.options
	options.Username, options.Password = "weir-shop", "secret"
	client := redisstore.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// addApplication gives a node the user of config/redis, so that the suite shows what an application may do, and what
// the test does in the user's name besides: see keep.
func addApplication(t *testing.T, node *redis.Client) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "redis", "application.acl"))
	if err != nil {
		t.Fatal(err)
	}
	rules := strings.NewReplacer("TABLE", table, "NAMESPACE", "shop", "PASSWORD", "secret").Replace(string(file))
	rules += " +multi +exec +persist"
	command := []any{"acl", "setuser"}
	for _, rule := range strings.Fields(rules)[1:] {
		command = append(command, rule)
	}
	if err := node.Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
}

// find returns the key of a counter and the node that has it, by the limit's part of the name.
func (r *redisSuite) find(t *testing.T, c enforcer.Counter) (*redis.Client, string) {
	t.Helper()
	for _, node := range r.nodes {
		keys, err := node.Keys(t.Context(), "weir:"+table+":c:shop:*:"+c.ID).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) > 0 {
			return node, keys[0]
		}
	}
	return nil, ""
}

func (r *redisSuite) timeToLive(t *testing.T, c enforcer.Counter, _ int64) (time.Duration, bool) {
	t.Helper()
	node, key := r.find(t, c)
	if node == nil {
		return 0, false
	}
	lasts, known := lifetimes.Load(key)
	if !known {
		t.Fatalf("nobody saw how long %s lives", key)
	}
	return lasts.(time.Duration), true
}

func (r *redisSuite) spoil(t *testing.T, c enforcer.Counter, what storetest.Spoil) {
	t.Helper()
	node, key := r.find(t, c)
	if node == nil {
		t.Fatalf("%+v has no key", c)
	}
	ctx := t.Context()
	// The high half of the first byte of a state is its format; a log is a list of states.
	newer := func(state string) string { return string(state[0]+0x10) + state[1:] }
	var err error
	switch {
	case what == storetest.Garbage:
		err = node.Set(ctx, key, "garbage", time.Hour).Err()
	case c.Limit.Algorithm == algorithm.SlidingWindowLog:
		err = node.LSet(ctx, key, -1, newer(node.LIndex(ctx, key, -1).Val())).Err()
	default:
		err = node.Set(ctx, key, newer(node.Get(ctx, key).Val()), time.Hour).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lifetimes is how long each key was to live when a script had written it.
var lifetimes sync.Map

// keep stops the server from ending keys by its own clock while a test's runs as it likes: right behind each script,
// in one transaction, the keys lose the time to live that the script gave them, which is noted.
type keep struct{ direct redis.UniversalClient }

func (keep) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k keep) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		k.send(ctx, k.direct.TxPipeline(), cmd)
		return cmd.Err()
	}
}

func (k keep) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		// One transaction for each: outside of one a key whose life is a millisecond may end before it is kept.
		for _, cmd := range cmds {
			k.send(ctx, k.direct.TxPipeline(), cmd)
		}
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				return err
			}
		}
		return nil
	}
}

func (k keep) send(ctx context.Context, pipe redis.Pipeliner, cmd redis.Cmder) {
	left := map[string]*redis.DurationCmd{}
	_ = pipe.Process(ctx, cmd) // queues only
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		args := cmd.Args()
		count, _ := args[2].(int) // 0 for a script without keys
		for _, key := range args[3 : 3+count] {
			name, isText := key.(string)
			if place, isPlace := key.(*string); !isText && isPlace {
				name = *place
			}
			left[name] = pipe.PTTL(ctx, name)
			pipe.Persist(ctx, name)
		}
	}
	// The commands hold what came of them.
	_, _ = pipe.Exec(ctx)
	for key, ttl := range left {
		if ttl.Val() > 0 {
			lifetimes.Store(key, ttl.Val())
		}
	}
}

func FuzzRedisEqualsPure(f *testing.F) {
	server := env.Redis(f, env.RedisOptions{})
	connect := func() redis.UniversalClient {
		client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}})
		f.Cleanup(func() { _ = client.Close() })
		return client
	}
	storetest.Fuzz(f, func(clock func() int64) enforcer.Store {
		client := connect()
		client.AddHook(keep{connect()})
		return redisstore.NewStore(redisstore.StoreOptions{Client: client, Table: table, Namespace: "shop", Time: clock})
	}, storetest.Options{})
}
