// Package tool builds programs from Go modules of their own and keeps them outside of the tree, so that a local
// Kubernetes and a linter with plugins need nothing but Go and its module proxy.
package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
)

// Program is one such program. Name, Module, Package and Links are required.
type Program struct {
	// Name is the first part of the cache folder's name.
	Name string
	// Module is the folder of the program's go.mod, relative to the root of the repository.
	Module string
	// Package to build, as seen from Module.
	Package string
	// LDFlags for the linker, besides -s -w.
	LDFlags string
	// Links are the names by which the program is called; it is the same file under each of them.
	Links []string
	// Cost says what a first build takes, as the rest of a sentence: "12 minutes on two cores".
	Cost string
	// Disk is the free space in bytes under which a build is not even tried; zero means 1 GB.
	Disk uint64
}

// Ensure returns the folder that holds the program under all its links, and builds it first if it is not there yet.
// Two processes that ask at the same time build once. The log hears about a build before it starts; a program that is
// there already is silent.
func (p Program) Ensure(ctx context.Context, root string, log io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w", err)
	}
	cache = filepath.Join(cache, "weir")
	hash, err := p.hash(root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, p.Name+"-"+hash)
	if p.complete(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("creating the cache folder: %w", err)
	}
	unlock, err := process.Lock(ctx, filepath.Join(cache, p.Name+".lock"), func() {
		fmt.Fprintf(log, "Waiting for another process that builds %s\n", p.Name)
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if p.complete(dir) {
		return dir, nil
	}
	if err := p.build(ctx, root, dir, log); err != nil {
		return "", fmt.Errorf("building %s: %w", p.Name, err)
	}
	return dir, nil
}

func (p Program) complete(dir string) bool {
	for _, link := range p.Links {
		if _, err := os.Stat(filepath.Join(dir, link)); err != nil {
			return false
		}
	}
	return true
}

// hash covers everything the program is made of: the module's own files name all others with their checksums.
func (p Program) hash(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, p.Module, "*.go"))
	if err != nil {
		return "", err
	}
	files = append(files, filepath.Join(root, p.Module, "go.mod"), filepath.Join(root, p.Module, "go.sum"))
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH, p.Package, p.LDFlags, p.Links)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading what %s is made of: %w", p.Name, err)
		}
		fmt.Fprintln(sum, filepath.Base(file), len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func (p Program) build(ctx context.Context, root, dir string, log io.Writer) error {
	module := filepath.Join(root, p.Module)
	if err := p.checkDisk(ctx, module, filepath.Dir(dir)); err != nil {
		return err
	}
	if err := checkNetwork(ctx, module, p.Package); err != nil {
		return err
	}
	fmt.Fprintf(log, "Building %s from Go modules, once, into %s\n", p.Name, dir)
	fmt.Fprintf(log, "A first build takes %s; with Go's build cache filled it takes about a minute\n", p.Cost)

	work, err := os.MkdirTemp(filepath.Dir(dir), p.Name+".tmp")
	if err != nil {
		return fmt.Errorf("creating a folder to build in: %w", err)
	}
	defer os.RemoveAll(work)
	if err := process.RemoveAtExit(work); err != nil {
		return err
	}
	binary := filepath.Join(work, p.Name)
	began := time.Now()
	args := []string{"build", "-trimpath", "-ldflags", strings.TrimSpace("-s -w " + p.LDFlags), "-o", binary, p.Package}
	if err := runGo(ctx, module, filepath.Join(work, "build.log"), args, func() {
		fmt.Fprintf(log, "Still building %s after %s\n", p.Name, time.Since(began).Round(time.Second))
	}); err != nil {
		return err
	}
	for _, link := range p.Links {
		if link == p.Name {
			continue
		}
		if err := os.Symlink(p.Name, filepath.Join(work, link)); err != nil {
			return fmt.Errorf("linking %s: %w", link, err)
		}
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(work, "build.log")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // an incomplete one, or complete would have found it
		return fmt.Errorf("removing an incomplete build: %w", err)
	}
	if err := os.Rename(work, dir); err != nil {
		return fmt.Errorf("moving the build into place: %w", err)
	}
	fmt.Fprintf(log, "Built %s in %s\n", p.Name, time.Since(began).Round(time.Second))
	return nil
}

// checkDisk fails before a long build fails.
func (p Program) checkDisk(ctx context.Context, module, cache string) error {
	need := max(p.Disk, 1<<30)
	folders := []string{cache}
	if goCache, err := goOutput(ctx, module, "env", "GOCACHE"); err == nil {
		folders = append(folders, goCache)
	}
	for _, folder := range folders {
		var stat syscall.Statfs_t
		if err := syscall.Statfs(folder, &stat); errors.Is(err, os.ErrNotExist) {
			continue // Go creates its cache folder on the first build
		} else if err != nil {
			return fmt.Errorf("asking how much of the disk at %s is free: %w", folder, err)
		}
		if free := stat.Bavail * uint64(stat.Bsize); free < need {
			return fmt.Errorf("%s has %.1f GB free and the build needs %.0f GB", folder, float64(free)/(1<<30), float64(need)/(1<<30))
		}
	}
	return nil
}
