package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/hack/dev/process"
)

const patience = 20 * time.Second

// redisServer is the one Redis that all subjects use.
type redisServer struct {
	address string
	admin   *redis.Client
	process *process.Process
}

func startRedis(ctx context.Context) (*redisServer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("looking for Redis (make deps installs it): %w", err)
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	started, err := process.Start(process.Command{
		Name: "redis", Path: path, Args: []string{"--port", strconv.Itoa(port), "--save", "", "--appendonly", "no"},
		Dir: os.TempDir(),
	})
	if err != nil {
		return nil, err
	}
	r := &redisServer{address: address, admin: redis.NewClient(&redis.Options{Addr: address}), process: started}
	ready, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := started.WaitReady(ready, func(ctx context.Context) error { return r.admin.Ping(ctx).Err() }); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *redisServer) stop() {
	_ = r.admin.Close()
	r.process.Stop(time.Second)
}

// info reads one figure of INFO.
func (r *redisServer) info(ctx context.Context, section string, names ...string) (float64, error) {
	text, err := r.admin.Info(ctx, section).Result()
	if err != nil {
		return 0, fmt.Errorf("reading INFO %s: %w", section, err)
	}
	var sum float64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, wanted := range names {
			if name == wanted {
				number, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return 0, fmt.Errorf("reading INFO %s: %w", section, err)
				}
				sum += number
			}
		}
	}
	return sum, nil
}

// cpu is what the server's processor did for it until now, in seconds.
func (r *redisServer) cpu(ctx context.Context) (float64, error) {
	return r.info(ctx, "cpu", "used_cpu_user", "used_cpu_sys")
}

// postgresServer is a PostgreSQL with the settings of its authors, which wait for the disk.
type postgresServer struct {
	pool    *pgxpool.Pool
	process *process.Process
	dir     string
}

func startPostgres(ctx context.Context) (*postgresServer, error) {
	owner, err := notRoot()
	if err != nil {
		return nil, err
	}
	initdb, err := findPostgres("initdb")
	if err != nil {
		return nil, err
	}
	server, err := findPostgres("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	p := &postgresServer{dir: dir}
	if err := p.start(ctx, owner, initdb, server); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *postgresServer) start(ctx context.Context, owner *syscall.Credential, initdb, server string) error {
	if owner != nil {
		if err := os.Chown(p.dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("giving the folder away: %w", err)
		}
	}
	data := filepath.Join(p.dir, "data")
	create := exec.CommandContext(ctx, initdb, "--pgdata="+data, "--username=weir", "--auth=trust", "--encoding=UTF8", "--locale=C")
	create.Dir = p.dir
	create.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if output, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("creating a database: %w\n%s", err, output)
	}
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	p.process, err = process.Start(process.Command{
		Name: "postgres", Path: server, Dir: p.dir, Log: filepath.Join(p.dir, "log"), Credential: owner,
		Args: []string{"-D", data, "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-k", ""},
	})
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p.pool, err = pgxpool.New(ctx, "postgres://weir@"+address+"/postgres?sslmode=disable&pool_max_conns=16")
	if err != nil {
		return fmt.Errorf("opening the pool: %w", err)
	}
	ready, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.process.WaitReady(ready, p.pool.Ping)
}

func (p *postgresServer) stop() {
	if p.pool != nil {
		p.pool.Close()
	}
	if p.process != nil {
		_ = p.process.Signal(syscall.SIGINT) // "fast": SIGTERM would wait for clients
		p.process.Stop(patience)
	}
	_ = os.RemoveAll(p.dir)
}

func findPostgres(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", errors.Join(fmt.Errorf("there is no PostgreSQL: %s is missing (make deps installs it)", name), err)
	}
	return found[len(found)-1], nil
}

// notRoot is the user under whom PostgreSQL, which refuses root, is to run; nil if that is the present one.
func notRoot() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errUID, errGID)
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
}
