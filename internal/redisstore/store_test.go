package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// start is the start of a window of every length that tests use, in µs.
const start = 1_800_000_000_000_000

func counterOf(name string, a algorithm.Algorithm, requests int64, window time.Duration) enforcer.Counter {
	return enforcer.Counter{
		Identity: enforcer.Identity{1, 2, 3}, ID: name + a.String(), Cost: 1,
		Limit: algorithm.Limit{Algorithm: a, Requests: requests, Window: window.Microseconds()},
	}
}

func keyOf(s *Store, c enforcer.Counter) string { return string(appendCounter(nil, s.prefix, &c)) }

// take asks for n callers of one counter.
func take(t *testing.T, s *Store, c enforcer.Counter, n int64) enforcer.Answer {
	t.Helper()
	answers := make([]enforcer.Answer, 1)
	if _, err := s.Take(t.Context(), []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1, N: n}}, answers); err != nil {
		t.Fatal(err)
	}
	return answers[0]
}

var algorithms = []algorithm.Algorithm{
	algorithm.TokenBucket, algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog,
}

func TestB01CountersExpire(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	now := int64(start)
	s := w.store(func() int64 { return now })
	lives := func(c enforcer.Counter) {
		t.Helper()
		// The longest that anything weighs is two windows; the slack is a quarter, and one second.
		if ttl := w.admin.PTTL(t.Context(), keyOf(s, c)).Val(); ttl <= 0 || ttl > 2*time.Minute+31*time.Second {
			t.Errorf("%v lives for %v", c.Limit.Algorithm, ttl)
		}
	}
	for _, a := range algorithms {
		c := counterOf("ttl", a, 5, time.Minute)
		for _, step := range []struct{ at, hits, granted int64 }{{0, 1, 1}, {10, 4, 4}, {10, 1, 0}, {75, 1, 1}} {
			now = start + step.at*1e6
			want := step.granted
			if a == algorithm.SlidingWindowCounter && step.at == 75 {
				want = 1 // 5·45/60 = 3.75 of the window before weigh, so one more fits
			}
			if got := take(t, s, c, step.hits); got.Granted != want {
				t.Errorf("%v at %d s: %d granted, want %d", a, step.at, got.Granted, want)
			}
			lives(c)
		}
	}

	// Nine in this window, and no time to live.
	c := counterOf("eternal", algorithm.FixedWindow, 5, time.Minute)
	now = start + 30e6
	state := []byte{0x11}
	state = appendUint56(state, start/60e6)
	state = append(state, 0, 0, 0, 9)
	state = appendUint48(appendUint48(state, 0), 0)
	if err := w.admin.Set(t.Context(), keyOf(s, c), state, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := take(t, s, c, 1); got.Granted != 0 || got.Results[0].RetryAfter != 30e6 {
		t.Errorf("%+v, want a denial for 30 s", got)
	}
	lives(c)
	now = start + 60e6
	if got := take(t, s, c, 1); got.Granted != 1 {
		t.Errorf("in the next window: %+v", got)
	}
	lives(c)
}

func TestStatesThatLostTheirTimeToLiveGetOne(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	now := int64(start)
	s := w.store(func() int64 { return now })
	for _, a := range algorithms {
		now = start
		c := counterOf("persisted", a, 2, time.Minute)
		take(t, s, c, 2)
		if !w.admin.Persist(t.Context(), keyOf(s, c)).Val() {
			t.Fatalf("%v: no key", a)
		}
		now = start + 200e6 // long after all of it has aged out
		impossible := c
		impossible.Cost = 3
		take(t, s, impossible, 1)
		if ttl := w.admin.PTTL(t.Context(), keyOf(s, c)).Val(); ttl == -1 {
			t.Errorf("%v still lives for ever after a denial", a)
		}
		now = start
		take(t, s, c, 2)
		w.admin.Persist(t.Context(), keyOf(s, c))
		now = start + 200e6
		take(t, s, c, 1)
		if ttl := w.admin.PTTL(t.Context(), keyOf(s, c)).Val(); ttl <= 0 {
			t.Errorf("%v still lives for ever after a charge", a)
		}
	}
}

func TestB09DenialsAndPeeksWriteNothing(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	now := int64(start)
	s := w.store(func() int64 { return now })
	for _, a := range algorithms {
		c := counterOf("denied", a, 5, time.Hour)
		take(t, s, c, 4)
		dump := func() string {
			ctx := t.Context()
			return w.admin.Dump(ctx, keyOf(s, c)).Val() + w.admin.PExpireTime(ctx, keyOf(s, c)).Val().String()
		}
		before := dump()
		dear, unpayable := c, c
		dear.Cost, unpayable.Cost = 2, 6
		now += 1e6
		if got := take(t, s, dear, 1); got.Granted != 0 || !got.Results[0].Satisfiable {
			t.Errorf("%v: cost 2 of 1 left: %+v", a, got)
		}
		if got := take(t, s, unpayable, 1); got.Granted != 0 || got.Results[0].Satisfiable || got.Results[0].RetryAfter != algorithm.MaxWait {
			t.Errorf("%v: cost 6 of 5: %+v", a, got)
		}
		take(t, s, c, 0)
		if after := dump(); after != before {
			t.Errorf("%v: a denial or a peek wrote", a)
		}
		now = start
	}
}

func TestB13TheStoresClockCounts(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	c := counterOf("clock", algorithm.TokenBucket, 2, time.Hour)
	c.Limit.Burst = 4
	a, b := w.store(nil), w.store(nil)
	var granted int64
	for _, s := range []*Store{a, a, a, a, a, b, a, a, a, a, a} {
		granted += take(t, s, c, 1).Granted
	}
	if granted != 4 {
		t.Errorf("%d granted, want 4", granted)
	}
	before := w.admin.Time(t.Context()).Val()
	now, err := a.Take(t.Context(), []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1}}, make([]enforcer.Answer, 1))
	if err != nil {
		t.Fatal(err)
	}
	after := w.admin.Time(t.Context()).Val()
	if now < before.UnixMicro() || now > after.UnixMicro() {
		t.Errorf("judged at %d, but the server's clock went from %d to %d", now, before.UnixMicro(), after.UnixMicro())
	}
}

