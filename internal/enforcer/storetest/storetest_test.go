package storetest_test

import (
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/enforcer/storetest"
)

func memory(clock func() int64) enforcer.Store { return memstore.New(memstore.Options{Clock: clock}) }

var memoryOptions = storetest.Options{Apart: true, Forward: true, Pusher: true, Steps: 200_000}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(_ *testing.T, clock func() int64) enforcer.Store { return memory(clock) }, memoryOptions)
}

func FuzzMemoryEqualsPure(f *testing.F) { storetest.Fuzz(f, memory, memoryOptions) }
