package env

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
)

// RedisOptions says how a Redis differs from an empty one that keeps everything in memory, has no users and never
// saves. The zero value is that Redis.
type RedisOptions struct {
	// Config holds lines of redis.conf, for example "maxmemory 5mb"; they come last and win over ours.
	Config []string
	// ACL is the text of an ACL file, one user a line. The default user stays open unless the text closes it.
	ACL string
}

// RedisServer is a real redis-server of one test. Its methods must be called from the test's own goroutine.
type RedisServer struct {
	// Addr is host:port, the same over all restarts.
	Addr string

	t       testing.TB
	dir     string
	args    []string
	process *process.Process
}

// Redis starts a redis-server, waits until it answers, and ends it with the test.
func Redis(t testing.TB, options RedisOptions) *RedisServer {
	t.Helper()
	return startRedis(t, freePort(t), options)
}

func startRedis(t testing.TB, port int, options RedisOptions, args ...string) *RedisServer {
	t.Helper()
	s := &RedisServer{
		Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		t:    t,
		dir:  t.TempDir(),
	}
	lines := []string{
		"bind 127.0.0.1",
		"port " + strconv.Itoa(port),
		"dir " + strconv.Quote(s.dir),
		`save ""`,
		"appendonly no",
		"daemonize no",
	}
	if options.ACL != "" {
		file := s.write("users.acl", options.ACL)
		lines = append(lines, "aclfile "+strconv.Quote(file))
	}
	lines = append(lines, options.Config...)
	config := s.write("redis.conf", strings.Join(lines, "\n")+"\n")
	s.args = append([]string{config}, args...)
	t.Cleanup(s.end)
	s.Start()
	return s
}

func (s *RedisServer) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatalf("writing %s: %v", name, err)
	}
	return path
}

// Start starts a stopped or killed server on the same port and waits until it answers. Without persistence in Config
// it comes back empty.
func (s *RedisServer) Start() {
	s.t.Helper()
	if s.process != nil {
		s.t.Fatal("Redis runs already")
	}
	started, err := process.Start(process.Command{
		Name: "redis-server",
		Path: program(s.t, "redis-server"),
		Args: s.args,
		Dir:  s.dir,
		Log:  filepath.Join(s.dir, "redis.log"),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = started
	if err := s.process.WaitReady(readyContext(s.t), s.ping); err != nil {
		s.t.Fatal(err)
	}
}

// ping is satisfied by any answer but "not yet": under an ACL the default user may be refused. It does without a
// client, because clients log their vain dials.
func (s *RedisServer) ping(ctx context.Context) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(answer, "-LOADING") {
		return errors.New(strings.TrimSpace(answer))
	}
	return nil
}

// admin is a client that asks once and reports what it hears.
func (s *RedisServer) admin() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, Protocol: 2})
}

// Stop ends the server in good order (SIGTERM; it saves if Config says so).
func (s *RedisServer) Stop() {
	s.t.Helper()
	s.running().Stop(stopGrace)
	s.process = nil
}

// Kill ends the server without a word (SIGKILL), like a machine that loses power.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.running().Stop(0)
	s.process = nil
}

// Restart is Stop and Start.
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Pause makes the server silent: connections stay open and are accepted, nothing is answered (SIGSTOP).
func (s *RedisServer) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
}

// Resume ends a Pause; what was sent in the meantime is then executed.
func (s *RedisServer) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

func (s *RedisServer) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := s.running().Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

func (s *RedisServer) running() *process.Process {
	s.t.Helper()
	if s.process == nil {
		s.t.Fatal("Redis does not run")
	}
	return s.process
}

func (s *RedisServer) end() {
	if s.process == nil {
		return
	}
	s.process.Stop(0)
	if s.t.Failed() {
		s.t.Log(s.process.LogTail())
	}
}

// do sends one command and fails the test on an error reply.
func (s *RedisServer) do(ctx context.Context, args ...any) {
	s.t.Helper()
	client := s.admin()
	defer client.Close()
	if err := client.Do(ctx, args...).Err(); err != nil {
		s.t.Fatalf("%v on %s: %v", args[0], s.Addr, err)
	}
}

// info reads the lines "name:value" that INFO and CLUSTER INFO answer.
func (s *RedisServer) info(ctx context.Context, args ...any) (map[string]string, error) {
	client := s.admin()
	defer client.Close()
	text, err := client.Do(ctx, args...).Text()
	if err != nil {
		return nil, fmt.Errorf("%v on %s: %w", args[0], s.Addr, err)
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			values[name] = value
		}
	}
	return values, nil
}

func freePort(t testing.TB, offsets ...int) int {
	t.Helper()
	port, err := process.FreePort(offsets...)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
