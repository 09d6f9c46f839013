// Package file reads policies from YAML files, for applications that run without a cluster: on a laptop, in a test, or
// as a single process.
package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
)

// Source gives the policies of files or of a text. It is safe for concurrent use.
type Source struct {
	read func() ([]policy.Policy, error)

	mu       sync.Mutex
	row      []byte // the last
	revision int64  // its own
}

var _ ratelimit.PolicySource = (*Source)(nil)

// Files reads the files that match the patterns, as filepath.Match has them, at every poll of the limiter. Each may
// hold several documents; those of other kinds are passed over. The files are also read now, so that a mistake in them
// is found before the application starts. Later a mistake leaves the last good policies in force.
func Files(patterns ...string) (*Source, error) {
	s := &Source{read: func() ([]policy.Policy, error) { return readFiles(patterns) }}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// Text reads the documents in text.
func Text(text string) (*Source, error) {
	policies, err := parse("policies", []byte(text))
	if err != nil {
		return nil, err
	}
	s := &Source{read: func() ([]policy.Policy, error) { return policies, nil }}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// check finds what every workload's row would be refused for.
func (s *Source) check() error {
	policies, err := s.read()
	if err != nil {
		return err
	}
	for _, p := range policies {
		if errs := policy.Validate(p); len(errs) > 0 {
			return fmt.Errorf("policy %s: %w", p.Metadata.Name, errs[0])
		}
	}
	return nil
}

// ReadRow returns the policies that target the workload "namespace/group/kind/name". Its revision rises whenever they
// change.
func (s *Source) ReadRow(_ context.Context, workload string) ([]byte, error) {
	w, err := policy.ParseWorkload(workload)
	if err != nil {
		return nil, err
	}
	policies, err := s.read()
	if err != nil {
		return nil, err
	}
	row, verdicts := policy.Compile(w, "file", policies)
	for _, v := range verdicts {
		if !v.Accepted() {
			return nil, fmt.Errorf("policy %s: %s: %s", v.Name, v.Reason, v.Message)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row != nil {
		same, err := encode(row, s.revision)
		if err != nil || bytes.Equal(same, s.row) {
			return same, err
		}
	}
	s.revision++
	s.row, err = encode(row, s.revision)
	return s.row, err
}

func encode(row policy.Row, revision int64) ([]byte, error) {
	row.Revision = policy.Revision{Epoch: "1", N: revision}
	return policy.EncodeRow(row)
}

func readFiles(patterns []string) ([]policy.Policy, error) {
	var policies []policy.Policy
	for _, pattern := range patterns {
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
			parsed, err := parse(name, data)
			if err != nil {
				return nil, err
			}
			policies = append(policies, parsed...)
		}
	}
	return policies, nil
}
