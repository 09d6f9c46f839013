package main

import (
	"context"
	"errors"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/internal/scenario"
)

// expiring watches over what a Redis keeps. Keys expire by the server's clock, while that of a scenario stands: when the
// requests of one instant take longer than a counter lives, the counter is gone although it still weighs.
//
// A counter that weighs until end, on the scenario's clock, was given its time to live when the server's clock was
// ahead of the scenario's by some lead, so it is there until the server's clock is at end + that lead. The smallest lead
// that there was is good for all.
type expiring struct {
	*redisstore.Store
	clock func() int64 // the scenario's, in µs
	ends  map[counter]int64
	// least is the smallest lead; leads are only compared with each other, so any start of real time will do.
	least int64
	start time.Time
	doubt error
}

var (
	_ scenario.Doubtful = (*expiring)(nil)
	_ enforcer.Pusher   = (*expiring)(nil)
)

// counter is what makes one.
type counter struct {
	identity enforcer.Identity
	id       string
}

// expirySlack (µs) is by how much states live longer than they weigh, but for those of buckets.
const expirySlack = 1_000_000

var errExpired = errors.New("the requests of one instant took so long that Redis may have forgotten a counter: send fewer at once")

func newExpiring(store *redisstore.Store, clock func() int64) *expiring {
	return &expiring{Store: store, clock: clock, ends: make(map[counter]int64), least: -clock(), start: time.Now()}
}

// Take answers like the store, and sees whether it could still have the counters.
func (s *expiring) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	s.least = min(s.least, s.real()-s.clock())
	now, err := s.Store.Take(ctx, entries, answers)
	for i := range entries {
		for j, c := range entries[i].Counters {
			name := counter{c.Identity, c.ID}
			if end, ok := s.ends[name]; ok && s.clock() < end && s.real()-s.least >= end+slackOf(c.Limit) {
				s.doubt = errExpired
			}
			if err == nil && answers[i].Err == nil && answers[i].Granted > 0 {
				s.ends[name] = s.clock() + answers[i].Results[j].ResetAfter
			}
		}
	}
	return now, err
}

func (s *expiring) real() int64 { return time.Since(s.start).Microseconds() }

func slackOf(l algorithm.Limit) int64 {
	if l.Algorithm == algorithm.TokenBucket {
		return 0
	}
	return expirySlack
}

// Doubt says whether a counter was asked for that may have been gone.
func (s *expiring) Doubt() error { return s.doubt }
