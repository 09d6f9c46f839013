package memstore

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
)

func TestIndexIsAMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var x index
	want := map[enforcer.Identity]*slot{}
	for step := range 50_000 {
		var id enforcer.Identity // few of them, so that they are removed as often as they are set
		binary.LittleEndian.PutUint64(id[:], random.Uint64N(uint64(4<<(step%9))))
		switch known := want[id] != nil; {
		case known && random.IntN(2) == 0:
			x.remove(&id)
			delete(want, id)
		default:
			first := &slot{name: name{identity: id}}
			x.set(first)
			want[id] = first
		}
		if got := x.find(&id); got != want[id] {
			t.Fatalf("step %d: found %p, want %p", step, got, want[id])
		}
		if step%1000 != 0 {
			continue
		}
		for id, first := range want {
			if got := x.find(&id); got != first {
				t.Fatalf("step %d: found %p for %x, want %p", step, got, id, first)
			}
		}
		if x.count != len(want) {
			t.Fatalf("step %d: counts %d identities, want %d", step, x.count, len(want))
		}
	}
}
