// Package sketch finds what is counted most among more keys than there is room for.
package sketch

import (
	"container/heap"
	"slices"
)

// Sketch is the space-saving sketch of Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k
// Elements in Data Streams" (2005). A key that finds no room takes the place of the one with the lowest count, and has
// that count as its error.
//
// Of all that was counted, N, and with room for m keys:
//   - no count is too low, and each is too high by at most Item.Over, which is at most N/m;
//   - a key that was counted more than N/m times is there, and so is one that was counted more than Floor times.
//
// Memory is taken by New alone. A Sketch is not safe for concurrent use.
type Sketch[K comparable, V any] struct {
	total int64
	room  []Item[K, V] // those in use come first
	items map[K]*Item[K, V]
	heap  byCount[K, V]
	full  bool // some key found no room
}

// Item is one key of a sketch. Value is the caller's, and zero where the key is new.
type Item[K comparable, V any] struct {
	Key   K
	Count int64
	Over  int64 // by how much Count may be too high
	Value V
	place int
}

// New returns a sketch with room for so many keys, at least 1.
func New[K comparable, V any](size int) *Sketch[K, V] {
	size = max(size, 1)
	return &Sketch[K, V]{
		room: make([]Item[K, V], size), items: make(map[K]*Item[K, V], size), heap: make(byCount[K, V], 0, size),
	}
}

// Reset forgets all keys.
func (s *Sketch[K, V]) Reset() {
	clear(s.room)
	clear(s.items)
	s.heap, s.total, s.full = s.heap[:0], 0, false
}

// Add counts a key n times, and says whether it is new. The item is good until the next Add.
func (s *Sketch[K, V]) Add(key K, n int64) (item *Item[K, V], fresh bool) {
	s.total += n
	item, known := s.items[key]
	switch {
	case known:
	case len(s.heap) < len(s.room):
		item = &s.room[len(s.heap)]
		item.Key = key
		s.items[key] = item
		heap.Push(&s.heap, item)
	default:
		s.full = true
		item = s.heap[0]
		delete(s.items, item.Key)
		var none V
		item.Key, item.Over, item.Value = key, item.Count, none
		s.items[key] = item
	}
	item.Count += n
	heap.Fix(&s.heap, item.place)
	return item, !known
}

// Find returns a key's item, nil if it is not there. The item is good until the next Add.
func (s *Sketch[K, V]) Find(key K) *Item[K, V] { return s.items[key] }

// Items returns all keys in the order that compare makes; it gets items of equal counts only, as those with the higher
// count come first. A nil compare leaves their order open.
func (s *Sketch[K, V]) Items(compare func(a, b *Item[K, V]) int) []Item[K, V] {
	all := make([]Item[K, V], 0, len(s.heap))
	for _, item := range s.heap {
		all = append(all, *item)
	}
	slices.SortFunc(all, func(a, b Item[K, V]) int {
		switch {
		case a.Count != b.Count:
			if a.Count > b.Count {
				return -1
			}
			return 1
		case compare == nil:
			return 0
		}
		return compare(&a, &b)
	})
	return all
}

// Len is how many keys there are.
func (s *Sketch[K, V]) Len() int { return len(s.heap) }

// Total is the sum of all that was counted.
func (s *Sketch[K, V]) Total() int64 { return s.total }

// Full says that some key found no room.
func (s *Sketch[K, V]) Full() bool { return s.full }

// Floor is how often a key that is not there was counted at most.
func (s *Sketch[K, V]) Floor() int64 {
	if !s.full {
		return 0
	}
	return s.heap[0].Count
}

// byCount is a heap with the lowest count first.
type byCount[K comparable, V any] []*Item[K, V]

func (h byCount[K, V]) Len() int           { return len(h) }
func (h byCount[K, V]) Less(i, j int) bool { return h[i].Count < h[j].Count }
func (h byCount[K, V]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *byCount[K, V]) Push(x any) {
	item := x.(*Item[K, V]) //nolint:errcheck // the heap holds nothing else
	item.place = len(*h)
	*h = append(*h, item)
}

// Pop implements heap.Interface; nothing is ever popped.
func (h *byCount[K, V]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
