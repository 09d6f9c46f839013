package redisstore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

// answering is a server that greets and then answers everything alike.
func answering(t *testing.T, reply string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn, reply)
		}
	}()
	return listener.Addr().String()
}

func tryTake(ctx context.Context, client redis.UniversalClient) error {
	s := NewStore(StoreOptions{Client: client, Table: testTable, Namespace: "shop"})
	c := counterOf("any", algorithm.TokenBucket, 10, time.Minute)
	_, err := s.Take(ctx, []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1}}, make([]enforcer.Answer, 1))
	return err
}

func TestEveryFailureHasItsReason(t *testing.T) {
	for reply, want := range map[string]enforcer.Reason{
		"-NOAUTH Authentication required.":                                                       enforcer.ReasonAuth,
		"-WRONGPASS invalid username-password pair or user is disabled.":                         enforcer.ReasonAuth,
		"-NOPERM this user has no permissions to run the 'evalsha' command":                      enforcer.ReasonAuth,
		"-READONLY You can't write against a read only replica.":                                 enforcer.ReasonReadOnly,
		"-ERR Error running script (call to f_1): @user_script:7: -READONLY You can't w":         enforcer.ReasonReadOnly,
		"-MISCONF Redis is configured to save RDB snapshots":                                     enforcer.ReasonReadOnly,
		"-LOADING Redis is loading the dataset in memory":                                        enforcer.ReasonLoading,
		"-MASTERDOWN Link with MASTER is down":                                                   enforcer.ReasonLoading,
		"-BUSY Redis is busy running a script.":                                                  enforcer.ReasonLoading,
		"-MOVED 3999 127.0.0.1:6381":                                                             enforcer.ReasonMoved,
		"-ASK 3999 127.0.0.1:6381":                                                               enforcer.ReasonMoved,
		"-TRYAGAIN Multiple keys request during rehashing of slot":                               enforcer.ReasonMoved,
		"-CLUSTERDOWN The cluster is down":                                                       enforcer.ReasonMoved,
		"-CROSSSLOT Keys in request don't hash to the same slot":                                 enforcer.ReasonCrossSlot,
		"-OOM command not allowed when used memory > 'maxmemory'.":                               enforcer.ReasonMemory,
		"-ERR Error running script (call to f_1): @user_script:7: @user_script: 7: -OOM command": enforcer.ReasonMemory,
		"-NOSCRIPT No matching script. Please use EVAL.":                                         enforcer.ReasonNoScript,
		"-ERR user_script:7: attempt to index a nil value script: f_1":                           enforcer.ReasonScript,
		"-ERR max number of clients reached":                                                     enforcer.ReasonClients,
		"-ERR something else":                                                                    enforcer.ReasonOther,
		":1":                                                                                     enforcer.ReasonReply,
		"$-1":                                                                                    enforcer.ReasonReply,
		"$3\r\nabc":                                                                              enforcer.ReasonReply,
		"*0":                                                                                     enforcer.ReasonReply,
		"+OK":                                                                                    enforcer.ReasonReply,
		"HTTP/1.1 400 Bad Request":                                                               enforcer.ReasonReply,
	} {
		t.Run(reply, func(t *testing.T) {
			client := connect(t, answering(t, reply), "")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := tryTake(ctx, client); reasonOf(err) != want {
				t.Errorf("%v is %q, want %q", err, reasonOf(err), want)
			}
		})
	}
}

func TestEveryNetworkFailureHasItsReason(t *testing.T) {
	silent := env.Redis(t, env.RedisOptions{})
	silent.Pause()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	hangsUp := answering(t, "")
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	go func() {
		for {
			conn, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, "-ERR this is not TLS\r\n")
			_ = conn.Close()
		}
	}()
	for name, c := range map[string]struct {
		options redis.UniversalOptions
		timeout time.Duration
		cancel  bool
		want    enforcer.Reason
	}{
		"nobody listens":     {redis.UniversalOptions{Addrs: []string{closed.Addr().String()}}, time.Minute, false, enforcer.ReasonRefused},
		"no such name":       {redis.UniversalOptions{Addrs: []string{"redis.invalid:6379"}}, time.Minute, false, enforcer.ReasonDNS},
		"a silent server":    {redis.UniversalOptions{Addrs: []string{silent.Addr}}, 50 * time.Millisecond, false, enforcer.ReasonTimeout},
		"TLS to plain text":  {redis.UniversalOptions{Addrs: []string{plain.Addr().String()}, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}, time.Minute, false, enforcer.ReasonTLS},
		"the other hangs up": {redis.UniversalOptions{Addrs: []string{hangsUp}}, time.Minute, false, enforcer.ReasonReset},
		"the caller leaves":  {redis.UniversalOptions{Addrs: []string{silent.Addr}}, time.Minute, true, enforcer.ReasonOther},
	} {
		t.Run(name, func(t *testing.T) {
			client := NewClient(&c.options)
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			if c.cancel {
				cancel()
			}
			if err := tryTake(ctx, client); reasonOf(err) != c.want {
				t.Errorf("%v is %q, want %q", err, reasonOf(err), c.want)
			}
		})
	}
}

