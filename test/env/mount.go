package env

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Mount is a folder as the kubelet mounts a ConfigMap: each file is a link into the folder ..data, which is itself a
// link, and replaced in one step. Its methods may be called concurrently.
type Mount struct {
	Dir string

	mu      sync.Mutex
	version int
}

// Project replaces all of the content by these files.
func (m *Mount) Project(files map[string]string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.project(files); err != nil {
		return fmt.Errorf("projecting into %s: %w", m.Dir, err)
	}
	return nil
}

func (m *Mount) project(files map[string]string) error {
	const data, next = "..data", "..data_tmp"
	m.version++
	version := fmt.Sprintf("..%d", m.version)
	if err := os.MkdirAll(filepath.Join(m.Dir, version), 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(m.Dir, version, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	old, _ := os.Readlink(filepath.Join(m.Dir, data)) // none at first
	if err := os.Symlink(version, filepath.Join(m.Dir, next)); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(m.Dir, next), filepath.Join(m.Dir, data)); err != nil {
		return err
	}
	for name := range files {
		if _, err := os.Lstat(filepath.Join(m.Dir, name)); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(data, name), filepath.Join(m.Dir, name)); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries { // files that are no longer there
		if _, ok := files[entry.Name()]; !ok && entry.Name()[0] != '.' {
			if err := os.Remove(filepath.Join(m.Dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(m.Dir, old))
}
