package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentMode makes the test binary play a program that starts children and then waits to be killed.
const parentMode = "WEIR_PROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentMode); dir != "" {
		if err := playParent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func playParent(dir string) error {
	var identities []Identity
	for _, c := range []Command{
		{Name: "tied", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM HUP INT; while :; do sleep 1; done"}},
		{Name: "paused", Path: "/bin/sleep", Args: []string{"1000"}},
		{Name: "detached", Path: "/bin/sleep", Args: []string{"1000"}, Detached: true},
	} {
		p, err := Start(c)
		if err != nil {
			return err
		}
		if c.Name == "paused" {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
		}
		identities = append(identities, p.Identity())
	}
	if err := RemoveAtExit(dir); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(identities); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin) // until killed
	return err
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := Poll(ctx, 5*time.Millisecond, func(context.Context) error {
		if !condition() {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestChildrenOfAKilledParent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a folder")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentMode+"="+dir)
	parent.Stderr = os.Stderr
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var children []Identity
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &children)
	}
	if err != nil || len(children) != 3 {
		t.Fatalf("reading the parent's children: %v, %v", children, err)
	}
	tied, paused, detached := children[0], children[1], children[2]
	for _, child := range children {
		if !child.Alive() {
			t.Fatalf("%s does not run", child.Name)
		}
	}

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	eventually(t, "the tied child is killed", func() bool { return !tied.Alive() })
	eventually(t, "the paused child is killed", func() bool { return !paused.Alive() })
	eventually(t, "the folder is removed", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
	if !detached.Alive() {
		t.Fatal("the detached child died with its parent")
	}
	stranger := detached
	stranger.Start += "0"
	if err := stranger.Kill(); err != nil || !detached.Alive() {
		t.Fatalf("a process with another start time was killed (%v)", err)
	}
	if err := detached.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the detached child is killed", func() bool { return !detached.Alive() })
	if err := detached.Kill(); err != nil {
		t.Fatalf("killing a process that is gone: %v", err)
	}
}

// shell starts a script and waits for its first line of output.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(0) })
	eventually(t, "the script runs", func() bool { return strings.Contains(p.LogTail(), "running") })
	return p
}

func TestStop(t *testing.T) {
	cases := map[string]struct {
		script  string
		pause   bool
		grace   time.Duration
		orderly bool
	}{
		"a process that listens ends in good order":       {"trap 'exit 0' TERM; echo running; while :; do sleep 0.01; done", false, time.Minute, true},
		"a paused process is woken to end in good order":  {"trap 'exit 0' TERM; echo running; while :; do sleep 0.01; done", true, time.Minute, true},
		"a deaf process is killed after the grace period": {"trap '' TERM; echo running; while :; do sleep 0.01; done", false, 50 * time.Millisecond, false},
		"no grace kills at once":                          {"trap 'exit 0' TERM; echo running; while :; do sleep 0.01; done", false, 0, false},
		"no grace kills a paused process":                 {"echo running; while :; do sleep 0.01; done", true, 0, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := shell(t, c.script)
			if c.pause {
				if err := p.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			p.Stop(c.grace)
			if p.Identity().Alive() {
				t.Error("it still runs")
			}
			if orderly := p.Err() == nil; orderly != c.orderly {
				t.Errorf("it ended with %v", p.Err())
			}
			p.Stop(time.Minute) // a second Stop returns at once
		})
	}
}

func TestWaitReadyTellsWhyAProcessEnded(t *testing.T) {
	p := shell(t, "echo running; echo 'port 80: permission denied'; exit 3")
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("connection refused") })
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v, want the exit code and the end of the log", err)
	}
}

func TestStartTimeOfStat(t *testing.T) {
	const rest = " 1 2 2 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"
	cases := map[string]struct{ stat, want string }{
		"a plain name":                       {"7 (redis-server) S" + rest, "12345"},
		"a name with spaces and parenthesis": {"7 (a) b) (c) S" + rest, "12345"},
		"a zombie":                           {"7 (redis-server) Z" + rest, ""},
		"half a line":                        {"7 (redis-server) S 1 2", ""},
		"nothing":                            {"", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := startTimeOfStat(c.stat); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFreePortIsOutsideOfTheEphemeralRange(t *testing.T) {
	for range 50 {
		port, err := FreePort(10000)
		if err != nil {
			t.Fatal(err)
		}
		if port < firstPort || port+10000 >= 32768 {
			t.Fatalf("port %d: want %d to 22767", port, firstPort)
		}
	}
}
