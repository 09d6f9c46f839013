package skew

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

const (
	table        = "skew"
	installation = "4f0c6a0e-3a51-4d2c-8d5b-0c7a3b1f9a11"
	epoch        = "4821"
	oldMember    = "checkout-7d4b9c6f5-x2x8v/1f3a9c20"
)

var checkout = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// call is one run of a script as a version sent it, and what Redis answered. Both are bytes: JSON writes them in base64.
type call struct {
	Script string   `json:"script"` // name of a file in scripts
	Keys   []string `json:"keys"`
	Args   [][]byte `json:"args"`
	// Reply is what counters answered; replies of other scripts hold the server's time and are not kept.
	Reply []byte `json:"reply,omitempty"`
}

// corpus is what one version left behind.
type corpus struct {
	name string
	// row, replicas and snapshot are as the table and the ConfigMap had them; report is what a member says of itself.
	row, replicas, snapshot, report []byte
	// table has the calls of a controller and of a member, by name.
	table map[string]call
	// requests are requests, and the keys under which their counters were.
	requests []request
	// steps are the life of some counters.
	steps []step
}

type request struct {
	Method     string            `json:"method"`
	Route      string            `json:"route"`
	Header     map[string]string `json:"header,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Remote     string            `json:"remote"`
	Keys       []string          `json:"keys"`
}

func (r *request) decide(t *testing.T, l *ratelimit.Limiter) ratelimit.Decision {
	t.Helper()
	header := http.Header{}
	for name, value := range r.Header {
		header.Set(name, value)
	}
	return l.Decide(t.Context(), ratelimit.Request{
		Method: r.Method, Route: r.Route, Path: r.Route, Header: header, Attributes: r.Attributes, Remote: r.Remote,
	})
}

// versions are the folders of testdata that a version wrote, oldest first.
func versions(t *testing.T) []*corpus {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join("testdata", "v*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no versions in testdata (%v)", err)
	}
	var all []*corpus
	for _, folder := range folders {
		all = append(all, load(t, folder))
	}
	return all
}

func load(t *testing.T, folder string) *corpus {
	t.Helper()
	c := &corpus{name: filepath.Base(folder)}
	for file, into := range map[string]*[]byte{
		"row.json": &c.row, "replicas.json": &c.replicas, "snapshot.json": &c.snapshot, "report.json": &c.report,
	} {
		*into = read(t, folder, file)
	}
	for file, into := range map[string]any{"table.json": &c.table, "requests.json": &c.requests, "counters.json": &c.steps} {
		if err := json.Unmarshal(read(t, folder, file), into); err != nil {
			t.Fatalf("%s/%s: %v", folder, file, err)
		}
	}
	return c
}

// read is the content of a file without the line's end that the file has for editors.
func read(t *testing.T, folder, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(data, []byte("\n"))
}

// future is a file of testdata/future.
func future(t *testing.T, file string) []byte {
	t.Helper()
	return read(t, filepath.Join("testdata", "future"), file)
}

// do sends a call as that version did, with the script along.
func (c *corpus) do(t *testing.T, client redis.UniversalClient, which call) (any, error) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", c.name, "scripts", which.Script+".lua"))
	if err != nil {
		t.Fatal(err)
	}
	args := make([]any, len(which.Args))
	for i, arg := range which.Args {
		args[i] = arg
	}
	return client.Eval(t.Context(), string(source), which.Keys, args...).Result()
}

// mustDo is do of a call of the table by its name.
func (c *corpus) mustDo(t *testing.T, client redis.UniversalClient, name string) any {
	t.Helper()
	which, ok := c.table[name]
	if !ok {
		t.Fatalf("%s has no call %s", c.name, name)
	}
	reply, err := c.do(t, client, which)
	if err != nil {
		t.Fatalf("%s of %s: %v", name, c.name, err)
	}
	return reply
}

// server is an empty Redis, with a client that may do everything.
func server(t *testing.T) (string, redis.UniversalClient) {
	t.Helper()
	s := env.Redis(t, env.RedisOptions{})
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{s.Addr}})
	t.Cleanup(func() { _ = client.Close() })
	return s.Addr, client
}

func key(kind string) string { return "weir:" + table + ":" + kind + ":{" + checkout.String() + "}" }

// recorder is a hook that notes the scripts that a client runs.
type recorder struct {
	sources map[string]string // by SHA-1
	calls   []call
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		sent := make([][][]byte, len(cmds))
		for i, cmd := range cmds {
			sent[i] = sentArgs(cmd)
		}
		err := next(ctx, cmds)
		for i, cmd := range cmds {
			if err := r.note(cmd, sent[i]); err != nil {
				return err
			}
		}
		return err
	}
}

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		sent := sentArgs(cmd)
		if err := next(ctx, cmd); err != nil {
			return err
		}
		return r.note(cmd, sent)
	}
}

// sentArgs are the arguments as they are now: the store uses their memory again.
func sentArgs(cmd redis.Cmder) [][]byte {
	var args [][]byte
	for _, arg := range cmd.Args() {
		switch arg := arg.(type) {
		case []byte:
			args = append(args, slices.Clone(arg))
		case *string:
			args = append(args, []byte(*arg))
		default:
			args = append(args, fmt.Append(nil, arg))
		}
	}
	return args
}

// note keeps a script that was run. Those that the server did not know are sent again.
func (r *recorder) note(cmd redis.Cmder, args [][]byte) error {
	name := cmd.Name()
	if ran := cmd.Err() == nil; !ran || name != "evalsha" && name != "eval" {
		return nil
	}
	sha := string(args[1])
	if name == "eval" {
		sum := sha1.Sum(args[1])
		sha = hex.EncodeToString(sum[:])
		r.sources[sha] = string(args[1])
	}
	keys, err := strconv.Atoi(string(args[2]))
	if err != nil {
		return err
	}
	c := call{Script: sha, Args: args[3+keys:]}
	for _, key := range args[3 : 3+keys] {
		c.Keys = append(c.Keys, string(key))
	}
	if cmd, ok := cmd.(interface{ Val() any }); ok {
		if text, ok := cmd.Val().(string); ok {
			c.Reply = []byte(text)
		}
	}
	r.calls = append(r.calls, c)
	return nil
}

// last returns the only call that was noted since.
func (r *recorder) last(t *testing.T) call {
	t.Helper()
	if len(r.calls) != 1 {
		t.Fatalf("%d scripts were run, want 1", len(r.calls))
	}
	only := r.calls[0]
	r.calls = nil
	return only
}
