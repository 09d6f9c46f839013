package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by SHA-1; nothing is protected by it.
	"embed"
	"encoding/hex"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
)

//go:embed lua
var sources embed.FS

var (
	takeScript      = loadScript("pack", "arithmetic", "states", "log", "counters", "take")
	refundScript    = loadScript("pack", "arithmetic", "states", "log", "counters", "refund")
	heartbeatScript = loadScript("members", "heartbeat")
	leaveScript     = loadScript("members", "leave")
	observeScript   = loadScript("members", "observe")
	claimScript     = loadScript("claim")
	publishScript   = loadScript("fence", "publish")
	replicasScript  = loadScript("fence", "replicas")
)

// script is a Lua script and its name at the server.
type script struct {
	name   string
	source string
	sha    string
}

// loadScript joins files into one script: later files use the locals of earlier ones.
func loadScript(files ...string) *script {
	var source []byte
	for _, file := range files {
		text, err := sources.ReadFile("lua/" + file + ".lua")
		if err != nil {
			panic(fmt.Sprintf("embedded script: %v", err)) // a build without its files
		}
		source = append(source, text...)
	}
	sum := sha1.Sum(source) //nolint:gosec // see the import
	return &script{name: files[len(files)-1], source: string(source), sha: hex.EncodeToString(sum[:])}
}

// scripter is what a script needs of a client: of the client itself, or of one node of a cluster.
type scripter interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	ScriptLoad(ctx context.Context, script string) *redis.StringCmd
}

// run sends the script once; args are "evalsha", the sha, the number of keys, the keys and the arguments. A server
// that does not know the script has not run any of it, so it gets the script and then the same command again. That is
// the only case in which anything is sent twice.
func (s *script) run(ctx context.Context, client scripter, args []any) (*redis.Cmd, error) {
	cmd := redis.NewCmd(ctx, args...)
	err := client.Process(ctx, cmd)
	if err != nil && Reason(err) == enforcer.ReasonNoScript {
		if err := client.ScriptLoad(ctx, s.source).Err(); err != nil {
			return nil, classify(fmt.Errorf("loading script %s: %w", s.name, err))
		}
		cmd = redis.NewCmd(ctx, args...)
		err = client.Process(ctx, cmd)
	}
	if err != nil {
		return nil, classify(fmt.Errorf("running script %s: %w", s.name, err))
	}
	return cmd, nil
}

// call is run for scripts of a few keys and arguments.
func (s *script) call(ctx context.Context, client scripter, keys []string, args ...any) (*redis.Cmd, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return s.run(ctx, client, append(all, args...))
}
