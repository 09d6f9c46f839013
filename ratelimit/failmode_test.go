package ratelimit_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
)

// brokenRedis listens and answers every script with reply, or not at all. It returns its address.
func brokenRedis(t *testing.T, reply string) string {
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
			go answerAll(conn, reply)
		}
	}()
	return listener.Addr().String()
}

// answerAll reads commands in RESP.
func answerAll(conn net.Conn, reply string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		if command == "hello" {
			answer = "-ERR unknown command 'hello'\r\n" // as Redis 5 says: go on without
		}
		if strings.HasPrefix(command, "evalsha") || strings.HasPrefix(command, "eval") || strings.HasPrefix(command, "fcall") {
			answer = reply
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) (string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return "", err
	}
	name := ""
	for i := range n {
		size, err := readLength(in, '$')
		if err != nil {
			return "", err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(string(word[:size]))
		}
	}
	return name, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("no RESP: %q", line)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// However Redis fails, the rule's choice decides, with its own status, and the failure is counted under its own reason
// (B21).
func TestEveryFailureReachesTheRulesChoice(t *testing.T) {
	failures := map[string]struct{ reply, reason string }{
		"refused":                 {"", "refused"},
		"no answer":               {" ", "timeout"},
		"CROSSSLOT":               {"-CROSSSLOT Keys in request don't hash to the same slot\r\n", "crossslot"},
		"nil":                     {"$-1\r\n", "reply"},
		"a reply of another type": {":1\r\n", "reply"},
		"a script that fails":     {"-ERR Error running script (call to f_1): @user_script:1: boom\r\n", "script"},
		"a replica":               {"-READONLY You can't write against a read only replica.\r\n", "readonly"},
		"no memory":               {"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "memory"},
		"no permission":           {"-NOPERM this user has no permissions to run the 'evalsha' command\r\n", "auth"},
		"loading":                 {"-LOADING Redis is loading the dataset in memory\r\n", "loading"},
		"no RESP at all":          {"HTTP/1.1 400 Bad Request\r\n\r\n", "reply"},
	}
	modes := map[string]struct{ status, second int }{
		"FailOpen":   {http.StatusOK, http.StatusOK},
		"FailClosed": {http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		"LocalShare": {http.StatusOK, http.StatusTooManyRequests},
	}
	for failure, f := range failures {
		for mode, want := range modes {
			t.Run(failure+" "+mode, func(t *testing.T) {
				addr := brokenRedis(t, strings.TrimPrefix(f.reply, " "))
				if f.reply == "" {
					addr = "127.0.0.1:1" // nobody listens on a port that low
				}
				r := newRegistry()
				limiter := limiterOf(t, fmt.Sprintf(`
  onStoreFailure: %s
  rules: [{name: r, limits: [{requests: 1, window: 24h}]}]
`, mode), func(o *ratelimit.Options) {
					o.OnDecision = func(_ http.ResponseWriter, _ *http.Request, d ratelimit.Decision) { t.Log(d.Cause) }
					o.Counters, o.Redis, o.Registerer = nil, &redis.UniversalOptions{Addrs: []string{addr}}, r
				})
				h := limiter.Middleware(ok)
				first, second := serve(h, http.MethodGet, "/"), serve(h, http.MethodGet, "/")
				if first.Code != want.status || second.Code != want.second {
					t.Errorf("status %d and %d, want %d and %d", first.Code, second.Code, want.status, want.second)
				}
				eventually(t, "the failure is counted as "+f.reason, func() bool {
					return r.value(t, "weir_store_failures_total", map[string]string{"reason": f.reason}) >= 1
				})
			})
		}
	}
}
