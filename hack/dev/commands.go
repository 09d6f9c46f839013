package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/demo"
	"github.com/weir-dev/weir/hack/dev/deploy"
	"github.com/weir-dev/weir/hack/dev/deps"
	"github.com/weir-dev/weir/hack/dev/process"
)

// clusterUp tells its progress on stderr, so that stdout can be evaluated by a shell.
func clusterUp(ctx context.Context, root string) error {
	dir := clusterDir(root)
	unlock, err := lockCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	running, err := cluster.Find(dir)
	if err != nil {
		return err
	}
	if running == nil {
		if _, err := cluster.Down(ctx, dir); err != nil { // what is left of one
			return err
		}
		if running, err = cluster.Start(ctx, cluster.Options{Dir: dir, Detached: true, Log: os.Stderr}); err != nil {
			return err
		}
	}
	if err := linkKubectl(root, running.Kubectl); err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\n", running.Kubeconfig)
	return nil
}

// lockCluster keeps one command from taking away what another one is starting.
func lockCluster(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("creating a folder for the cluster: %w", err)
	}
	return process.Lock(ctx, dir+".lock", func() {
		fmt.Fprintln(os.Stderr, "Waiting for another command that starts or ends the cluster")
	})
}

// linkKubectl puts the cluster's kubectl where people look for it.
func linkKubectl(root, kubectl string) error {
	link := filepath.Join(root, "bin", "kubectl")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return fmt.Errorf("linking kubectl: %w", err)
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("linking kubectl: %w", err)
	}
	if err := os.Symlink(kubectl, link); err != nil {
		return fmt.Errorf("linking kubectl: %w", err)
	}
	return nil
}

func clusterDown(ctx context.Context, root string) error {
	unlock, err := lockCluster(ctx, clusterDir(root))
	if err != nil {
		return err
	}
	defer unlock()
	ended, err := cluster.Down(ctx, clusterDir(root))
	if err != nil {
		return err
	}
	if len(ended) == 0 {
		fmt.Println("No cluster runs")
		return nil
	}
	fmt.Printf("Ended %s\n", strings.Join(ended, ", "))
	return nil
}

func installDeps(ctx context.Context, _ string) error { return deps.Install(ctx, os.Stderr) }

func build(ctx context.Context, root string) error {
	assets, err := cluster.FindAssets(ctx, false, os.Stderr)
	if err != nil {
		return err
	}
	return linkKubectl(root, filepath.Join(assets.ControlPlane, "kubectl"))
}

func showDemo(ctx context.Context, root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("entering the repository: %w", err)
	}
	return demo.Run(ctx, os.Stdout, filepath.Join(root, ".dev", "demo"))
}

func deployManager(ctx context.Context, root string) error {
	return deploy.Run(ctx, root, os.Getenv("IMG"), os.Stdout)
}