func TestB17ExactlyTheLimitIsAdmitted(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	fixedTime := func() int64 { return start }
	other := connect(t, w.server.Addr, "weir-shop")
	stores := []*Store{
		w.store(fixedTime),
		NewStore(StoreOptions{Client: other, Table: testTable, Namespace: "shop", Time: fixedTime}),
	}
	const rounds, callers = 100, 50
	for _, load := range []struct{ limit, hits int64 }{{1, 50}, {100, 500}} {
		for _, a := range algorithms {
			for round := range rounds {
				c := counterOf(fmt.Sprintf("atomic-%d-%d", load.limit, round), a, load.limit, time.Hour)
				entries := make([]enforcer.Entry, load.hits/callers)
				for i := range entries {
					entries[i] = enforcer.Entry{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1}
				}
				var granted atomic.Int64
				var hits sync.WaitGroup
				for i := range callers {
					hits.Go(func() {
						answers := make([]enforcer.Answer, len(entries))
						if _, err := stores[i%2].Take(t.Context(), entries, answers); err != nil {
							t.Error(err)
						}
						for _, answer := range answers {
							if answer.Err != nil {
								t.Error(answer.Err)
							}
							granted.Add(answer.Granted)
						}
					})
				}
				hits.Wait()
				if granted.Load() != load.limit {
					t.Fatalf("%v, round %d: %d of %d granted", a, round, granted.Load(), load.limit)
				}
			}
		}
	}
}

func TestTakeIsOneRoundTrip(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	p := newProxy(t, w.server.Addr)
	client := connect(t, p.addr, "weir-shop")
	s := NewStore(StoreOptions{Client: client, Table: testTable, Namespace: "shop"})
	var entries []enforcer.Entry
	for i := range 64 {
		c := counterOf("trips", algorithms[i%4], 10, time.Hour)
		c.Identity[0] = byte(i)
		entries = append(entries, enforcer.Entry{Counters: []enforcer.Counter{c, c}, Enforced: 1, Shadow: []int{2}, N: 3})
	}
	answers := make([]enforcer.Answer, len(entries))
	for range 2 {
		if _, err := s.Take(t.Context(), entries, answers); err != nil {
			t.Fatal(err)
		}
	}
	p.take()
	for range 10 {
		if _, err := s.Take(t.Context(), entries, answers); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(p.take(), " "); got != strings.TrimSpace(strings.Repeat("evalsha ", 10)) {
		t.Errorf("10 takes sent %q", got)
	}
}

func TestB25LostScriptsAndRepliesChargeOnce(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	p := newProxy(t, w.server.Addr)
	client := connect(t, p.addr, "weir-shop")
	s := NewStore(StoreOptions{Client: client, Table: testTable, Namespace: "shop"})
	c := counterOf("restart", algorithm.FixedWindow, 10, 24*time.Hour)
	if got := take(t, s, c, 1); got.Granted != 1 || got.Results[0].Remaining != 9 {
		t.Fatalf("hit 1: %+v", got)
	}
	w.admin.ScriptFlush(t.Context())
	if got := take(t, s, c, 1); got.Granted != 1 || got.Results[0].Remaining != 8 {
		t.Fatalf("hit 2, after SCRIPT FLUSH: %+v", got)
	}
	p.take()
	p.loseReplyTo("evalsha")
	_, err := s.Take(t.Context(), []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1}}, make([]enforcer.Answer, 1))
	if reasonOf(err) != enforcer.ReasonReset {
		t.Errorf("hit 3, whose reply is lost: %v, want a reset", err)
	}
	sent := 0
	for _, command := range p.take() {
		if strings.HasPrefix(command, "eval") {
			sent++
		}
	}
	if sent != 1 {
		t.Errorf("hit 3 was sent %d times", sent)
	}
	if left := take(t, s, c, 0).Results[0].Remaining; left != 7 {
		t.Errorf("%d left, want 7", left)
	}
}

