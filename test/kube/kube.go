// Package kube gives tests a local Kubernetes, whole or the API server alone. It is apart from package env, so that tests of
// stores link no Kubernetes client.
package kube

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weir-dev/weir/hack/dev/cluster"
	"github.com/weir-dev/weir/hack/dev/process"
)

var (
	wholeCluster  = sharedCluster{}
	apiServerOnly = sharedCluster{apiServerOnly: true}
)

// Cluster returns a whole local Kubernetes, with controllers, scheduler and a fake node. All tests of a test binary
// share it: each creates what it needs under a name or namespace of its own.
//
// Where the control plane has never been built, the first call builds it, which can take longer than a test's time
// limit of ten minutes; `make test` builds it beforehand.
func Cluster(t testing.TB) *cluster.Cluster {
	t.Helper()
	return wholeCluster.get(t)
}

// APIServer returns a Kubernetes API server alone, shared like Cluster: what a test writes, status included, stays as
// it is written. Nothing deletes the content of a namespace or anything else by owner.
func APIServer(t testing.TB) *cluster.Cluster {
	t.Helper()
	return apiServerOnly.get(t)
}

// sharedCluster starts at first use and ends with the process.
type sharedCluster struct {
	apiServerOnly bool

	once    sync.Once
	cluster *cluster.Cluster
	err     error
}

func (s *sharedCluster) get(t testing.TB) *cluster.Cluster {
	t.Helper()
	s.once.Do(func() {
		ctx := context.Background()
		if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
			if deadline, limited := limited.Deadline(); limited {
				const margin = 10 * time.Second // to report before the test binary is shot
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, deadline.Add(-margin))
				defer cancel()
			}
		}
		s.cluster, s.err = s.start(ctx)
	})
	if s.err != nil {
		t.Fatalf("%v (`make build-cluster` builds the control plane without a time limit)", s.err)
	}
	return s.cluster
}

func (s *sharedCluster) start(ctx context.Context) (*cluster.Cluster, error) {
	dir, err := os.MkdirTemp("", "weir-cluster-")
	if err != nil {
		return nil, err
	}
	if err := process.RemoveAtExit(dir); err != nil {
		return nil, err
	}
	return cluster.Start(ctx, cluster.Options{
		Dir:           filepath.Join(dir, "cluster"),
		APIServerOnly: s.apiServerOnly,
		Log:           os.Stderr,
	})
}
