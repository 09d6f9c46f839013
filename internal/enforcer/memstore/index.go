package memstore

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/weir-dev/weir/internal/enforcer"
)

// index finds the first slot of each identity: a table of identities' hashes with the slots beside them, in which a
// look-up waits for memory once, where a map of Go does three times. It is never more than three quarters full.
type index struct {
	cells []cell // a power of two, or none
	count int
}

// cell is empty without a first slot. Cells of the same place follow one another, without an empty one in between.
type cell struct {
	hash  uint64
	first *slot
}

const minCells = 8

// seeds are drawn once in a process, so that nobody can choose values whose identities lie in one place.
var seeds = [2]uint64{rand.Uint64(), rand.Uint64()}

func hashOf(id *enforcer.Identity) uint64 {
	low, high := binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	carry, product := bits.Mul64(low^seeds[0], high^seeds[1])
	return carry ^ product
}

func (x *index) find(id *enforcer.Identity) *slot {
	if len(x.cells) == 0 {
		return nil
	}
	hash, mask := hashOf(id), uint64(len(x.cells)-1)
	for i := hash & mask; ; i = (i + 1) & mask {
		c := &x.cells[i]
		if c.first == nil || c.hash == hash && c.first.name.identity == *id {
			return c.first
		}
	}
}

// set makes a slot the first one of its identity.
func (x *index) set(first *slot) {
	if 4*(x.count+1) > 3*len(x.cells) {
		x.grow()
	}
	x.put(cell{hashOf(&first.name.identity), first})
}

func (x *index) put(entered cell) {
	mask := uint64(len(x.cells) - 1)
	for i := entered.hash & mask; ; i = (i + 1) & mask {
		c := &x.cells[i]
		if c.first == nil {
			x.count++
			*c = entered
			return
		}
		if c.hash == entered.hash && c.first.name.identity == entered.first.name.identity {
			*c = entered
			return
		}
	}
}

func (x *index) grow() {
	old := x.cells
	x.cells, x.count = make([]cell, max(minCells, 2*len(old))), 0
	for _, c := range old {
		if c.first != nil {
			x.put(c)
		}
	}
}

// remove forgets an identity that is there, and moves those behind it up that would not be found otherwise.
func (x *index) remove(id *enforcer.Identity) {
	hash, mask := hashOf(id), uint64(len(x.cells)-1)
	i := hash & mask
	for x.cells[i].hash != hash || x.cells[i].first.name.identity != *id {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; x.cells[j].first != nil; j = (j + 1) & mask {
		// One that is at its own place, or between it and the gap's end, stays.
		if home := x.cells[j].hash & mask; (j-home)&mask >= (j-i)&mask {
			x.cells[i] = x.cells[j]
			i = j
		}
	}
	x.cells[i] = cell{}
	x.count--
}
