package storetest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// equalCallers: n callers of one entry hear what they would have heard one by one.
func (s *suite) equalCallers(t *testing.T) {
	seed := startSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newClock()
	store := s.newStore(t, c.time)
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		limits := []algorithm.Limit{
			{Algorithm: algorithms[random.IntN(4)], Requests: 1 + random.Int64N(40), Window: minute},
			{Algorithm: algorithms[random.IntN(4)], Requests: 1 + random.Int64N(40), Window: hour},
		}
		together := []enforcer.Counter{counter(limits[0]), counter(limits[1])}
		apart := []enforcer.Counter{counter(limits[0]), counter(limits[1])}
		for _, counters := range [][]enforcer.Counter{together, apart} {
			for i := range counters {
				counters[i].Cost = 1 + int64(i)
			}
		}
		for range 3 {
			c.now.Add(random.Int64N(minute))
			n := 1 + random.Int64N(12)
			batch := take(t, store, enforced(n, together...))
			singles := takeAll(t, store, slices.Repeat([]enforcer.Entry{enforced(1, apart...)}, int(n))...)
			for caller := range n {
				alone := singles[caller]
				if granted := alone.Granted == 1; granted != (caller < batch.Granted) {
					t.Fatalf("caller %d of %d: granted alone is %t, %d granted together", caller, n, granted, batch.Granted)
				}
				for i := range together {
					want := batch.Results[i].Remaining + max(0, batch.Granted-1-caller)*together[i].Cost
					if got := alone.Results[i].Remaining; got != want {
						t.Fatalf("caller %d of %d, counter %d: %d remain alone, %d together", caller, n, i, got, want)
					}
					if caller < batch.Granted-1 {
						continue
					}
					if diff := cmp.Diff(batch.Results[i], alone.Results[i]); diff != "" {
						t.Fatalf("caller %d of %d, counter %d (-together +alone):\n%s", caller, n, i, diff)
					}
				}
			}
		}
	}
}

// batches are the rules of a decision over several counters, in small numbers.
func (s *suite) batches(t *testing.T) {
	limit := func(requests int64) algorithm.Limit {
		return algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: requests, Window: day}
	}
	// Counters by letter: each has what the number says, and a letter in upper case costs 2.
	counters := map[byte]int64{'a': 1, 'b': 1, 'c': 1, 'f': 5, 'F': 5, 't': 3, 'T': 3, 'z': 0}
	type want struct {
		granted   int64
		shadow    []int64
		remaining []int64
	}
	cases := map[string]struct {
		entries []string // "n enforced shadow shadow…"
		want    []want
	}{
		"an entry that is refused leaves what it wanted to the next": {
			entries: []string{"1 a", "1 ab", "1 b"},
			want: []want{
				{granted: 1, remaining: []int64{0}},
				{granted: 0, remaining: []int64{0, 1}},
				{granted: 1, remaining: []int64{0}},
			},
		},
		"as many are granted as the scarcest counter holds": {
			entries: []string{"9 ft", "9 f"},
			want: []want{
				{granted: 3, remaining: []int64{2, 0}},
				{granted: 2, remaining: []int64{0}},
			},
		},
		"counters of one entry have costs of their own": {
			entries: []string{"9 Ft"},
			want:    []want{{granted: 2, remaining: []int64{1, 1}}},
		},
		"a shadow rule charges what it would have granted and denies nobody": {
			entries: []string{"4 f t", "9 f t"},
			want: []want{
				{granted: 4, shadow: []int64{3}, remaining: []int64{1, 0}},
				{granted: 1, shadow: []int64{0}, remaining: []int64{0, 0}},
			},
		},
		"a shadow rule of several limits is all or nothing, too": {
			entries: []string{"2 f at"},
			want:    []want{{granted: 2, shadow: []int64{1}, remaining: []int64{3, 0, 2}}},
		},
		"shadow rules do not see each other": {
			entries: []string{"2 f a z t"},
			want:    []want{{granted: 2, shadow: []int64{1, 0, 2}, remaining: []int64{3, 0, 0, 1}}},
		},
		"who is denied charges no shadow rule": {
			entries: []string{"3 a f"},
			want:    []want{{granted: 1, shadow: []int64{1}, remaining: []int64{0, 4}}},
		},
		"shadow rules alone grant everything": {
			entries: []string{"7  t"},
			want:    []want{{granted: 7, shadow: []int64{3}, remaining: []int64{0}}},
		},
		"a limit of zero refuses": {
			entries: []string{"1 fz", "1 f"},
			want: []want{
				{granted: 0, remaining: []int64{5, 0}},
				{granted: 1, remaining: []int64{4}},
			},
		},
		"a peek changes nothing and sees what came before it": {
			entries: []string{"0 f t", "2 f t", "0 f t", "9 f"},
			want: []want{
				{granted: 0, shadow: []int64{0}, remaining: []int64{5, 3}},
				{granted: 2, shadow: []int64{2}, remaining: []int64{3, 1}},
				{granted: 0, shadow: []int64{0}, remaining: []int64{3, 1}},
				{granted: 3, remaining: []int64{0}},
			},
		},
	}
	c := newClock()
	store := s.newStore(t, c.time)
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			run := newID()
			entries := make([]enforcer.Entry, len(test.entries))
			for i, text := range test.entries {
				entries[i] = parseEntry(text, func(letter byte) enforcer.Counter {
					c := counter(limit(counters[letter]))
					c.ID = run + string(letter|0x20)
					if letter < 'a' {
						c.Cost = 2
					}
					return c
				})
			}
			for i, a := range takeAll(t, store, entries...) {
				got := want{granted: a.Granted, shadow: a.Shadow}
				for _, r := range a.Results {
					got.remaining = append(got.remaining, r.Remaining)
				}
				if got.granted != test.want[i].granted || !slices.Equal(got.shadow, test.want[i].shadow) ||
					!slices.Equal(got.remaining, test.want[i].remaining) {
					t.Errorf("entry %q: got %+v, want %+v", test.entries[i], got, test.want[i])
				}
			}
		})
	}
}

