package storetest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Fuzz compares a store with the pure functions over lives whose choices the fuzzer makes. The clock of the store that
// is opened is the returned function's argument.
func Fuzz(f *testing.F, open func(clock func() int64) enforcer.Store, options Options) {
	c := newClock()
	store := open(c.time)
	s := &suite{options: options}
	for seed := range uint64(4) {
		data := make([]byte, 800)
		random := rand.NewPCG(seed, 0)
		for i := 0; i < len(data); i += 8 {
			binary.LittleEndian.PutUint64(data[i:], random.Uint64())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		source := &bytesSource{data: data[:min(len(data), 8_000)], rest: rand.NewPCG(0, 0)}
		w := newWorld(t, s, store, c, source, false)
		for len(source.data) > 0 {
			if err := w.step(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// bytesSource takes random numbers from the input of a fuzzer, and goes on when that has ended.
type bytesSource struct {
	data []byte
	rest rand.Source
}

// Uint64 implements rand.Source.
func (b *bytesSource) Uint64() uint64 {
	if len(b.data) < 8 {
		b.data = nil
		return b.rest.Uint64()
	}
	n := binary.LittleEndian.Uint64(b.data)
	b.data = b.data[8:]
	return n
}
