package demo

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weir-dev/weir/hack/dev/process"
)

// redisServer is the demo's own Redis, on a port of its own, that the demo can kill and start again empty.
type redisServer interface {
	address() string
	// describe says what it is, for the first lines of the demo.
	describe() string
	kill() error
	start(ctx context.Context) error
}

// newRedis takes redis-server from the PATH, and where there is none an imitation in this process. `make demo` runs
// `make deps` before, which installs redis-server where it may.
func newRedis(dir string) (redisServer, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	path, missing := exec.LookPath("redis-server")
	if missing != nil {
		return &embeddedRedis{addr: addr}, nil //nolint:nilerr // that is what the imitation is for
	}
	version := "redis-server"
	if out, err := exec.Command(path, "--version").Output(); err == nil {
		for _, field := range strings.Fields(string(out)) {
			if v, found := strings.CutPrefix(field, "v="); found {
				version = "redis-server " + v
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of Redis: %w", err)
	}
	return &realRedis{addr: addr, path: path, dir: dir, version: version}, nil
}

type realRedis struct {
	addr, path, dir, version string
	process                  *process.Process
}

func (r *realRedis) address() string { return r.addr }

func (r *realRedis) describe() string { return r.version + " (" + r.path + ")" }

func (r *realRedis) kill() error {
	if err := r.process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-r.process.Done()
	return nil
}

func (r *realRedis) start(ctx context.Context) error {
	host, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		return fmt.Errorf("splitting the address of Redis: %w", err)
	}
	r.process, err = process.Start(process.Command{
		Name: "redis-server", Path: r.path, Dir: r.dir, Log: filepath.Join(r.dir, "redis.log"),
		Args: []string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", r.dir},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return r.process.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

type embeddedRedis struct {
	addr   string
	server *miniredis.Miniredis
}

func (r *embeddedRedis) address() string { return r.addr }

func (r *embeddedRedis) describe() string {
	return "miniredis, an imitation in this process, because there is no redis-server on the PATH"
}

func (r *embeddedRedis) kill() error {
	r.server.Close()
	return nil
}

func (r *embeddedRedis) start(context.Context) error {
	r.server = miniredis.NewMiniRedis()
	if err := r.server.StartAddr(r.addr); err != nil {
		return fmt.Errorf("starting miniredis: %w", err)
	}
	return nil
}
