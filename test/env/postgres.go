package env

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
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-dev/weir/hack/dev/process"
)

// PostgresServer is a real PostgreSQL of one test. Its methods must be called from the test's own goroutine.
type PostgresServer struct {
	// DSN is the URL of an empty database and its owner, the same over all restarts. Nothing asks for a password.
	DSN string

	t       testing.TB
	command process.Command
	process *process.Process
}

// Postgres creates and starts a PostgreSQL, waits until it takes connections, and ends it with the test. It does not
// wait for the disk; the lines of config, in the form of postgresql.conf, can change that.
func Postgres(t testing.TB, config ...string) *PostgresServer {
	t.Helper()
	initdb, postgres := program(t, "initdb"), program(t, "postgres")
	owner := otherThanRoot(t)
	// Not t.TempDir: its parent is closed to other users.
	dir, err := os.MkdirTemp("", "weir-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the database: %v", err)
		}
	})
	if err := process.RemoveAtExit(dir); err != nil {
		t.Fatal(err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(initdb, "--pgdata="+data, "--username=weir", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	create.Dir = dir
	create.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if output, err := create.CombinedOutput(); err != nil {
		t.Fatalf("creating a database: %v\n%s", err, output)
	}
	port := freePort(t)
	settings := append([]string{
		"listen_addresses = '127.0.0.1'",
		"port = " + strconv.Itoa(port),
		"unix_socket_directories = ''",
		"fsync = off",
		"full_page_writes = off",
	}, config...)
	file, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(strings.Join(settings, "\n") + "\n")
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatalf("configuring the database: %v", err)
	}
	p := &PostgresServer{
		DSN: "postgres://weir@" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/postgres?sslmode=disable",
		t:   t,
		command: process.Command{
			Name:       "postgres",
			Path:       postgres,
			Args:       []string{"-D", data},
			Dir:        dir,
			Log:        filepath.Join(dir, "postgres.log"),
			Credential: owner,
		},
	}
	t.Cleanup(p.end)
	p.Start()
	return p
}

// Start starts a stopped or killed server with the data it had.
func (p *PostgresServer) Start() {
	p.t.Helper()
	if p.process != nil {
		p.t.Fatal("PostgreSQL runs already")
	}
	started, err := process.Start(p.command)
	if err != nil {
		p.t.Fatal(err)
	}
	p.process = started
	if err := p.process.WaitReady(readyContext(p.t), p.connect); err != nil {
		p.t.Fatal(err)
	}
}

func (p *PostgresServer) connect(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.DSN)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Stop cuts all connections and ends the server in good order.
func (p *PostgresServer) Stop() {
	p.t.Helper()
	p.shutDown(syscall.SIGINT) // "fast"; SIGTERM would wait for clients to hang up
}

// Kill ends the server as a crash would: nothing is finished, and the next Start recovers from the log. (SIGKILL would
// leave the server's own children behind for a moment, and the next Start would fail because of them.)
func (p *PostgresServer) Kill() {
	p.t.Helper()
	p.shutDown(syscall.SIGQUIT) // "immediate"
}

func (p *PostgresServer) shutDown(signal syscall.Signal) {
	p.t.Helper()
	if p.process == nil {
		p.t.Fatal("PostgreSQL does not run")
	}
	if err := p.process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.process.Done():
	case <-readyContext(p.t).Done():
		p.t.Fatalf("PostgreSQL does not end\n%s", p.process.LogTail())
	}
	p.process = nil
}

func (p *PostgresServer) end() {
	if p.process == nil {
		return
	}
	_ = p.process.Signal(syscall.SIGQUIT) // "immediate", and no child is left behind
	p.process.Stop(stopGrace)
	if p.t.Failed() {
		p.t.Log(p.process.LogTail())
	}
}

// otherThanRoot returns the user under whom PostgreSQL, which refuses root, is to run; nil if that is the present one.
func otherThanRoot(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(errUID, errGID); err != nil {
			t.Fatal(fmt.Errorf("reading the ids of %s: %w", name, err))
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatal("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
	return nil
}