func TestRefundAndReset(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	s := w.store(nil)
	for _, a := range algorithms {
		c := counterOf("refund", a, 10, 24*time.Hour)
		got := take(t, s, c, 4)
		if got.Granted != 4 {
			t.Fatalf("%v: %+v", a, got)
		}
		refund := []enforcer.Refund{{Counters: []enforcer.Counter{c}, N: 3, Taken: got.Results[0].At}}
		if err := s.Refund(t.Context(), refund); err != nil {
			t.Fatal(err)
		}
		if left := take(t, s, c, 0).Results[0].Remaining; left != 9 {
			t.Errorf("%v: %d left after the refund, want 9", a, left)
		}
		if err := s.Reset(t.Context(), []enforcer.Counter{c}); err != nil {
			t.Fatal(err)
		}
		if left := take(t, s, c, 0).Results[0].Remaining; left != 10 {
			t.Errorf("%v: %d left after the reset, want 10", a, left)
		}
	}
	if err := s.Refund(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := s.Reset(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestUnknownStatesFailTheirEntriesOnly(t *testing.T) {
	foreign := map[string]func(ctx context.Context, client redis.UniversalClient, key string) error{
		"a newer format": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.Set(ctx, key, "\x21"+strings.Repeat("x", 23), 0).Err()
		},
		"another length": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.Set(ctx, key, "\x10", 0).Err()
		},
		"no state": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.Set(ctx, key, "", 0).Err()
		},
		"a hash": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.HSet(ctx, key, "f", 1).Err()
		},
		"another list": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.RPush(ctx, key, "f").Err()
		},
		"another's set": func(ctx context.Context, client redis.UniversalClient, key string) error {
			return client.SAdd(ctx, key, "f").Err()
		},
	}
	w := newWorld(t, env.RedisOptions{})
	s := w.store(nil)
	for name, write := range foreign {
		for _, a := range algorithms {
			t.Run(fmt.Sprint(name, " as ", a), func(t *testing.T) {
				ctx := t.Context()
				w.admin.FlushAll(ctx)
				bad, good := counterOf("bad", a, 10, time.Hour), counterOf("good", a, 10, time.Hour)
				if err := write(ctx, w.admin, keyOf(s, bad)); err != nil {
					t.Fatal(err)
				}
				before := w.admin.Dump(ctx, keyOf(s, bad)).Val()
				both, shadowed := []enforcer.Counter{good, bad}, []enforcer.Counter{good, bad}
				answers := make([]enforcer.Answer, 4)
				if _, err := s.Take(ctx, []enforcer.Entry{
					{Counters: []enforcer.Counter{bad}, Enforced: 1, N: 1},
					{Counters: both, Enforced: 2, N: 1},
					{Counters: shadowed, Enforced: 1, Shadow: []int{2}, N: 2},
					{Counters: []enforcer.Counter{good}, Enforced: 1, N: 1},
				}, answers); err != nil {
					t.Fatal(err)
				}
				for i, fails := range []bool{true, true, false, false} {
					if (answers[i].Err != nil) != fails || fails && reasonOf(answers[i].Err) != enforcer.ReasonState {
						t.Errorf("entry %d: %v", i, answers[i].Err)
					}
				}
				if answers[2].Granted != 2 || answers[2].Shadow[0] != 0 || answers[3].Results[0].Remaining != 7 {
					t.Errorf("%+v", answers[2:])
				}
				if diff := cmp.Diff(before, w.admin.Dump(ctx, keyOf(s, bad)).Val()); diff != "" {
					t.Error("the foreign key was written")
				}
				refund := []enforcer.Refund{{Counters: both, N: 1, Taken: answers[3].Results[0].At}}
				if err := s.Refund(ctx, refund); reasonOf(err) != enforcer.ReasonState {
					t.Errorf("refund: %v", err)
				}
			})
		}
	}
}

func TestTakeRefusesLimitsOutOfBounds(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	s := w.store(nil)
	for name, limit := range map[string]algorithm.Limit{
		"no window":         {Requests: 1},
		"too long a window": {Requests: 1, Window: maxWindow + 1},
		"too many requests": {Requests: maxRequests + 1, Window: 1e6},
		"negative":          {Requests: -1, Window: 1e6},
		"unknown":           {Algorithm: 4, Requests: 1, Window: 1e6},
		"too long a log":    {Algorithm: algorithm.SlidingWindowLog, Requests: algorithm.MaxLogEntries + 1, Window: 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			entry := enforcer.Entry{Counters: []enforcer.Counter{{ID: "x", Limit: limit, Cost: 1}}, Enforced: 1, N: 1}
			if _, err := s.Take(t.Context(), []enforcer.Entry{entry}, make([]enforcer.Answer, 1)); err == nil {
				t.Error("taken")
			}
		})
	}
	answers := make([]enforcer.Answer, 1)
	if _, err := s.Take(t.Context(), []enforcer.Entry{{N: 7}}, answers); err != nil || answers[0].Granted != 7 {
		t.Errorf("an entry without counters: %+v, %v", answers, err)
	}
}
