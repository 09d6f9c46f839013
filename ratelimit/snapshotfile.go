package ratelimit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weir-dev/weir/internal/enforcer"
)

// maxSnapshotFile bounds what is read of a snapshot file: more than a ConfigMap can hold.
const maxSnapshotFile = 1<<20 + 1

// snapshotFiles are the mounted file and the cache of a replica.
//
// The mounted file is read whole at each poll and compared by content. Its path leads through links which the kubelet
// replaces in one step, so that a read finds the old content or the new, and a time of modification says nothing.
type snapshotFiles struct {
	mounted string
	cache   string // none if empty
}

var _ enforcer.SnapshotFiles = snapshotFiles{}

func newSnapshotFiles(o *Options) snapshotFiles {
	files := snapshotFiles{mounted: o.SnapshotFile, cache: o.SnapshotCache}
	if files.mounted == "" {
		files.mounted = DefaultSnapshotFile
	}
	return files
}

func (f snapshotFiles) ReadMounted() ([]byte, error) { return readSnapshot(f.mounted) }

func (f snapshotFiles) ReadKept() ([]byte, error) {
	if f.cache == "" {
		return nil, nil
	}
	return readSnapshot(f.cache)
}

// readSnapshot returns nil for a file that is not there.
func readSnapshot(path string) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the snapshot: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSnapshotFile))
	if err != nil {
		return nil, fmt.Errorf("reading the snapshot: %w", err)
	}
	return data, nil
}

// Keep writes beside the cache and then renames, so that whoever reads it finds all of one version.
func (f snapshotFiles) Keep(data []byte) error {
	if f.cache == "" {
		return nil
	}
	file, err := os.CreateTemp(filepath.Dir(f.cache), filepath.Base(f.cache)+".*")
	if err != nil {
		return fmt.Errorf("keeping the snapshot: %w", err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), f.cache)
	}
	if err != nil {
		return fmt.Errorf("keeping the snapshot: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}
