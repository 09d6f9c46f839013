package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeAssets makes a folder of shell scripts that KUBEBUILDER_ASSETS points to.
func fakeAssets(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	return dir
}

func TestAssetsOfTheEnvironmentAreUsedWhenTheySuffice(t *testing.T) {
	dir := fakeAssets(t, map[string]string{"etcd": "", "kube-apiserver": "", "kubectl": ""})
	var log bytes.Buffer
	assets, err := FindAssets(t.Context(), true, &log)
	if err != nil || assets.ControlPlane != dir || log.Len() > 0 {
		t.Errorf("got %+v, %v, said %q; want %s in silence", assets, err, log.String(), dir)
	}
	missing := missingPrograms(dir, slices.Concat(apiServerPrograms, controllers))
	if !slices.Equal(missing, controllers) {
		t.Errorf("missing for a whole cluster: %v, want %v", missing, controllers)
	}
}

func TestAFailedStartTellsWhyAndLeavesNothingRunning(t *testing.T) {
	fakeAssets(t, map[string]string{
		"etcd":           "exec sleep 1000",
		"kube-apiserver": "echo 'Error: no such flag'; exit 1",
		"kubectl":        "",
	})
	dir := filepath.Join(t.TempDir(), "cluster")
	_, err := Start(t.Context(), Options{Dir: dir, APIServerOnly: true, Detached: true})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver ended before it was ready") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("got %v, want what the API server said", err)
	}
	r, err := readRecord(dir)
	if err != nil || len(r.Processes) != 2 {
		t.Fatalf("record: %+v, %v; want etcd and the API server", r, err)
	}
	if alive := r.alive(); len(alive) > 0 {
		t.Errorf("still running: %v", alive)
	}
	if found, err := Find(dir); err != nil || found != nil {
		t.Errorf("Find: got %v, %v; want nothing", found, err)
	}
	if ended, err := Down(t.Context(), dir); err != nil || len(ended) > 0 {
		t.Errorf("Down: ended %v, %v; want nothing", ended, err)
	}
}
