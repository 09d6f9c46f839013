package chaos

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
)

const (
	replicas = 5
	// requests are the limit of each window: 20 for each of the replicas.
	requests = 100

	// Every replica sends requests with the key even. Those with the key one come to the first replica alone, until
	// something breaks: then to all of them, most of which never heard of it.
	keyEven = "even"
	keyOne  = "one"
	// keyPulse begins the keys of which each replica has one of its own.
	keyPulse = "pulse-"
)

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// world is a store with policies in it, and replicas.
type world struct {
	t     *testing.T
	fault *fault
	mode  policy.OnStoreFailure

	server    *env.RedisServer // the only one, or the first primary
	sentinels *env.SentinelServers
	cluster   *env.RedisClusterServers
	proxy     *proxy // between replicas and server; nil where they are told the servers' own addresses

	address  redis.UniversalOptions // of the servers themselves
	password string                 // the file that holds it
	admin    redis.UniversalClient
	fleet    *fleet
	open     float64 // µs that a decision took while the breaker was open
}

// form is how the store is built.
type form int

const (
	oneServer form = iota
	bySentinels
	inCluster
)

func newWorld(t *testing.T, f *fault, mode policy.OnStoreFailure, seed uint64) *world {
	t.Helper()
	w := &world{t: t, fault: f, mode: mode, password: filepath.Join(t.TempDir(), "password")}
	w.write(f.password)
	environment := []string{
		"WEIR_NAMESPACE=" + workload.Namespace, "WEIR_WORKLOAD=" + workload.Name, "STORE_TIMEOUT=" + timeoutFlag.String(),
	}
	var seen []string // the addresses as the replicas see them
	switch f.form {
	case oneServer:
		w.server = env.Redis(t, env.RedisOptions{Config: f.config})
		w.proxy = newProxy(t, w.server.Addr, seed)
		w.address.Addrs, seen = []string{w.server.Addr}, []string{w.proxy.addr}
	case bySentinels:
		w.sentinels = env.Sentinel(t)
		w.server = w.sentinels.Primary
		w.address.Addrs, seen = w.sentinels.Addrs, w.sentinels.Addrs
		w.address.MasterName = w.sentinels.Master
		environment = append(environment, "REDIS_MASTER="+w.sentinels.Master)
	case inCluster:
		w.cluster = env.RedisCluster(t)
		w.address.Addrs, seen = w.cluster.Addrs, w.cluster.Addrs
	}
	environment = append(environment, "REDIS="+strings.Join(seen, ","))
	if f.password != "" {
		environment = append(environment, "REDIS_PASSWORD_FILE="+w.password)
		w.address.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := os.ReadFile(w.password)
			return "", string(password), err
		}
	}
	w.admin = redisstore.NewClient(&w.address)
	t.Cleanup(func() { _ = w.admin.Close() })
	w.control()
	w.fleet = startFleet(t, replicas, func(i int) []string {
		if i == 0 && f.clock != 0 {
			return append(environment, "CLOCK_AHEAD="+f.clock.String())
		}
		return environment
	})
	return w
}

func (w *world) write(password string) {
	w.t.Helper()
	if err := os.WriteFile(w.password, []byte(password), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// row is what the controller makes of the policy.
func (w *world) row() policy.Row {
	n := int64(requests)
	row, verdicts := policy.Compile(workload, "chaos", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: workload.Namespace, Name: "p", UID: "uid", Generation: 1},
		Spec: policy.Spec{
			TargetRef:      policy.TargetRef{Group: workload.Group, Kind: workload.Kind, Name: workload.Name},
			OnStoreFailure: w.mode,
			Rules: []policy.Rule{{
				Name:   "r",
				Key:    []policy.KeyPart{{Header: "X-Api-Key"}},
				Limits: []policy.Limit{{Requests: &n, Window: w.fault.length().String(), Algorithm: policy.FixedWindow}},
			}},
		},
	}})
	if !verdicts[0].Accepted() {
		w.t.Fatal(verdicts[0].Message)
	}
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: 1}, "1"
	return row
}

// control publishes what the controller would, and again whenever it is gone, until the test ends.
func (w *world) control() {
	w.t.Helper()
	client := redisstore.NewClient(&w.address)
	table := redisstore.NewTable(client, "", "chaos")
	row := w.row()
	publish := func(ctx context.Context) error {
		published, _, err := table.Read(ctx, workload)
		if err != nil || published.Row != nil && published.Replicas != nil {
			return err
		}
		if _, err := table.Claim(ctx, "1"); err != nil {
			return err
		}
		if _, err := table.Publish(ctx, workload, row); err != nil {
			return err
		}
		_, err = table.PublishReplicas(ctx, workload, "1", policy.Replicas{
			Version: policy.RowVersion, N: replicas, Ready: replicas, Desired: replicas, IdleSince: 1, At: time.Now().UnixMicro(),
		})
		return err
	}
	if err := publish(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				within, cancel := context.WithTimeout(ctx, time.Second)
				_ = publish(within) // it fails while the store does
				cancel()
			}
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-ended
		_ = client.Close()
	})
}

// do sends a command to the server and fails the test on an error.
func (w *world) do(args ...any) {
	w.t.Helper()
	if err := w.admin.Do(w.t.Context(), args...).Err(); err != nil {
		w.t.Fatalf("%v: %v", args, err)
	}
}

// at sends a command to one of several servers.
func (w *world) at(address string, args ...any) any {
	w.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DisableIdentity: true, Protocol: 2})
	defer client.Close()
	reply, err := client.Do(w.t.Context(), args...).Result()
	if err != nil {
		w.t.Fatalf("%v at %s: %v", args, address, err)
	}
	return reply
}

// dropClients ends the connections of everybody else.
func (w *world) dropClients() {
	w.t.Helper()
	w.do("CLIENT", "KILL", "TYPE", "pubsub")
	w.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
}

// wait waits for a time.
func (w *world) wait(until time.Time) {
	w.t.Helper()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.t.Context().Done():
		w.t.Fatal(context.Cause(w.t.Context()))
	}
}
