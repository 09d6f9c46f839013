package kubectl

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

// flooded is a workload in a Redis with the users of config/redis, and no cluster: each identity may do one request.
type flooded struct {
	redis    *env.RedisServer
	row      []byte
	replicas []*ratelimit.Limiter
	metrics  []string // addresses
}

var shopCheckout = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// users renders the access list of config/redis for the table and the namespace of the test.
func users(t *testing.T) string {
	t.Helper()
	text := "user default on nopass ~* &* +@all\n"
	for _, file := range []string{"controller.acl", "application.acl"} {
		lines, err := os.ReadFile(filepath.Join(root, "config", "redis", file))
		if err != nil {
			t.Fatal(err)
		}
		text += strings.NewReplacer("TABLE", table, "NAMESPACE", "shop", "PASSWORD", "secret").Replace(string(lines))
	}
	return text
}

func newFlooded(t *testing.T, replicas int, name func(ratelimit.Request) string) *flooded {
	t.Helper()
	f := &flooded{redis: env.Redis(t, env.RedisOptions{ACL: users(t)})}
	f.publish(t, replicas)
	for i := range replicas {
		registry := prometheus.NewRegistry()
		l, err := ratelimit.New(ratelimit.Options{
			Redis: &redis.UniversalOptions{Addrs: []string{f.redis.Addr}, Username: "weir-shop", Password: "secret"},
			Table: table, Namespace: "shop", Workload: "checkout", Pod: fmt.Sprintf("checkout-%d", i), Registerer: registry,
			StoreTimeout: patience, PollInterval: time.Second, IdentityName: name,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
		if err := l.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		t.Cleanup(server.Close)
		f.replicas, f.metrics = append(f.replicas, l), append(f.metrics, server.URL)
	}
	return f
}

// publish writes what a controller would.
func (f *flooded) publish(t *testing.T, replicas int) {
	t.Helper()
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{f.redis.Addr}, Username: "weir-controller", Password: "secret"})
	defer client.Close()
	one := int64(1)
	row, _ := policy.Compile(shopCheckout, "test", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: "shop", Name: "checkout", UID: "uid", Generation: 1},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules: []policy.Rule{{
				Name: "default", Key: []policy.KeyPart{{Header: "X-Api-Key"}},
				Limits: []policy.Limit{{Requests: &one, Window: "24h", Algorithm: policy.FixedWindow}},
			}},
		},
	}})
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: 1}, "1"
	var err error
	if f.row, err = policy.EncodeRow(row); err != nil {
		t.Fatal(err)
	}
	written := redisstore.NewTable(client, table, "test")
	if _, err := written.Claim(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if refusal, err := written.Publish(t.Context(), shopCheckout, row); err != nil || refusal != policy.Accepted {
		t.Fatalf("publishing: %q, %v", refusal, err)
	}
	if refusal, err := written.PublishReplicas(t.Context(), shopCheckout, "1", policy.Replicas{
		Version: policy.RowVersion, N: replicas, Ready: replicas, Desired: replicas, IdleSince: 1, At: time.Now().UnixMicro(),
	}); err != nil || refusal != policy.Accepted {
		t.Fatalf("publishing the count: %q, %v", refusal, err)
	}
}

