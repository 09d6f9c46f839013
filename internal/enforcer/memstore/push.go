package memstore

import (
	"context"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

var _ enforcer.Pusher = (*Store)(nil)

// beside is what is kept of a counter apart from its state, while replicas tell what they admitted.
type beside struct {
	ledger enforcer.Ledger
	told   algorithm.State // the sum of the round
}

// maxRounds is how many counters of a shard may have something beside them before what is old goes.
const (
	maxRounds = 1024
	roundsAge = 3_600_000_000 // µs
)

// Push takes over what replicas tell.
func (s *Store) Push(_ context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	now := s.clock()
	for i := range pushes {
		answers[i] = s.push(now, &pushes[i])
	}
	return now, nil
}

func (s *Store) push(now int64, p *enforcer.Push) enforcer.Pushed {
	c := enforcer.Counter{Identity: p.Identity, ID: p.ID, Limit: p.Limit}
	shard := &s.shards[shardOf(&c)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	kept := shard.beside(nameOf(&c), now)
	slot := s.slot(&c, now)
	state, alt, answer := kept.ledger.Apply(p, slot.state, kept.told, now)
	slot.state, kept.told = state, alt
	slot.weigh()
	return answer
}

// beside returns what is kept beside a counter.
func (s *shard) beside(n name, now int64) *beside {
	kept, ok := s.rounds[n]
	if !ok {
		s.dropRounds(now)
		if s.rounds == nil {
			s.rounds = make(map[name]*beside)
		}
		kept = new(beside)
		s.rounds[n] = kept
	}
	return kept
}

// reset remembers when a counter was made full again, so that nobody fills it with what was charged before.
func (s *shard) reset(n name, now int64) {
	kept := s.beside(n, now)
	*kept = beside{ledger: enforcer.Ledger{Reset: now}}
}

func (s *shard) dropRounds(now int64) {
	if len(s.rounds) < maxRounds {
		return
	}
	for n, kept := range s.rounds {
		if now-max(kept.ledger.Round, kept.ledger.Reset) > roundsAge {
			delete(s.rounds, n)
		}
	}
}
