// Package storetest owns what every store of counters must satisfy: one suite that the memory, Redis and PostgreSQL
// stores pass.
//
// Answers are compared with those of the pure functions of package algorithm, applied to one caller after the other,
// and those again with the exact rationals of its model. Randomised tests print their seed; WEIR_SEED replays one.
package storetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// NewStore returns one more client of the same counters, or counters of its own if Options.Apart says so. The clock is
// in µs and stands in for the store's own; nil leaves that in place. What it needs ends with t.
type NewStore func(t *testing.T, clock func() int64) enforcer.Store

// Options says how a store may differ from others, and gives the suite a look at what it keeps.
type Options struct {
	// Apart: each new store has counters of its own, so the clients of a test share one store.
	Apart bool
	// Split: counters of different identities are decided apart, as in a Redis Cluster. Entries over several of them
	// may be refused while refunds are under way, so for those the suite demands only that no limit is exceeded, and
	// that in the end exactly what was granted is charged.
	Split bool
	// Forward: the store's clock never goes back, so the suite does not turn it back.
	Forward bool
	// Steps of random lives, counted in counters taken from; 20,000 if 0.
	Steps int
	// Rounds of the race for one counter, for each algorithm; 100 if 0.
	Rounds int
	// TimeToLive returns how long the state of a counter is kept from now (µs, injected) on, and false if there is no
	// state. Nil for stores that forget by other rules.
	TimeToLive func(t *testing.T, c enforcer.Counter, now int64) (time.Duration, bool)
	// Pusher: the store is one.
	Pusher bool
	// Spoil puts something into the place of a counter's state, which has been written before. Nil for stores whose
	// states cannot be but their own.
	Spoil func(t *testing.T, c enforcer.Counter, what Spoil)
}

// Spoil is something that a store has to refuse to understand.
type Spoil string

const (
	NewerFormat Spoil = "a state of a newer format"
	Garbage     Spoil = "garbage"
)

// Run runs the suite.
func Run(t *testing.T, newStore NewStore, options Options) {
	s := &suite{newStore: newStore, options: options}
	if s.options.Steps == 0 {
		s.options.Steps = 20_000
	}
	if s.options.Rounds == 0 {
		s.options.Rounds = 100
	}
	t.Run("random lives equal the pure functions and the model", s.lives)
	t.Run("equal callers are answered as one after the other", s.equalCallers)
	t.Run("batches", s.batches)
	t.Run("refunds", s.refunds)
	t.Run("a retry is admitted after the wait and not before", s.retries)
	t.Run("a changed limit keeps what was charged", s.changedLimit)
	t.Run("a reset makes full", s.reset)
	t.Run("identities of any bytes are distinct", s.identities)
	t.Run("nothing to do", s.nothing)
	t.Run("the store's own clock", s.ownClock)
	t.Run("a race never admits one too many", s.race)
	t.Run("a race over several identities", s.raceOverSeveral)
	if options.Pusher {
		t.Run("pushes equal the ledger", s.pushes)
	}
	if options.TimeToLive != nil {
		t.Run("states live as long as they weigh", s.timeToLive)
	}
	if options.Spoil != nil {
		t.Run("what is not understood is an error", s.spoiled)
	}
}

type suite struct {
	newStore NewStore
	options  Options
}

// clients returns two clients of the same counters.
func (s *suite) clients(t *testing.T, clock func() int64) [2]enforcer.Store {
	first := s.newStore(t, clock)
	if s.options.Apart {
		return [2]enforcer.Store{first, first}
	}
	return [2]enforcer.Store{first, s.newStore(t, clock)}
}

var algorithms = []algorithm.Algorithm{
	algorithm.TokenBucket, algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog,
}

const (
	millisecond = int64(1_000)
	second      = 1_000 * millisecond
	minute      = 60 * second
	hour        = 60 * minute
	day         = 24 * hour
	maxWindow   = 31 * day
	maxRequests = int64(1_000_000_000)

	// noon is a time at which no window of a test begins or ends, but those of a minute and an hour.
	noon = int64(1_800_014_400) * second
)

// clock is an injected time. It is safe for concurrent use.
type clock struct{ now atomic.Int64 }

// newClock returns a clock that stands at noon.
func newClock() *clock {
	c := new(clock)
	c.now.Store(noon)
	return c
}

func (c *clock) time() int64 { return c.now.Load() }

// startSeed returns the seed of a test and prints it.
func startSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("WEIR_SEED"); text != "" { //nolint:forbidigo // only tests import this package
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("reading WEIR_SEED: %v", err)
		}
	}
	t.Logf("WEIR_SEED=%d", seed)
	return seed
}

// lastID makes the counters of a test different from those of all others, also of other runs against one server.
var lastID atomic.Int64

func newID() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatInt(lastID.Add(1), 36)
}

// counter returns a fresh counter of a cost of 1.
func counter(limit algorithm.Limit) enforcer.Counter {
	return enforcer.Counter{Identity: enforcer.Identity{1}, ID: newID(), Limit: limit, Cost: 1}
}

// take asks for one entry and fails the test if it is not answered.
func take(t *testing.T, store enforcer.Store, entry enforcer.Entry) enforcer.Answer {
	t.Helper()
	return takeAll(t, store, entry)[0]
}

func takeAll(t *testing.T, store enforcer.Store, entries ...enforcer.Entry) []enforcer.Answer {
	t.Helper()
	answers := make([]enforcer.Answer, len(entries))
	if _, err := store.Take(t.Context(), entries, answers); err != nil {
		t.Fatal(err)
	}
	for i := range answers {
		if answers[i].Err != nil {
			t.Fatalf("entry %d: %v", i, answers[i].Err)
		}
	}
	return answers
}

// enforced is an entry of n callers under enforced limits; 0 peeks.
func enforced(n int64, counters ...enforcer.Counter) enforcer.Entry {
	return enforcer.Entry{Counters: counters, Enforced: len(counters), N: n}
}

// remaining peeks at what remains of a counter.
func remaining(t *testing.T, store enforcer.Store, c enforcer.Counter) int64 {
	t.Helper()
	return take(t, store, enforced(0, c)).Results[0].Remaining
}
