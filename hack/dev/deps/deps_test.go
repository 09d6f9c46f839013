package deps

import (
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	all := func(goos string, programs ...string) []need {
		var missing []need
		for _, n := range needs(goos) {
			for _, program := range programs {
				if n.program == program {
					missing = append(missing, n)
				}
			}
		}
		if len(missing) != len(programs) {
			t.Fatalf("needs on %s lack one of %v", goos, programs)
		}
		return missing
	}
	cases := map[string]struct {
		missing []need
		machine machine
		install []string
		advice  string
	}{
		"nothing missing, nothing done": {nil, machine{goos: "linux", debian: true, root: true}, nil, ""},
		"root on Debian installs, each package once": {
			all("linux", "gcc", "initdb", "postgres"), machine{goos: "linux", debian: true, root: true},
			[]string{"gcc", "libc6-dev", "postgresql"}, "",
		},
		"a user on Debian is told": {
			all("linux", "redis-server"), machine{goos: "linux", debian: true},
			nil, "missing redis-server (the shared store): as root, apt-get install --no-install-recommends redis-server",
		},
		"root elsewhere is told": {
			all("linux", "redis-server"), machine{goos: "linux", root: true},
			nil, "missing redis-server (the shared store): install them with your system's package manager",
		},
		"a Mac has brew": {
			all("darwin", "redis-server", "postgres"), machine{goos: "darwin"},
			nil, "missing redis-server (the shared store), postgres (the Postgres store): brew install redis postgresql",
		},
		"a Mac has its own compiler": {
			all("darwin", "clang"), machine{goos: "darwin"},
			nil, "missing clang (go test -race): xcode-select --install",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			install, advice := plan(c.missing, c.machine)
			if diff := cmp.Diff(c.install, install); diff != "" {
				t.Errorf("packages (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.advice, advice); diff != "" {
				t.Errorf("advice (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFind(t *testing.T) {
	want, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Find("sh"); err != nil || got != want {
		t.Errorf("sh: got %q, %v; want %q", got, err, want)
	}
	if got, err := Find("weir-no-such-program"); err == nil {
		t.Errorf("a program that does not exist was found at %q", got)
	}
	for folder, want := range map[string]int{"/usr/lib/postgresql/15/bin": 15, "/usr/lib/postgresql/9.6/bin": 0} {
		if got := majorVersion(folder); got != want {
			t.Errorf("version of %s: got %d, want %d", folder, got, want)
		}
	}
}
