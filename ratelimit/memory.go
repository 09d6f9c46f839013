package ratelimit

import (
	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
)

// Memory returns counters that live in this process and nowhere else. With Policies they are for an application of one
// replica, and for tests. With a snapshot file several replicas need no store: each admits its share of every limit, by
// the replica count in the file, whatever a rule's onStoreFailure is; a new one earns its share over the limit's window.
// They are bounded by Options.MaxKeys: what is full again is forgotten first, and a client that is over its limit never.
func Memory() Counters { return memory{} }

type memory struct{}

// OpenStore is called by New.
func (memory) OpenStore(o Options) (enforcer.Store, error) {
	return memstore.New(memstore.Options{MaxKeys: o.MaxKeys}), nil
}
