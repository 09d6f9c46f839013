// Package deps knows the programs that tests need and that Go modules cannot provide: where they are found, and what
// installs them. It is the only place that installs anything on a machine.
package deps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// need is a program with the packages that bring it.
type need struct {
	program string
	why     string
	debian  []string
	brew    string // empty where macOS has it from elsewhere
}

func needs(goos string) []need {
	compiler := need{program: "gcc", why: "go test -race", debian: []string{"gcc", "libc6-dev"}}
	if goos == "darwin" {
		compiler.program = "clang"
	}
	return []need{
		compiler,
		{program: "redis-server", why: "the shared store", debian: []string{"redis-server"}, brew: "redis"},
		{program: "initdb", why: "the Postgres store", debian: []string{"postgresql"}, brew: "postgresql"},
		{program: "postgres", why: "the Postgres store", debian: []string{"postgresql"}, brew: "postgresql"},
		{program: "pgbouncer", why: "the Postgres store behind a pool", debian: []string{"pgbouncer"}, brew: "pgbouncer"},
	}
}

// Find looks for a program in the PATH, and then where Debian keeps PostgreSQL's programs (newest version first) and
// those of administrators.
func Find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	folders, globErr := filepath.Glob("/usr/lib/postgresql/*/bin")
	if globErr != nil {
		return "", globErr
	}
	slices.SortFunc(folders, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	for _, folder := range append(folders, "/usr/local/sbin", "/usr/sbin") {
		if path, err := exec.LookPath(filepath.Join(folder, program)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: run `make deps`", err)
}

// majorVersion is 15 for /usr/lib/postgresql/15/bin.
func majorVersion(folder string) int {
	number, err := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
	if err != nil {
		return 0
	}
	return number
}

// machine is what decides who installs.
type machine struct {
	goos   string
	debian bool // has apt-get
	root   bool
}

// plan returns the packages to install with apt-get, or else the advice for the user; neither if nothing is missing.
func plan(missing []need, m machine) (install []string, advice string) {
	if len(missing) == 0 {
		return nil, ""
	}
	var programs, debian, brew []string
	for _, n := range missing {
		programs = append(programs, fmt.Sprintf("%s (%s)", n.program, n.why))
		for _, name := range n.debian {
			if !slices.Contains(debian, name) {
				debian = append(debian, name)
			}
		}
		if n.brew != "" && !slices.Contains(brew, n.brew) {
			brew = append(brew, n.brew)
		}
	}
	list := strings.Join(programs, ", ")
	switch {
	case m.debian && m.root:
		return debian, ""
	case m.debian:
		return nil, fmt.Sprintf("missing %s: as root, apt-get install --no-install-recommends %s", list, strings.Join(debian, " "))
	case m.goos == "darwin" && len(brew) == 0:
		return nil, fmt.Sprintf("missing %s: xcode-select --install", list)
	case m.goos == "darwin":
		return nil, fmt.Sprintf("missing %s: brew install %s", list, strings.Join(brew, " "))
	}
	return nil, fmt.Sprintf("missing %s: install them with your system's package manager", list)
}

// Install installs what is missing if this process is root on Debian or its kin, and otherwise returns an error of one
// line that says what to install. It never asks for more permissions than it has.
func Install(ctx context.Context, log io.Writer) error {
	missing := absent()
	_, err := exec.LookPath("apt-get")
	packages, advice := plan(missing, machine{goos: runtime.GOOS, debian: err == nil, root: os.Geteuid() == 0})
	if advice != "" {
		return errors.New(advice)
	}
	if len(packages) == 0 {
		return nil
	}
	fmt.Fprintf(log, "Installing %s with apt-get\n", strings.Join(packages, " "))
	// The lists may be old or absent. A failure shows in the next step, where it may not matter.
	_, _ = aptGet(ctx, "update", "-q")
	if output, err := aptGet(ctx, append([]string{"install", "-q", "--no-install-recommends"}, packages...)...); err != nil {
		return fmt.Errorf("installing %s: %w\n%s", strings.Join(packages, " "), err, output)
	}
	if still := absent(); len(still) > 0 {
		return fmt.Errorf("%s is still missing after its installation", still[0].program)
	}
	return nil
}

func absent() []need {
	var missing []need
	for _, n := range needs(runtime.GOOS) {
		if _, err := Find(n.program); err != nil {
			missing = append(missing, n)
		}
	}
	return missing
}

// aptGet returns everything that apt-get says. It gives up within seconds where there is no network.
func aptGet(ctx context.Context, args ...string) (output []byte, err error) {
	options := []string{
		"-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=60",
		"-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(options, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return cmd.CombinedOutput()
}
