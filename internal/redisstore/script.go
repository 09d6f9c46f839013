package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by SHA-1; nothing is protected by it.
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
)

//go:embed lua
var sources embed.FS

var (
	takeScript      = loadScript("type", "pack", "arithmetic", "states", "log", "counters", "take")
	singleScript    = loadScript("pack", "single")
	refundScript    = loadScript("type", "pack", "arithmetic", "states", "log", "counters", "refund")
	pushScript      = loadScript("type", "pack", "arithmetic", "states", "log", "counters", "push")
	resetScript     = loadScript("reset")
	heartbeatScript = loadScript("type", "members", "heartbeat")
	leaveScript     = loadScript("type", "members", "leave")
	observeScript   = loadScript("type", "members", "observe")
	claimScript     = loadScript("type", "claim")
	enterScript     = loadScript("type", "enter")
	publishScript   = loadScript("type", "fence", "publish")
	replicasScript  = loadScript("type", "fence", "replicas")
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
	source = writeConstants(source)
	sum := sha1.Sum(source) //nolint:gosec // see the import
	return &script{name: files[len(files)-1], source: string(source), sha: hex.EncodeToString(sum[:])}
}

// A line of constants declares names in capitals that stand for numbers and strings.
var (
	constants = regexp.MustCompile(`(?m)^ *local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:'[^'\n]*'|\d+)(?:, (?:'[^'\n]*'|\d+))*)(?: --.*)?\n`)
	capitals  = regexp.MustCompile(`\b[A-Z]+(?:_[A-Z]+)*\b`)
)

// writeConstants puts the values of constants where their names stand. As locals of the script they would be looked for,
// one after the other, each time that a function which uses one is made, which is in every run.
func writeConstants(source []byte) []byte {
	values := map[string]string{}
	rest := constants.ReplaceAllFunc(source, func(line []byte) []byte {
		parts := constants.FindSubmatch(line)
		texts := strings.Split(string(parts[2]), ", ")
		for i, name := range strings.Split(string(parts[1]), ", ") {
			values[name] = texts[i]
		}
		return nil
	})
	return capitals.ReplaceAllFunc(rest, func(name []byte) []byte {
		if value, ok := values[string(name)]; ok {
			return []byte(value)
		}
		return name
	})
}

// once is a command that must not be sent again when it may have been executed. A cluster's client still follows a
// redirection: a server that redirects has executed nothing.
type once struct{ *redis.Cmd }

func newOnce(ctx context.Context, args []any) once { return once{redis.NewCmd(ctx, args...)} }

// NoRetry tells the client so.
func (once) NoRetry() bool { return true }

// run sends the script; args are "evalsha", the sha, the number of keys, the keys and the arguments. A server that does
// not know the script has not run any of it, so the same goes to it once more with the source, which it then keeps.
// That is the only case in which anything is sent twice.
func (s *script) run(ctx context.Context, client redis.UniversalClient, args []any) (*redis.Cmd, error) {
	cmd := newOnce(ctx, args)
	err := client.Process(ctx, cmd)
	if unknownScript(err) {
		cmd = newOnce(ctx, s.withSource(args))
		err = client.Process(ctx, cmd)
	}
	if err != nil {
		return nil, classify(fmt.Errorf("running script %s: %w", s.name, err))
	}
	return cmd.Cmd, nil
}

// withSource changes a command so that it brings the script along.
func (s *script) withSource(args []any) []any {
	args[0], args[1] = "eval", s.source
	return args
}

func unknownScript(err error) bool { return err != nil && reasonOf(err) == enforcer.ReasonNoScript }

// call is run for scripts of a few keys and arguments.
func (s *script) call(
	ctx context.Context, client redis.UniversalClient, keys []string, args ...any,
) (*redis.Cmd, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return s.run(ctx, client, append(all, args...))
}
