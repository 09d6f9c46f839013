package memstore_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
)

const (
	second = 1_000_000
	minute = 60 * second
)

func identity(n int) (id enforcer.Identity) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	id[15] = byte(n)
	return id
}

func counter(id string, key int, a algorithm.Algorithm, requests int64) enforcer.Counter {
	return enforcer.Counter{
		Identity: identity(key), ID: id, Cost: 1,
		Limit: algorithm.Limit{Algorithm: a, Requests: requests, Window: minute},
	}
}

func enforced(n int64, counters ...enforcer.Counter) enforcer.Entry {
	return enforcer.Entry{Counters: counters, Enforced: len(counters), N: n}
}

// clock is a hand-set time in µs.
type clock struct{ now atomic.Int64 }

func (c *clock) read() int64 { return c.now.Load() }

func take(t *testing.T, s *memstore.Store, entries ...enforcer.Entry) []enforcer.Answer {
	t.Helper()
	answers := make([]enforcer.Answer, len(entries))
	if _, err := s.Take(context.Background(), entries, answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

func granted(answers []enforcer.Answer) (g []int64) {
	for _, a := range answers {
		g = append(g, a.Granted)
	}
	return g
}

func TestTake(t *testing.T) {
	x, y := counter("x", 1, algorithm.FixedWindow, 3), counter("y", 2, algorithm.TokenBucket, 5)
	costly := x
	costly.Cost = 2
	tests := map[string]struct {
		entries []enforcer.Entry
		want    []int64
	}{
		"callers are granted in order until nothing is left": {
			[]enforcer.Entry{enforced(2, x), enforced(2, x)}, []int64{2, 1},
		},
		"several counters are charged all or none": {
			[]enforcer.Entry{enforced(3, x), enforced(1, x, y), enforced(5, y)}, []int64{3, 0, 5},
		},
		"an entry sees what the one before it left": {
			[]enforcer.Entry{enforced(1, x), enforced(3, x, y), enforced(9, y)}, []int64{1, 2, 3},
		},
		"a cost is charged whole": {
			[]enforcer.Entry{enforced(3, costly), enforced(3, x)}, []int64{1, 1},
		},
		"a peek charges nothing": {
			[]enforcer.Entry{enforced(0, x), enforced(9, x)}, []int64{0, 3},
		},
		"without enforced counters all are granted": {
			[]enforcer.Entry{{Counters: []enforcer.Counter{x}, Shadow: []int{1}, N: 5}}, []int64{5},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := memstore.New(memstore.Options{Clock: new(clock).read})
			if diff := cmp.Diff(tc.want, granted(take(t, s, tc.entries...))); diff != "" {
				t.Errorf("granted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShadowChargesItsOwnCountersOnly(t *testing.T) {
	s := memstore.New(memstore.Options{Clock: new(clock).read})
	x, low, high := counter("x", 1, algorithm.FixedWindow, 5), counter("low", 1, algorithm.FixedWindow, 2), counter("high", 1, algorithm.FixedWindow, 100)
	entry := enforcer.Entry{Counters: []enforcer.Counter{x, low, high}, Enforced: 1, Shadow: []int{2, 3}, N: 4}
	answers := take(t, s, entry, entry)
	if diff := cmp.Diff([]int64{4, 1}, granted(answers)); diff != "" {
		t.Errorf("granted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]int64{{2, 4}, {0, 1}}, [][]int64{answers[0].Shadow, answers[1].Shadow}); diff != "" {
		t.Errorf("charged to the shadow rules (-want +got):\n%s", diff)
	}
	results := answers[1].Results
	if got := []int64{results[0].Remaining, results[1].Remaining, results[2].Remaining}; !cmp.Equal(got, []int64{0, 0, 95}) {
		t.Errorf("remaining %v, want 0, 0 and 95", got)
	}
}

func TestResultsSayWhatOneMoreCallerWouldMeet(t *testing.T) {
	var c clock
	c.now.Store(10 * second)
	s := memstore.New(memstore.Options{Clock: c.read})
	x := counter("x", 1, algorithm.FixedWindow, 1)
	got := take(t, s, enforced(1, x), enforced(0, x))[1].Results[0]
	want := algorithm.Result{Satisfiable: true, RetryAfter: 50 * second, ResetAfter: 50 * second, At: 10 * second}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestRefundAndReset(t *testing.T) {
	s := memstore.New(memstore.Options{Clock: new(clock).read})
	x := counter("x", 1, algorithm.FixedWindow, 3)
	take(t, s, enforced(3, x))
	if err := s.Refund(context.Background(), []enforcer.Refund{{Counters: []enforcer.Counter{x}, N: 2}}); err != nil {
		t.Fatal(err)
	}
	if got := take(t, s, enforced(9, x))[0].Granted; got != 2 {
		t.Errorf("granted %d after a refund of 2, want 2", got)
	}
	if err := s.Reset(context.Background(), []enforcer.Counter{x}); err != nil {
		t.Fatal(err)
	}
	if got := take(t, s, enforced(9, x))[0].Granted; got != 3 {
		t.Errorf("granted %d after a reset, want 3", got)
	}
}

func TestNote(t *testing.T) {
	tests := map[string]struct{ charged, left, want int64 }{
		"what was admitted by the store is charged":         {3, 100, 7},
		"it may exceed the share":                           {30, 100, 0},
		"no more is left than the store says":               {1, 4, 4},
		"what is left of nothing is nothing":                {0, 0, 0},
		"a store that says more than we have gives nothing": {2, 9, 8},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, a := range []algorithm.Algorithm{algorithm.TokenBucket, algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog} {
				s := memstore.New(memstore.Options{Clock: new(clock).read})
				x := counter("x", 1, a, 100)
				share := enforcer.Share{Limit: x.Limit, Requests: 10, N: 10}
				share.Limit.Requests = 10
				s.Note(&x, &enforcer.Note{
					Share: &share, N: 10, Admitted: tc.charged, Part: tc.left,
					Result: algorithm.Result{Remaining: 50},
				})
				var answer enforcer.Answer
				e := enforced(99, x)
				s.TakeShare(0, &e, []enforcer.Share{share}, &answer)
				if answer.Granted != tc.want {
					t.Errorf("%v: granted %d, want %d", a, answer.Granted, tc.want)
				}
			}
		})
	}
}

func TestNumbersMayChange(t *testing.T) {
	var c clock
	s := memstore.New(memstore.Options{Clock: c.read})
	x := counter("x", 1, algorithm.FixedWindow, 3)
	take(t, s, enforced(3, x))
	x.Limit.Requests = 5
	if got := take(t, s, enforced(9, x))[0].Granted; got != 2 {
		t.Errorf("raised from 3 to 5: granted %d more, want 2", got)
	}

	// A share of 1 per 3 minutes with its bucket empty becomes one of 1 per 5 minutes: still empty, and what it has
	// earned stays.
	y := counter("y", 1, algorithm.TokenBucket, 1)
	y.Limit.Window = 3 * minute
	take(t, s, enforced(1, y))
	c.now.Store(90 * second) // half a token
	y.Limit.Window = 5 * minute
	answer := take(t, s, enforced(1, y))[0]
	if answer.Granted != 0 || answer.Results[0].RetryAfter != 150*second {
		t.Errorf("granted %d, retry after %d µs, want 0 and half of 5 minutes", answer.Granted, answer.Results[0].RetryAfter)
	}
}

// However many identities come, the memory is bounded, and one that is over its limit stays so.
func TestBounded(t *testing.T) {
	const maxKeys = 64 * 16
	var c clock
	s := memstore.New(memstore.Options{MaxKeys: maxKeys, Clock: c.read})
	over := counter("x", 1, algorithm.FixedWindow, 2)
	take(t, s, enforced(2, over))
	for i := range 20 * maxKeys {
		take(t, s, enforced(1, counter("x", 1000+i, algorithm.FixedWindow, 2)))
	}
	if got := s.Len(); got > maxKeys {
		t.Errorf("%d counters, want at most %d", got, maxKeys)
	}
	if got := take(t, s, enforced(1, over))[0].Granted; got != 0 {
		t.Error("an identity over its limit was forgotten")
	}
	if got := s.Crowded(); got != 0 {
		t.Errorf("%d requests shared a counter although others could go", got)
	}
}

// When every counter denies, new identities share one budget instead of finding a fresh one each.
func TestAFloodThatIsAllOverItsLimitFindsNoFreshBudget(t *testing.T) {
	const maxKeys = 64
	var c clock
	s := memstore.New(memstore.Options{MaxKeys: maxKeys, Clock: c.read})
	admitted := int64(0)
	for i := range 100 * maxKeys {
		admitted += take(t, s, enforced(9, counter("x", i, algorithm.FixedWindow, 2)))[0].Granted
	}
	// Each shard has room for one identity, and one counter for all the others.
	if want := int64(2*maxKeys + 2*64); admitted != want {
		t.Errorf("admitted %d, want %d", admitted, want)
	}
	if s.Crowded() == 0 {
		t.Error("nothing says that identities shared a counter")
	}
	c.now.Store(minute) // all are full again
	if got := take(t, s, enforced(9, counter("x", 99_999, algorithm.FixedWindow, 2)))[0].Granted; got != 2 {
		t.Errorf("granted %d in the next window, want 2", got)
	}
}

// A log holds memory for each time, so it counts as more than one counter.
func TestLogsWeighMore(t *testing.T) {
	const maxKeys = 64 * 20
	var c clock
	s := memstore.New(memstore.Options{MaxKeys: maxKeys, Clock: c.read})
	for i := range 64 {
		for range 160 { // 160 entries, 21 counters' worth: more than a shard's bound of 20
			c.now.Add(1)
			take(t, s, enforced(1, counter("x", i, algorithm.SlidingWindowLog, 1000)))
		}
	}
	if got := s.Len(); got != 64 {
		t.Fatalf("%d logs, want 64", got)
	}
	take(t, s, enforced(1, counter("x", 64, algorithm.SlidingWindowLog, 1000)))
	if got := s.Len(); got != 64 {
		t.Errorf("%d logs after one more, want one of them to have made room", got)
	}
}

// Two counters of one new identity must not push each other out.
func TestATakeKeepsItsOwnCounters(t *testing.T) {
	s := memstore.New(memstore.Options{MaxKeys: 64, Clock: new(clock).read}) // one counter a shard
	x, y := counter("x", 1, algorithm.FixedWindow, 2), counter("y", 1, algorithm.FixedWindow, 2)
	total := int64(0)
	for range 5 {
		total += take(t, s, enforced(1, x, y))[0].Granted
	}
	if total != 2 {
		t.Errorf("admitted %d, want 2", total)
	}
}

func TestExactUnderConcurrency(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range 20 {
		s := memstore.New(memstore.Options{})
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		x, y := counter("x", rng.IntN(1000), algorithm.FixedWindow, 100), counter("y", rng.IntN(1000), algorithm.FixedWindow, 1000)
		x.Limit.Window, y.Limit.Window = 24*3600*second, 24*3600*second
		var admitted atomic.Int64
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() {
				entry := enforced(1, x, y)
				if i%2 == 0 {
					entry = enforced(1, y, x)
				}
				answers := make([]enforcer.Answer, 1)
				for range 10 {
					if _, err := s.Take(context.Background(), []enforcer.Entry{entry}, answers); err != nil {
						t.Error(err)
					}
					admitted.Add(answers[0].Granted)
				}
			})
		}
		group.Wait()
		if got := admitted.Load(); got != 100 {
			t.Fatalf("round %d: admitted %d, want 100", round, got)
		}
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	s := memstore.New(memstore.Options{Clock: new(clock).read})
	entries := []enforcer.Entry{enforced(1, counter("x", 1, algorithm.TokenBucket, 10), counter("y", 1, algorithm.FixedWindow, 10))}
	answers := make([]enforcer.Answer, 1)
	if allocs := testing.AllocsPerRun(100, func() {
		if _, err := s.Take(context.Background(), entries, answers); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%g allocations, want 0", allocs)
	}
}

func BenchmarkTake(b *testing.B) {
	s := memstore.New(memstore.Options{})
	var entries []enforcer.Entry
	for i := range 10_000 {
		entries = append(entries, enforced(1, counter("x", i, algorithm.TokenBucket, 1000)))
	}
	answers := make([]enforcer.Answer, 1)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 1) % len(entries)
		_, _ = s.Take(context.Background(), entries[i:i+1], answers)
	}
}
