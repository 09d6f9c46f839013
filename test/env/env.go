// Package env gives tests the real servers that they need: Redis in its three forms and PostgreSQL; package kube has
// Kubernetes. Each server listens on a free port of 127.0.0.1 and is gone when its test, or at the latest the test
// binary, has ended, however it ends.
//
// A program that is missing fails the test and names the command that installs it; nothing here ever skips.
package env

import (
	"context"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/deps"
)

const (
	// readyTimeout bounds every wait for a server. Redis needs 50 ms, PostgreSQL one second; a busy machine more.
	readyTimeout = 60 * time.Second
	// stopGrace is what a server gets between SIGTERM and SIGKILL.
	stopGrace = 5 * time.Second
)

// program finds a program or fails the test.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := deps.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func readyContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	t.Cleanup(cancel)
	return ctx
}
