package tool

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// environment builds for this machine, whatever the caller builds for.
var environment = []string{
	"GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off",
}

// runGo runs the go command with its output in a log file, and calls progress once a minute.
func runGo(ctx context.Context, dir, log string, args []string, progress func()) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("finding Go: %w", err)
	}
	child, err := process.Start(process.Command{Name: "go " + args[0], Path: goTool, Args: args, Env: environment, Dir: dir, Log: log})
	if err != nil {
		return err
	}
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-child.Done():
			if err := child.Err(); err != nil {
				return fmt.Errorf("%w\n%s", err, child.LogTail())
			}
			return nil
		case <-ctx.Done():
			child.Stop(0)
			return fmt.Errorf("the time was up; what is built so far is kept by Go: %w", ctx.Err())
		case <-minute.C:
			progress()
		}
	}
}

// goOutput runs a short go command and returns what it prints.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	return goOutputWith(ctx, dir, nil, args...)
}

func goOutputWith(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), environment...), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(output)), nil
}

// checkNetwork fails within seconds when modules are missing and no module proxy can be reached; Go itself would try
// for minutes.
func checkNetwork(ctx context.Context, dir, pkg string) error {
	if _, err := goOutputWith(ctx, dir, []string{"GOPROXY=off"}, "list", "-deps", pkg); err == nil {
		return nil // every module is on this machine
	}
	proxies, err := goOutput(ctx, dir, "env", "GOPROXY")
	if err != nil {
		return err
	}
	// Go turns to the next entry only when the first one answers that it has no such module.
	first, _, _ := strings.Cut(strings.ReplaceAll(proxies, "|", ","), ",")
	if !strings.HasPrefix(first, "http://") && !strings.HasPrefix(first, "https://") {
		return nil // "direct", "off" or file://: Go answers quickly
	}
	if err := reach(ctx, first); err != nil {
		return fmt.Errorf("modules are missing on this machine and the module proxy cannot be reached (GOPROXY=%s): %w", proxies, err)
	}
	return nil
}

// reach is satisfied by any answer of the host.
func reach(ctx context.Context, url string) error {
	const patience = 5 * time.Second // a proxy that is there answers within half a second
	client := &http.Client{
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: (&net.Dialer{Timeout: patience}).DialContext,
		},
		Timeout: 2 * patience,
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Root is the root of this repository, found from the working folder upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the root of the repository: %w", err)
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module github.com/weir-dev/weir\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("finding the root of the repository: no folder above the working folder holds its go.mod")
		}
		dir = parent
	}
}

// ModuleVersion is the version of a dependency that the module in the folder requires, for example "v1.37.2".
func ModuleVersion(folder, module string) (string, error) {
	content, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("reading the version of %s: %w", module, err)
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s/go.mod does not require %s", folder, module)
}