func TestB27ConnectionsToADemotedMasterAreGivenUp(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	var dials atomic.Int64
	client := NewClient(&redis.UniversalOptions{
		Addrs: []string{w.server.Addr}, Username: "weir-shop", Password: "secret", PoolSize: 1, MinIdleConns: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	if err := tryTake(ctx, client); err != nil {
		t.Fatal(err)
	}
	if err := w.admin.Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	before := dials.Load()
	for range 3 {
		if err := tryTake(ctx, client); reasonOf(err) != enforcer.ReasonReadOnly {
			t.Errorf("from a replica: %v", err)
		}
	}
	if got := dials.Load() - before; got < 2 {
		t.Errorf("%d dials for three answers of a replica; its connection is kept", got)
	}
	if err := w.admin.Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := tryTake(ctx, client); err != nil {
		t.Errorf("from the master again: %v", err)
	}
}

func TestB27SentinelFailover(t *testing.T) {
	s := env.Sentinel(t)
	client := NewClient(&redis.UniversalOptions{Addrs: s.Addrs, MasterName: s.Master})
	t.Cleanup(func() { _ = client.Close() })
	if err := tryTake(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs[0]})
	t.Cleanup(func() { _ = sentinel.Close() })
	// The old master is demoted and goes on running.
	within(t, 30*time.Second, func(ctx context.Context) error { return sentinel.Failover(ctx, s.Master).Err() })
	old := connect(t, s.Primary.Addr, "")
	within(t, 60*time.Second, func(ctx context.Context) error {
		if role := old.Info(ctx, "replication").Val(); !strings.Contains(role, "role:slave") {
			return errors.New("the old master is not demoted yet")
		}
		return nil
	})
	within(t, 30*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return tryTake(ctx, client)
	})
}

func TestFullMemoryIsAFailureOfTheStore(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	if err := w.admin.ConfigSet(t.Context(), "maxmemory", "1mb").Err(); err != nil {
		t.Fatal(err)
	}
	if err := tryTake(t.Context(), w.application); reasonOf(err) != enforcer.ReasonMemory {
		t.Errorf("%v, want %q", err, enforcer.ReasonMemory)
	}
}

func TestTheClientSendsNothingUnasked(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	p := newProxy(t, w.server.Addr)
	client := connect(t, p.addr, "weir-shop")
	if err := tryTake(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for _, command := range p.take() {
		if command != "hello" && command != "evalsha" && command != "eval" {
			t.Errorf("the client sent %q", command)
		}
	}
}

// Each user may do what it does, and nothing else. That it may do that is what all other tests here show.
func TestUsersMayDoNothingElse(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	other := policy.Workload{Namespace: "pay", Group: "apps", Kind: "Deployment", Name: "ledger"}
	k := newKeys(testTable)
	cases := map[string]struct {
		client redis.UniversalClient
		args   []any
	}{
		"an application writes its row":              {w.application, []any{"set", k.row(checkout), "x"}},
		"an application deletes its row":             {w.application, []any{"del", k.row(checkout)}},
		"an application writes its replicas":         {w.application, []any{"set", k.replicas(checkout), "x"}},
		"an application writes its fence":            {w.application, []any{"hset", k.fence(checkout), "epoch", "9"}},
		"an application writes the owner":            {w.application, []any{"set", k.owner(), "x"}},
		"an application reads the workloads":         {w.application, []any{"get", k.workloads()}},
		"an application reads another's row":         {w.application, []any{"get", k.row(other)}},
		"an application reads another's members":     {w.application, []any{"hget", k.reports(other), "x"}},
		"an application reads another's counter":     {w.application, []any{"get", k.counterPrefix("pay") + "x}:y"}},
		"an application spends another's counter":    {w.application, []any{"eval", "return redis.call('SET', KEYS[1], 'x')", 1, k.counterPrefix("pay") + "x}:y"}},
		"an application resets another's counter":    {w.application, []any{"del", k.counterPrefix("pay") + "x}:y"}},
		"an application of a longer namespace":       {w.application, []any{"get", k.counterPrefix("shop2") + "x}:y"}},
		"an application reads another table":         {w.application, []any{"get", newKeys("t2").row(checkout)}},
		"an application tells others of its row":     {w.application, []any{"publish", k.changed(other), "x"}},
		"an application asks for another's row":      {w.application, []any{"publish", k.asks("pay"), "x"}},
		"an application listens to another's row":    {w.application, []any{"subscribe", k.changed(other)}},
		"an application looks for keys":              {w.application, []any{"scan", 0}},
		"an application empties the server":          {w.application, []any{"flushall"}},
		"an application runs a script on a row":      {w.application, []any{"eval", "return redis.call('SET', KEYS[1], 'x')", 1, k.row(checkout)}},
		"an application reads the configuration":     {w.application, []any{"config", "get", "*"}},
		"a controller reads a counter":               {w.controller, []any{"get", k.counterPrefix("shop") + "x}:y"}},
		"a controller writes another table":          {w.controller, []any{"set", newKeys("t2").row(checkout), "x"}},
		"a controller empties the server":            {w.controller, []any{"flushall"}},
		"a controller looks for keys":                {w.controller, []any{"keys", "*"}},
		"a controller runs a script on another key":  {w.controller, []any{"eval", "return redis.call('SET', KEYS[1], 'x')", 1, "other"}},
		"a controller says something somewhere else": {w.controller, []any{"publish", "news", "x"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := c.client.Do(t.Context(), c.args...).Err()
			if reasonOf(err) != enforcer.ReasonAuth {
				t.Errorf("%v: %v, want NOPERM", c.args, err)
			}
		})
	}
}

// answer greets a client, and then gives every command the same reply. An empty reply hangs up.
func answer(conn net.Conn, reply string) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		_, name, err := readRequest(r)
		switch {
		case err != nil:
			return
		case name == "hello":
			_, err = fmt.Fprint(conn, "*0\r\n")
		case reply == "":
			return
		default:
			_, err = fmt.Fprint(conn, reply+"\r\n")
		}
		if err != nil {
			return
		}
	}
}