// parseEntry reads "callers enforced shadow shadow…", rules being written as letters of counters.
func parseEntry(text string, named func(letter byte) enforcer.Counter) enforcer.Entry {
	var e enforcer.Entry
	for i, word := range splitWords(text) {
		if i == 0 {
			e.N = int64(word[0] - '0')
			continue
		}
		for _, letter := range []byte(word) {
			e.Counters = append(e.Counters, named(letter))
		}
		if i == 1 {
			e.Enforced = len(e.Counters)
		} else {
			e.Shadow = append(e.Shadow, len(e.Counters))
		}
	}
	return e
}

// splitWords splits at single spaces, so that a word may be empty.
func splitWords(text string) []string {
	words := []string{""}
	for _, letter := range text {
		if letter == ' ' {
			words = append(words, "")
		} else {
			words[len(words)-1] += string(letter)
		}
	}
	return words
}

// refunds give back what still weighs, once.
func (s *suite) refunds(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	cases := map[string]struct {
		limit  algorithm.Limit
		charge int64 // at 0
		later  int64
		n      int64 // refunded then
		want   int64 // remaining then
	}{
		"a bucket at once":                       {limit: algorithm.Limit{Requests: 6, Window: minute}, charge: 6, n: 2, want: 2},
		"a bucket that has earned it meanwhile":  {limit: algorithm.Limit{Requests: 6, Window: minute}, charge: 6, later: 20 * second, n: 2, want: 2},
		"a bucket that has earned half of it":    {limit: algorithm.Limit{Requests: 6, Window: minute}, charge: 6, later: 10 * second, n: 2, want: 2},
		"a window that is still the same":        {limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 6, Window: minute}, charge: 6, later: 59 * second, n: 2, want: 2},
		"a window that has ended":                {limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 6, Window: minute}, charge: 6, later: minute, n: 2, want: 6},
		"a sliding window that is still counted": {limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 6, Window: minute}, charge: 6, later: 90 * second, n: 2, want: 4},
		"a log before it has aged out":           {limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 6, Window: minute}, charge: 6, later: 59 * second, n: 2, want: 2},
		"a log after it has aged out":            {limit: algorithm.Limit{Algorithm: algorithm.SlidingWindowLog, Requests: 6, Window: minute}, charge: 6, later: minute, n: 2, want: 6},
		"more than was charged":                  {limit: algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: 6, Window: minute}, charge: 3, n: 5, want: 6},
		"what was never charged":                 {limit: algorithm.Limit{Requests: 6, Window: minute}, n: 5, want: 6},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c.now.Store(max(noon, (c.time()/day+1)*day))
			one := counter(test.limit)
			one.Cost = 1
			taken := c.time()
			if test.charge > 0 {
				taken = take(t, store, enforced(test.charge, one)).Results[0].At
			}
			c.now.Add(test.later)
			if err := store.Refund(t.Context(), []enforcer.Refund{{Counters: []enforcer.Counter{one}, N: test.n, Taken: taken}}); err != nil {
				t.Fatal(err)
			}
			if got := remaining(t, store, one); got != test.want {
				t.Errorf("%d remain, want %d", got, test.want)
			}
		})
	}
}

// retries: the wait that a denial tells is exact.
func (s *suite) retries(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			one := counter(algorithm.Limit{Algorithm: a, Requests: 7, Window: minute})
			for range 20 {
				c.now.Add(1_234_567)
				denied := take(t, store, enforced(9, one)).Results[0]
				if denied.Allowed || !denied.Satisfiable || denied.RetryAfter <= 0 {
					t.Fatalf("after nine takes of seven: %+v", denied)
				}
				c.now.Add(denied.RetryAfter - 1)
				if take(t, store, enforced(1, one)).Granted != 0 {
					t.Fatalf("admitted 1 µs before the wait of %d is over", denied.RetryAfter)
				}
				c.now.Add(1)
				if take(t, store, enforced(1, one)).Granted != 1 {
					t.Fatalf("denied again after the wait of %d", denied.RetryAfter)
				}
			}
		})
	}
}

