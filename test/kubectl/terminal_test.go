//go:build linux

package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

// terminal runs the command on a pseudo-terminal, and returns what appears on it. Its standard output goes there too,
// unless it is given.
func terminal(t *testing.T, stdout *bytes.Buffer, args ...string) string {
	t.Helper()
	path := env.Build(t, "cmd/kubectl-weir")
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, args...)
	command.Stdout, command.Stderr = line, line
	if stdout != nil {
		command.Stdout = stdout
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = line.Close()
	var seen bytes.Buffer
	_, _ = seen.ReadFrom(screen) // it ends with an error when the last one closes the line
	if err := command.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, &seen)
	}
	return strings.ReplaceAll(seen.String(), "\r\n", "\n")
}

// On a terminal each table of top takes the place of the one before.
func TestTopRefreshesATerminal(t *testing.T) {
	env.Build(t, "cmd/kubectl-weir")
	f := newFlooded(t, 3, func(r ratelimit.Request) string {
		return map[string]string{"hot-0": "acme", "hot-2": "globex"}[r.Header.Get("X-Api-Key")]
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.trickle(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	// Until every replica has reported.
	f.awaitReports(t)
	const wipe = "\x1b[H\x1b[J"
	frames := strings.Split(terminal(t, nil, f.topArgs("--count", "3", "--identities", "4")...), wipe)
	if len(frames) != 4 || frames[0] != "" {
		t.Fatalf("%d frames, want 3: %q", len(frames)-1, frames)
	}
	call := "$ kubectl weir top checkout --redis localhost:6379 --identities 4\n"
	captured(t, "top.txt", call+strings.TrimRight(frames[3], "\n")+"\n")
}

// trickle sends requests of some busy clients, and of many quiet ones.
func (f *flooded) trickle(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 1))
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		key := fmt.Sprintf("hot-%d", bits.TrailingZeros16(uint16(random.IntN(1<<16))|1<<5)) // each half as often as the one before
		if random.IntN(3) == 0 {
			key = fmt.Sprintf("cold-%d", i)
		}
		f.replicas[i%len(f.replicas)].Decide(ctx, request(key))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// The bar of simulate moves on a terminal, and is gone at the end; what was found is no part of it.
func TestSimulateShowsItsProgress(t *testing.T) {
	dir := t.TempDir()
	policies := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policies, []byte(strings.ReplaceAll(policyText, "NAMESPACE", "shop")), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "access.log")
	var lines bytes.Buffer
	for i := range 600_000 {
		fmt.Fprintf(&lines, "203.0.%d.%d - - [05/Oct/2026:08:%02d:%02d +0000] \"GET /items/%d HTTP/1.1\" 200 5120\n", i%7, i%251, i/10_000, i/200%60, i%1000)
	}
	if err := os.WriteFile(log, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var found bytes.Buffer
	screen := terminal(t, &found, "simulate", "-f", policies, "--log", log)
	bars := regexp.MustCompile(`\r\[(#*)(\.*)\] +([0-9]+)% of [0-9]+ MB, [0-9]+ MB/s\x1b\[K`).FindAllStringSubmatch(screen, -1)
	if len(bars) < 2 || !strings.HasSuffix(screen, "\r\x1b[K") {
		t.Fatalf("%d bars: %q", len(bars), screen)
	}
	for i, bar := range bars {
		if len(bar[1])+len(bar[2]) != 30 || i > 0 && len(bar[1]) < len(bars[i-1][1]) {
			t.Errorf("bar %d: %q", i, bar[0])
		}
	}
	if !strings.HasPrefix(found.String(), "600,000 requests of ") || strings.Contains(found.String(), "\r") {
		t.Errorf("found %s", &found)
	}
}
