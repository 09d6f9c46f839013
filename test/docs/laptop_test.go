package docs

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// TestLaptop does what docs/getting-started.md says, in an empty folder.
func TestLaptop(t *testing.T) {
	dir := t.TempDir()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for _, b := range blocks(t, filepath.Join(root, "docs", "getting-started.md")) {
		name := map[string]string{"yaml": "policy.yaml", "go": "main.go"}[b.language]
		if _, err := os.Stat(filepath.Join(dir, name)); name == "" || err == nil {
			continue // the first block of each language
		}
		text := strings.ReplaceAll(b.text, "127.0.0.1:8080", address)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"go", "mod", "init", "hello"},
		{"go", "mod", "edit", "-require=github.com/weir-dev/weir@v0.0.0", "-replace=github.com/weir-dev/weir=" + source},
		{"go", "mod", "tidy"},
		{"go", "build", "-o", "hello", "."},
	} {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	var output bytes.Buffer
	hello := exec.CommandContext(ctx, filepath.Join(dir, "hello"))
	hello.Dir, hello.Stdout, hello.Stderr = dir, &output, &output
	if err := hello.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = hello.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	}()
	get := func(key string) (int, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/hello", http.NoBody)
		if err != nil {
			return 0, err
		}
		request.Header.Set("X-Api-Key", key)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	ready, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := process.Poll(ready, 50*time.Millisecond, func(context.Context) error {
		_, err := get("warm-up")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 200, 429} {
		if got, err := get("acme"); err != nil || got != want {
			t.Errorf("request %d: status %d, %v; want %d", i+1, got, err, want)
		}
	}
}
