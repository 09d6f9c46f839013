// Package file reads policies from YAML files, for applications that run without a cluster: on a laptop, in a test, or
// as a single process. The files are those that a cluster would get; objects of other kinds in them are passed over.
//
//	source, err := file.Files("policies/*.yaml")
//	options.Policies = source
//	options.Counters = ratelimit.Memory()
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
)

// Source gives the policies of files or of a text. It is safe for concurrent use.
type Source struct {
	patterns []string // none for a text

	mu       sync.Mutex
	contents []byte // of all files, as they were read last
	policies []policy.Policy
	err      error            // what is wrong with the contents; the policies are then those of before
	rows     map[string]*held // by workload
}

// held is the row of one workload that was given last.
type held struct {
	row      []byte
	revision int64
}

var _ ratelimit.PolicySource = (*Source)(nil)

// Files reads the files that match the patterns, as filepath.Match has them. They are read now, so that a mistake in
// them is found before the application starts; the error then names every one with file, line and path. They are read
// again at every poll of the limiter, and a change is in force with it. A change that is not valid, a file that is
// gone for a moment, or files without any policy leave the last good policies in force, and the limiter logs why.
func Files(patterns ...string) (*Source, error) {
	if len(patterns) == 0 {
		return nil, errors.New("reading policies: no files are named")
	}
	s := &Source{patterns: patterns, rows: make(map[string]*held)}
	return s, s.check(s.refresh())
}

// Text reads the documents in text.
func Text(text string) (*Source, error) {
	s := &Source{rows: make(map[string]*held)}
	s.take([]manifestFile{{"policies", []byte(text)}})
	return s, s.check(s.err)
}

// Workloads are what the policies target, each as "namespace/group/kind/name", in the order of the files.
func (s *Source) Workloads() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var workloads []string
	for _, p := range s.policies {
		if w := p.Workload().String(); !slices.Contains(workloads, w) {
			workloads = append(workloads, w)
		}
	}
	return workloads
}

// check finds what a row would be refused for, beyond what is wrong with the files themselves.
func (s *Source) check(err error) error {
	if err != nil {
		return err
	}
	for _, workload := range s.Workloads() {
		if _, err := s.ReadRow(context.Background(), workload); err != nil {
			return err
		}
	}
	return nil
}

// ReadRow implements ratelimit.PolicySource: it returns the policies that target the workload
// "namespace/group/kind/name". Its revision rises whenever they change.
func (s *Source) ReadRow(_ context.Context, workload string) ([]byte, error) {
	w, err := policy.ParseWorkload(workload)
	if err != nil {
		return nil, fmt.Errorf("reading policies: %w", err)
	}
	if err := s.refresh(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	row, verdicts := policy.Compile(w, "file", s.policies)
	for _, v := range verdicts {
		if !v.Accepted() {
			return nil, fmt.Errorf("reading policies: policy %s/%s: %s: %s", w.Namespace, v.Name, v.Reason, v.Message)
		}
	}
	last, ok := s.rows[workload]
	if !ok {
		last = &held{}
		s.rows[workload] = last
	}
	same, err := encode(row, last.revision)
	if err != nil || ok && bytes.Equal(same, last.row) {
		return same, err
	}
	encoded, err := encode(row, last.revision+1)
	if err != nil {
		return nil, err
	}
	last.row, last.revision = encoded, last.revision+1
	return encoded, nil
}

func encode(row policy.Row, revision int64) ([]byte, error) {
	row.Revision = policy.Revision{Epoch: "1", N: revision}
	encoded, err := policy.EncodeRow(row)
	if err != nil {
		return nil, fmt.Errorf("reading policies: %w", err)
	}
	return encoded, nil
}

// refresh reads the files again, and parses them if they have changed. It says what is wrong with them.
func (s *Source) refresh() error {
	if s.patterns == nil {
		return nil
	}
	files, err := s.read()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(files)
	return s.err
}

// manifestFile is a file and what is in it.
type manifestFile struct {
	name string
	data []byte
}

func names(files []manifestFile) []string {
	var names []string
	for _, f := range files {
		names = append(names, f.name)
	}
	return names
}

func (s *Source) read() ([]manifestFile, error) {
	var files []manifestFile
	for _, pattern := range s.patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("reading policies: %q: %w", pattern, err)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("reading policies: no file matches %q", pattern)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("reading policies: %w", err)
			}
			files = append(files, manifestFile{name, data})
		}
	}
	return files, nil
}

// take takes over the policies of files, unless something is wrong with one of them.
func (s *Source) take(files []manifestFile) {
	var contents []byte
	for _, f := range files {
		contents = append(append(append(contents, f.name...), 0), f.data...)
	}
	if s.contents != nil && bytes.Equal(contents, s.contents) {
		return
	}
	s.contents = contents
	var policies []policy.Policy
	var faults manifest.Faults
	for _, f := range files {
		parsed := manifest.Parse(f.name, f.data)
		for _, p := range parsed.Policies(manifest.DefaultNamespace) {
			policies = append(policies, p.Policy)
		}
		faults = append(faults, parsed.Faults()...)
	}
	if s.err = faults.Err(); s.err != nil {
		s.err = fmt.Errorf("reading policies: %w", s.err)
		return
	}
	if len(policies) == 0 {
		// A file that an editor has just emptied must not lift all limits.
		s.err = errors.New("reading policies: there is none in " + strings.Join(names(files), ", "))
		return
	}
	s.policies = policies
}