// awaitReports waits until all replicas have told whom they deny.
func (f *flooded) awaitReports(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := process.Poll(ctx, 200*time.Millisecond, func(context.Context) error {
		got, err := top(t, f.topArgs("--identities", "5"))
		if err == nil && (got.Denied.Replicas != len(f.replicas) || len(got.Denied.Identities) < 5 || got.Denied.Identities[4].Denied < 10) {
			err = errors.New("not all have reported")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// identityOf is the hash by which a key is counted.
func (f *flooded) identityOf(t *testing.T, key string) string {
	t.Helper()
	memory := memstore.New(memstore.Options{})
	e := enforcer.New(enforcer.Options{Store: memory, Local: memory, Table: enforcer.FixedRow(f.row)})
	if err := e.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules, _ := e.Explain(enforcer.Request(request(key)))
	return hex.EncodeToString(rules[0].Identity[:])
}

// topArgs are a call of top that reads all replicas.
func (f *flooded) topArgs(more ...string) []string {
	args := []string{"top", "checkout", "-n", "shop", "--interval", "200ms", "--table", table, "--redis", f.redis.Addr}
	for _, address := range f.metrics {
		args = append(args, "--metrics-url", address)
	}
	return append(args, more...)
}

// told is what top says with -o json.
type told struct {
	Read, Replicas int
	Rules          []struct{ Rule string }
	Denied         struct {
		Seconds    float64
		Replicas   int
		Identities []struct {
			Policy, Rule, Identity, Name string
			Denied, Over                 int64
			Share                        float64
		}
	}
}

func top(t *testing.T, args []string) (told, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), env.Build(t, "cmd/kubectl-weir"), append(args, "--count", "1", "-o", "json")...).Output()
	if err != nil {
		return told{}, fmt.Errorf("%w: %s", err, out)
	}
	var v told
	return v, json.Unmarshal(out, &v)
}

// In a flood of 10,000 identities the ten that are denied most are those that top names, and its counts are within the
// bound of the sketch.
func TestTopFindsWhoIsDeniedMost(t *testing.T) {
	const (
		identities = 10_000
		hot        = 10
		room       = 128 // of an enforcer's sketch
	)
	f := newFlooded(t, 3, func(r ratelimit.Request) string {
		if key := r.Header.Get("X-Api-Key"); key < "hot-5" {
			return key + "\x1b[31m" // what could colour a terminal
		}
		return ""
	})
	// The tenth is denied more often than the bound, and all others hardly at all.
	var flood []string
	for i := range identities {
		key, n := fmt.Sprintf("cold-%d", i), 2
		if i < hot {
			key, n = fmt.Sprintf("hot-%d", i), 2000-100*i
		}
		for range n {
			flood = append(flood, key)
		}
	}
	seed := rand.Uint64()
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(flood), func(i, j int) { flood[i], flood[j] = flood[j], flood[i] })
	truth := make(map[string]int64)
	env.Build(t, "cmd/kubectl-weir") // before, for what is reported is of the last minute or two
	cached := f.send(t, flood, truth)
	var total int64
	for _, n := range truth {
		total += n
	}
	if cached < total/10 {
		t.Errorf("seed %d: %d of %d were denied without the store: the test does not show what it should", seed, cached, total)
	}

	var got told
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := process.Poll(ctx, 200*time.Millisecond, func(context.Context) error { // replicas report every second
		var err error
		if got, err = top(t, f.topArgs()); err != nil {
			return err
		}
		if got.Denied.Replicas != 3 || len(got.Denied.Identities) != hot || got.Denied.Identities[hot-1].Denied < truth["hot-9"] {
			return errors.New("not all has been reported")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("seed %d: %v: %+v", seed, err, got)
	}
	bound := total / room
	t.Logf("%d denied, %d of them without the store, reported of %.0f s; the bound is %d", total, cached, got.Denied.Seconds, bound)
	byID := map[string]string{}
	for i := range hot {
		key := fmt.Sprintf("hot-%d", i)
		byID[f.identityOf(t, key)] = key
	}
	for _, id := range got.Denied.Identities {
		key := byID[id.Identity]
		if key == "" {
			t.Errorf("seed %d: %+v is none of the ten", seed, id)
			continue
		}
		delete(byID, id.Identity)
		// Requests that are denied at the very moment of a count may be missed.
		const missed = 3
		if id.Denied < truth[key]-missed || id.Denied-id.Over > truth[key] || id.Over > bound {
			t.Errorf("seed %d: %s was denied %d times, told as %d with an error of %d; the bound is %d", seed, key, truth[key], id.Denied, id.Over, bound)
		}
		if id.Name != "" && id.Name != key+"\uFFFD[31m" || id.Name == "" && key < "hot-5" {
			t.Errorf("seed %d: %s is named %q", seed, key, id.Name)
		}
		if id.Policy != "checkout" || id.Rule != "default" || id.Share <= 0 || id.Share >= 0.2 {
			t.Errorf("seed %d: %+v", seed, id)
		}
	}
	f.people(t)
}

// send sends requests to all replicas at once, counts who was denied, and how many without the store.
func (f *flooded) send(t *testing.T, keys []string, truth map[string]int64) (cached int64) {
	t.Helper()
	var mu sync.Mutex
	var remembered atomic.Int64
	var group sync.WaitGroup
	const senders = 1024 // so that few round trips do, also on a busy machine
	for part := range slices.Chunk(keys, (len(keys)+senders-1)/senders) {
		group.Go(func() {
			mine := map[string]int64{}
			for i, key := range part {
				d := f.replicas[i%len(f.replicas)].Decide(t.Context(), request(key))
				switch {
				case d.Allowed:
				case d.Status != http.StatusTooManyRequests:
					t.Errorf("%+v", d)
				case d.Source == ratelimit.SourceDenyCache:
					remembered.Add(1)
					fallthrough
				default:
					mine[key]++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for key, n := range mine {
				truth[key] += n
			}
		})
	}
	group.Wait()
	return remembered.Load()
}

// people see names, and the first digits of hashes.
func (f *flooded) people(t *testing.T) {
	t.Helper()
	path := env.Build(t, "cmd/kubectl-weir")
	for _, args := range [][]string{
		f.topArgs("--count", "1", "--identities", "3"),
		// Whoever may not see the metrics, or has none, still sees who is denied.
		append(f.topArgs("--count", "1", "--identities", "3")[:10], "--metrics-url", "http://127.0.0.1:1/", "--count", "1", "--identities", "3"),
	} {
		out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
		text := string(out)
		if err != nil || strings.Contains(text, "\x1b") || strings.Count(text, "checkout/default ") < 3 ||
			!strings.Contains(text, "Denied most in the last ") || !strings.Contains(text, "("+f.identityOf(t, "hot-0")[:12]+")") {
			t.Errorf("%v: %v\n%s", args, err, text)
		}
	}
}
