package tool

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// cacheApart gives the test an empty cache folder, but Go its usual one.
func cacheApart(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, strings.TrimSpace(string(value)))
	}
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	quietTelemetry(t)
	return dir
}

// quietTelemetry keeps the go command from writing telemetry into the new home from a process that outlives the command,
// and so from making the folder impossible to remove.
func quietTelemetry(t *testing.T) {
	t.Helper()
	config := t.TempDir()
	if err := os.MkdirAll(filepath.Join(config, "go", "telemetry"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "go", "telemetry", "mode"), []byte("off"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", config)
}

// module writes a module with a program that prints the name it is called by.
func module(t *testing.T, goMod, source string) (root string, program Program) {
	t.Helper()
	root = t.TempDir()
	for name, content := range map[string]string{"go.mod": goMod, "go.sum": "", "main.go": source} {
		path := filepath.Join(root, "folder", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, Program{
		Name:    "many",
		Module:  "folder",
		Package: ".",
		LDFlags: "-X main.greeting=hello",
		Links:   []string{"one", "two"},
		Cost:    "a second",
	}
}

const (
	plainMod = "module example.test/many\n\ngo 1.26.0\n"
	greeter  = "package main\n\nimport \"os\"\n\nvar greeting string\n\nfunc main() { println(greeting, os.Args[0]) }\n"
)

func TestEnsureBuildsOnceAndLinksAllNames(t *testing.T) {
	cacheApart(t)
	root, program := module(t, plainMod, greeter)
	var logs [2]bytes.Buffer
	var dirs [2]string
	var group sync.WaitGroup
	for i := range dirs {
		group.Go(func() {
			dir, err := program.Ensure(t.Context(), root, &logs[i])
			if err != nil {
				t.Errorf("Ensure: %v", err)
			}
			dirs[i] = dir
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if dirs[0] != dirs[1] {
		t.Fatalf("two calls disagree: %q and %q", dirs[0], dirs[1])
	}
	if builds := strings.Count(logs[0].String()+logs[1].String(), "Built many"); builds != 1 {
		t.Errorf("two calls at the same time built %d times", builds)
	}
	for _, link := range program.Links {
		output, err := exec.Command(filepath.Join(dirs[0], link)).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(output), "hello") || !strings.HasSuffix(strings.TrimSpace(string(output)), link) {
			t.Errorf("%s: %q, %v", link, output, err)
		}
	}
	var log bytes.Buffer
	if again, err := program.Ensure(t.Context(), root, &log); err != nil || again != dirs[0] || log.Len() > 0 {
		t.Errorf("a third call: %q, %v, said %q; want %q in silence", again, err, log.String(), dirs[0])
	}

	source := filepath.Join(root, "folder", "main.go")
	if err := os.WriteFile(source, []byte(greeter+"\n// changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if changed, err := program.Ensure(t.Context(), root, &log); err != nil || changed == dirs[0] {
		t.Errorf("after a change: %q, %v; want another folder", changed, err)
	}
}

func TestEnsureFailsEarlyAndClearly(t *testing.T) {
	const missing = plainMod + "\nrequire example.test/nowhere v1.0.0\n"
	cases := map[string]struct {
		goMod, source string
		disk          uint64
		proxy         string
		want          string
	}{
		"a program that does not compile": {
			goMod: plainMod, source: "package main\n\nfunc main() { undefined() }\n",
			want: "undefined: undefined",
		},
		"too little disk": {
			goMod: plainMod, source: greeter, disk: 1 << 60,
			want: "GB free and the build needs 1073741824 GB",
		},
		"a missing module and no network": {
			goMod: missing, source: "package main\n\nimport _ \"example.test/nowhere\"\n\nfunc main() {}\n",
			proxy: "http://127.0.0.1:1,direct", // nobody listens on port 1
			want:  "the module proxy cannot be reached",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cache := cacheApart(t)
			root, program := module(t, c.goMod, c.source)
			program.Disk = c.disk
			if c.proxy != "" {
				t.Setenv("GOPROXY", c.proxy)
			}
			began := time.Now()
			_, err := program.Ensure(t.Context(), root, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			left, err := filepath.Glob(filepath.Join(cache, "*", "weir", "many[.-][!l]*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestModuleVersion(t *testing.T) {
	root, _ := module(t, plainMod+"\nrequire (\n\texample.test/a v1.2.3\n\texample.test/b v0.1.0 // indirect\n)\n\nrequire example.test/c v3.0.0\n\nreplace example.test/d => example.test/e v1.0.0\n", greeter)
	for name, want := range map[string]string{"example.test/a": "v1.2.3", "example.test/b": "v0.1.0", "example.test/c": "v3.0.0", "example.test/d": ""} {
		got, err := ModuleVersion(filepath.Join(root, "folder"), name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestRootIsFoundFromBelow(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, "hack", "dev", "tool"); here != want {
		t.Errorf("root %q, but this test runs in %q", root, here)
	}
	t.Chdir(t.TempDir())
	if root, err := Root(); err == nil {
		t.Errorf("outside of the repository: got %q", root)
	}
}
