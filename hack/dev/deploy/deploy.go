// Package deploy installs Weir into the cluster of a kubectl context.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// placeholder is the image that config/manager names.
const placeholder = "image: ghcr.io/weir-dev/weir-controller-manager:v0.1.0"

// ErrNoImage says that the user named none.
var ErrNoImage = errors.New("which image? make deploy IMG=registry.example.com/weir:v0.1.0")

// Run applies config/default with the image, by the kubectl of this machine and its current context.
func Run(ctx context.Context, root, image string, out io.Writer) error {
	if image == "" {
		return ErrNoImage
	}
	kubectl, err := find(root)
	if err != nil {
		return err
	}
	rendered, err := output(ctx, kubectl, "", "kustomize", filepath.Join(root, "config", "default"))
	if err != nil {
		return fmt.Errorf("rendering config/default: %w", err)
	}
	if n := strings.Count(rendered, placeholder); n != 1 {
		return fmt.Errorf("config/default names the image %d times, want once", n)
	}
	rendered = strings.Replace(rendered, placeholder, "image: "+image, 1)
	applied, err := output(ctx, kubectl, rendered, "apply", "--server-side", "-f", "-")
	if err != nil {
		return fmt.Errorf("applying config/default: %w", err)
	}
	_, err = io.WriteString(out, applied)
	return err
}

// find prefers the user's own kubectl to the one that came with the local cluster.
func find(root string) (string, error) {
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path, nil
	}
	path := filepath.Join(root, "bin", "kubectl")
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("no kubectl on the PATH; install it, or run make build-cluster, which builds one")
	}
	return path, nil
}

func output(ctx context.Context, program, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}
