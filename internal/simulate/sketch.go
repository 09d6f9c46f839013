package simulate

import (
	"cmp"
	"container/heap"
	"slices"
)

// sketch finds the keys that are counted most, in bounded memory: the space-saving sketch of Metwally, Agrawal and
// El Abbadi (2005). A key that finds no room takes over the count of the one with the lowest, as its error. A key whose
// true count is above the total divided by the size is never missing, and no count is too low.
type sketch[K comparable] struct {
	size  int
	items map[K]*counted[K]
	heap  byCount[K]
	full  bool // some key was dropped
}

// counted is one key of a sketch.
type counted[K comparable] struct {
	key   K
	count int64
	over  int64 // by how much count may be too high
	label string
	first int64
	last  int64
	place int
}

func newSketch[K comparable](size int) *sketch[K] {
	return &sketch[K]{size: size, items: make(map[K]*counted[K], size)}
}

// add counts a key at a time. The label is asked for when the key is new.
func (s *sketch[K]) add(key K, now int64, label func() string) {
	item, ok := s.items[key]
	switch {
	case ok:
	case len(s.heap) < s.size:
		item = &counted[K]{key: key, label: label(), first: now}
		s.items[key] = item
		heap.Push(&s.heap, item)
	default:
		s.full = true
		item = s.heap[0]
		delete(s.items, item.key)
		item.key, item.over, item.label, item.first = key, item.count, label(), now
		s.items[key] = item
	}
	item.count++
	item.last = now
	heap.Fix(&s.heap, item.place)
}

// top returns the n keys with the highest counts, highest first.
func (s *sketch[K]) top(n int) []counted[K] {
	all := make([]counted[K], 0, len(s.heap))
	for _, item := range s.heap {
		all = append(all, *item)
	}
	slices.SortFunc(all, func(a, b counted[K]) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.over, b.over), cmp.Compare(a.first, b.first), cmp.Compare(a.label, b.label))
	})
	return all[:min(n, len(all))]
}

// byCount is a heap with the lowest count first.
type byCount[K comparable] []*counted[K]

func (h byCount[K]) Len() int           { return len(h) }
func (h byCount[K]) Less(i, j int) bool { return h[i].count < h[j].count }
func (h byCount[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *byCount[K]) Push(x any) {
	item := x.(*counted[K]) //nolint:errcheck // the heap holds nothing else
	item.place = len(*h)
	*h = append(*h, item)
}

// Pop implements heap.Interface; nothing is ever popped.
func (h *byCount[K]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
