package memstore

import (
	"maps"
	"slices"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Copy returns a store that holds at this moment what s holds, with the same clock: what a server would have saved. What
// a replica knows of its own use is not copied.
func (s *Store) Copy() *Store {
	to := &Store{clock: s.clock}
	for i := range s.shards {
		s.shards[i].mu.Lock()
		s.shards[i].copyTo(&to.shards[i])
		s.shards[i].mu.Unlock()
	}
	return to
}

func (s *shard) copyTo(to *shard) {
	to.init(s.bound)
	for _, from := range s.slots {
		slot := from.copy(to)
		slot.place = len(to.slots)
		to.slots = append(to.slots, slot)
		to.link(slot)
		to.weight += slot.weight
	}
	if s.overflow != nil {
		to.overflow = make(map[name]*slot, len(s.overflow))
	}
	for n, from := range s.overflow {
		to.overflow[n] = from.copy(nil)
	}
	if s.rounds != nil {
		to.rounds = make(map[name]*beside, len(s.rounds))
	}
	for n, from := range s.rounds {
		to.rounds[n] = &beside{
			ledger: enforcer.Ledger{Round: from.ledger.Round, Reset: from.ledger.Reset, Seen: maps.Clone(from.ledger.Seen)},
			told:   copyState(from.told),
		}
	}
}

func (s *slot) copy(to *shard) *slot {
	return &slot{name: s.name, limit: s.limit, state: copyState(s.state), weight: s.weight, shard: to}
}

func copyState(s algorithm.State) algorithm.State {
	s.Log = slices.Clone(s.Log)
	return s
}
