package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-dev/weir/hack/dev/process"
)

// record is what a later process must know to find a detached cluster and to end it.
type record struct {
	Kubeconfig string             `json:"kubeconfig"`
	Kubectl    string             `json:"kubectl"`
	Processes  []process.Identity `json:"processes"`
	// Ready is set once the start has succeeded.
	Ready bool `json:"ready"`
}

func recordPath(dir string) string { return filepath.Join(dir, "cluster.json") }

func readRecord(dir string) (record, error) {
	var r record
	content, err := os.ReadFile(recordPath(dir))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", recordPath(dir), err)
	}
	return r, nil
}

// write replaces the record as a whole, so that a reader never sees half of it.
func (r record) write(dir string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	temporary := recordPath(dir) + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("recording the cluster's processes: %w", err)
	}
	if err := os.Rename(temporary, recordPath(dir)); err != nil {
		return fmt.Errorf("recording the cluster's processes: %w", err)
	}
	return nil
}

func (r record) alive() []process.Identity {
	var alive []process.Identity
	for _, id := range r.Processes {
		if id.Alive() {
			alive = append(alive, id)
		}
	}
	return alive
}

// Find returns the detached cluster of a folder, or nil if none runs there, or only a part of it, or if it is not
// ready yet.
func Find(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if !r.Ready || len(r.alive()) < len(r.Processes) {
		return nil, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	return &Cluster{Kubeconfig: r.Kubeconfig, Kubectl: r.Kubectl, dir: dir, config: config, record: r}, nil
}

// Down ends the cluster of a folder, whole or not, removes the folder, and returns the programs that it ended. A
// process that merely has the pid of one of them is left alone.
func Down(ctx context.Context, dir string) ([]string, error) {
	r, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var names []string
	for _, id := range r.alive() {
		if err := id.Kill(); err != nil {
			return names, err
		}
		names = append(names, id.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := process.Poll(ctx, 20*time.Millisecond, func(context.Context) error {
		if alive := r.alive(); len(alive) > 0 {
			return fmt.Errorf("%s (pid %d) still runs", alive[0].Name, alive[0].PID)
		}
		return nil
	}); err != nil {
		return names, fmt.Errorf("ending the cluster: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return names, fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return names, nil
}