// changedLimit: requests and burst change in the middle of a window, and what was charged still counts.
func (s *suite) changedLimit(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			one := counter(algorithm.Limit{Algorithm: a, Requests: 10, Window: hour})
			if got := take(t, store, enforced(50, one)).Granted; got != 10 {
				t.Fatalf("%d of 50 granted, want 10", got)
			}
			one.Limit.Requests = 20
			if got := take(t, store, enforced(15, one)).Granted; got != 10 {
				t.Errorf("%d of 15 granted after a raise to 20, want 10", got)
			}
			one.Limit.Requests = 5
			if got := take(t, store, enforced(1, one)); got.Granted != 0 || got.Results[0].Remaining != 0 {
				t.Errorf("after a cut to 5: %+v", got)
			}
			one.Limit.Requests = 21
			if got := take(t, store, enforced(9, one)).Granted; got != 1 {
				t.Errorf("%d of 9 granted after a raise to 21, want 1", got)
			}
		})
	}
}

func (s *suite) reset(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	for _, a := range algorithms {
		one := counter(algorithm.Limit{Algorithm: a, Requests: 3, Window: hour})
		other := counter(one.Limit)
		never := counter(one.Limit)
		if a := take(t, store, enforced(3, one, other)); a.Granted != 3 {
			t.Fatalf("%d of 3 granted", a.Granted)
		}
		if err := store.Reset(t.Context(), []enforcer.Counter{one, never}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct {
			counter   enforcer.Counter
			remaining int64
		}{{one, 3}, {other, 0}, {never, 3}} {
			if got := remaining(t, store, want.counter); got != want.remaining {
				t.Errorf("%v: %d remain, want %d", a, got, want.remaining)
			}
		}
	}
}

// identities: what a store makes of an identity, a name or a number, never makes one of two, and never breaks a name
// in which braces have a meaning.
func (s *suite) identities(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	id := newID()
	var counters []enforcer.Counter
	for _, text := range []string{
		"", "acme", "a}b", "{x}", "{", "}", "{}", "a:b", "a", "%*\\'\"", "\x00\n", "\xff\xfe", "{{{{{{{{{{{{{{{{", "}}}}}}}}}}}}}}}}",
	} {
		var identity enforcer.Identity
		copy(identity[:], text)
		for i, suffix := range []string{"", "x"} {
			counters = append(counters, enforcer.Counter{
				Identity: identity,
				ID:       id + suffix,
				Limit:    algorithm.Limit{Algorithm: algorithms[i], Requests: 2, Window: hour},
				Cost:     1,
			})
		}
	}
	counters = slices.CompactFunc(counters, func(a, b enforcer.Counter) bool { return a.Identity == b.Identity && a.ID == b.ID })
	var entries []enforcer.Entry
	for i := 0; i < len(counters); i += 2 {
		entries = append(entries, enforced(3, counters[i], counters[i+1]))
	}
	for i, a := range takeAll(t, store, entries...) {
		if a.Granted != 2 {
			t.Errorf("%q: %d of 3 granted, want 2", entries[i].Counters[0].Identity, a.Granted)
		}
	}
	if err := store.Reset(t.Context(), counters[:2]); err != nil {
		t.Fatal(err)
	}
	for i, c := range counters {
		want := int64(0)
		if i < 2 {
			want = 2
		}
		if got := remaining(t, store, c); got != want {
			t.Errorf("%q, limit %d: %d remain after a reset of the first identity, want %d", c.Identity, i%2, got, want)
		}
	}
}

func (s *suite) nothing(t *testing.T) {
	store := s.newStore(t, newClock().time)
	if _, err := store.Take(t.Context(), nil, nil); err != nil {
		t.Errorf("taking nothing: %v", err)
	}
	if err := store.Refund(t.Context(), nil); err != nil {
		t.Errorf("refunding nothing: %v", err)
	}
	if err := store.Reset(t.Context(), nil); err != nil {
		t.Errorf("resetting nothing: %v", err)
	}
	if a := take(t, store, enforcer.Entry{N: 3}); a.Granted != 3 {
		t.Errorf("%d of 3 granted where nothing limits", a.Granted)
	}
}

// ownClock: without an injected time, a store tells a time that goes on, and waits are in it.
func (s *suite) ownClock(t *testing.T) {
	store := s.newStore(t, nil)
	for _, a := range algorithms {
		one := counter(algorithm.Limit{Algorithm: a, Requests: 1, Window: 200 * millisecond})
		entries, answers := []enforcer.Entry{enforced(1, one)}, make([]enforcer.Answer, 1)
		var denied, admitted, free int64
		deadline := time.Now().Add(20 * time.Second)
		for admitted == 0 {
			now, err := store.Take(t.Context(), entries, answers)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case answers[0].Granted == 0 && denied == 0:
				denied = now
				free = now + answers[0].Results[0].RetryAfter
			case answers[0].Granted == 1 && denied != 0:
				admitted = now
			case answers[0].Granted == 1 && now < free:
				t.Fatalf("%v: admitted twice within %d µs", a, now-denied)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: denied at %d, and never admitted again", a, denied)
			}
		}
		if admitted < free {
			t.Errorf("%v: told at %d to wait until %d, and admitted at %d", a, denied, free, admitted)
		}
	}
}
