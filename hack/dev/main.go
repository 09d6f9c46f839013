// Command dev is what the Makefile calls: the local cluster, and what builds and tests need on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/weir-dev/weir/hack/dev/tool"
)

// command is one subcommand. Its function gets the root of the repository.
type command struct {
	name string // one or two words
	help string
	run  func(ctx context.Context, root string) error
}

var commands = []command{
	{"cluster up", "start the local Kubernetes, or find it running, and print its KUBECONFIG", clusterUp},
	{"cluster down", "end the local Kubernetes", clusterDown},
	{"deps", "install the programs that tests need, where this may be done without asking", installDeps},
	{"demo", "show the main job on this machine, step by step and in numbers (KEEP=1 leaves it running)", showDemo},
	{"deploy", "install into the cluster of the current kubectl context (IMG names the image)", deployManager},
	{"build", "build what the local Kubernetes consists of, unless it is built already", build},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := strings.Join(os.Args[1:], " ")
	for _, c := range commands {
		if c.name != name {
			continue
		}
		root, err := tool.Root()
		if err == nil {
			err = c.run(ctx, root)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "dev %s: %v\n", name, err)
			os.Exit(1)
		}
		return
	}
	if name != "help" {
		fmt.Fprintf(os.Stderr, "dev: unknown command %q\n", name)
	}
	fmt.Fprintln(os.Stderr, "usage: go run ./hack/dev COMMAND")
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-14s %s\n", c.name, c.help)
	}
	os.Exit(2)
}

// clusterDir is where `make cluster` keeps its cluster.
func clusterDir(root string) string { return filepath.Join(root, ".dev", "cluster") }
