package sketch_test

import (
	"cmp"
	"math/rand/v2"
	"testing"

	"github.com/weir-dev/weir/internal/sketch"
)

// streams are orders in which keys come, from the kind one to the worst.
var streams = map[string]func(r *rand.Rand, n int) []uint64{
	"skewed": func(r *rand.Rand, n int) []uint64 {
		zipf := rand.NewZipf(r, 1.2, 1, 20_000)
		return fill(n, func(int) uint64 { return zipf.Uint64() })
	},
	"no key more than another": func(r *rand.Rand, n int) []uint64 {
		return fill(n, func(int) uint64 { return r.Uint64N(5_000) })
	},
	"each key once": func(_ *rand.Rand, n int) []uint64 {
		return fill(n, func(i int) uint64 { return uint64(i) })
	},
	"the frequent ones at the end": func(r *rand.Rand, n int) []uint64 {
		return fill(n, func(i int) uint64 {
			if i < n*9/10 {
				return 1_000 + uint64(i)
			}
			return r.Uint64N(5)
		})
	},
}

func fill(n int, key func(i int) uint64) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = key(i)
	}
	return all
}

func TestCountsAreWithinTheirBounds(t *testing.T) {
	const room = 200
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 1))
			s := sketch.New[uint64, struct{}](room)
			truth := map[uint64]int64{}
			for _, key := range stream(r, 50_000) {
				n := 1 + r.Int64N(3)
				truth[key] += n
				s.Add(key, n)
			}
			var total int64
			for _, n := range truth {
				total += n
			}
			if s.Total() != total || s.Len() != room || !s.Full() {
				t.Errorf("seed %d: total %d of %d, %d keys, full %v", seed, s.Total(), total, s.Len(), s.Full())
			}
			bound := total / room
			if s.Floor() > bound {
				t.Errorf("seed %d: the floor is %d, above %d", seed, s.Floor(), bound)
			}
			held := map[uint64]bool{}
			last := int64(1) << 62
			for _, item := range s.Items(nil) {
				held[item.Key] = true
				if n := truth[item.Key]; n > item.Count || n < item.Count-item.Over || item.Over > bound {
					t.Errorf("seed %d: key %d counted %d with error %d, is %d", seed, item.Key, item.Count, item.Over, n)
				}
				if item.Count > last {
					t.Errorf("seed %d: %d behind %d", seed, item.Count, last)
				}
				last = item.Count
			}
			for key, n := range truth {
				if !held[key] && n > s.Floor() {
					t.Errorf("seed %d: key %d is not there, was counted %d times, above the floor %d", seed, key, n, s.Floor())
				}
			}
		})
	}
}

func TestASketchWithRoomIsExact(t *testing.T) {
	s := sketch.New[string, int](3)
	for i, key := range []string{"b", "a", "b", "c", "c"} {
		item, fresh := s.Add(key, 1)
		if fresh {
			item.Value = i
		}
		if first := map[string]int{"b": 0, "a": 1, "c": 3}[key]; item.Value != first || fresh != (i == first) {
			t.Errorf("%s has %+v, new %v", key, item, fresh)
		}
	}
	var got []string
	for _, item := range s.Items(func(a, b *sketch.Item[string, int]) int { return cmp.Compare(b.Value, a.Value) }) {
		got = append(got, item.Key)
		if item.Over != 0 {
			t.Errorf("%s has an error of %d", item.Key, item.Over)
		}
	}
	if len(got) != 3 || got[0] != "c" || got[1] != "b" || got[2] != "a" || s.Full() || s.Floor() != 0 {
		t.Errorf("%v, full %v, floor %d", got, s.Full(), s.Floor())
	}
	if item, fresh := s.Add("d", 1); !fresh || item.Value != 0 || item.Count != 2 || item.Over != 1 || s.Floor() != 2 {
		t.Errorf("the fourth key: %+v, new %v, floor %d", item, fresh, s.Floor())
	}
	if s.Find("b") == nil || s.Find("a") != nil { // it came once, like no other
		t.Errorf("b is %+v, a is %+v", s.Find("b"), s.Find("a"))
	}
	s.Reset()
	if s.Len() != 0 || s.Total() != 0 || s.Full() || s.Floor() != 0 || s.Find("b") != nil {
		t.Errorf("after a reset: %d keys of %d", s.Len(), s.Total())
	}
	if item, fresh := s.Add("b", 2); !fresh || item.Value != 0 || item.Count != 2 || item.Over != 0 {
		t.Errorf("the first key after a reset: %+v, new %v", item, fresh)
	}
}

func TestAFullSketchAllocatesNothing(t *testing.T) {
	s := sketch.New[[16]byte, string](128)
	r := rand.New(rand.NewPCG(1, 2))
	add := func() {
		var key [16]byte
		key[0], key[1] = byte(r.Uint32()), byte(r.Uint32())
		s.Add(key, 1)
	}
	for range 10_000 {
		add()
	}
	const thousand = 1000
	if allocs := testing.AllocsPerRun(100, func() {
		for range thousand {
			add()
		}
	}); allocs > 0 {
		t.Errorf("%g allocations by %d keys", allocs, thousand)
	}
}

func BenchmarkAdd(b *testing.B) {
	for name, keys := range map[string]uint64{"one": 1, "10000": 10_000} {
		b.Run(name, func(b *testing.B) {
			s := sketch.New[[16]byte, string](128)
			var i uint64
			for b.Loop() {
				var key [16]byte
				key[0], key[1] = byte(i%keys), byte(i%keys>>8)
				s.Add(key, 1)
				i++
			}
		})
	}
}
