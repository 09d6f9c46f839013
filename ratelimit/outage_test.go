package ratelimit_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/test/env"
)

// worstDecision is how long a decision may take while the store is away. Tests assert ten times as much, for machines
// that do other things too.
const worstDecision = 25 * time.Millisecond

// load sends requests from several goroutines to several replicas until it is stopped, and remembers what came.
type load struct {
	window time.Duration
	stop   chan struct{}
	group  sync.WaitGroup

	mu       sync.Mutex
	admitted map[int64]int // by the end of the window, in windows since 1970
	sources  map[string]int
	longest  time.Duration
}

func startLoad(t *testing.T, limiters []*ratelimit.Limiter, window time.Duration, r ratelimit.Request) *load {
	t.Helper()
	l := &load{window: window, stop: make(chan struct{}), admitted: make(map[int64]int), sources: make(map[string]int)}
	for _, limiter := range limiters {
		for range 4 {
			l.group.Go(func() {
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-l.stop:
						return
					case <-tick.C:
					}
					start := time.Now()
					d := limiter.Decide(t.Context(), r)
					l.record(d, start, time.Now())
				}
			})
		}
	}
	return l
}

func (l *load) record(d ratelimit.Decision, start, end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, end.Sub(start))
	l.sources[d.Source]++
	if d.Allowed {
		// The decision says when its window ends, by the clock that it was counted by.
		ends := end.Add(d.ResetAfter).Add(l.window / 2)
		l.admitted[ends.UnixNano()/int64(l.window)]++
	}
}

func (l *load) end() {
	close(l.stop)
	l.group.Wait()
}

// window is the number of the window in which t lies, as record counts it.
func (l *load) windowOf(t time.Time) int64 { return t.UnixNano()/int64(l.window) + 1 }

// replicas starts three limiters, tells them that they are three, and waits until they know.
func replicas(t *testing.T, addr string, spec policy.Spec) []*ratelimit.Limiter {
	t.Helper()
	control := newController(t, addr)
	control.publish(spec)
	var limiters []*ratelimit.Limiter
	var registries []registry
	for range 3 {
		r := newRegistry()
		limiters = append(limiters, newLimiter(t, addr, func(o *ratelimit.Options) { o.Registerer = r }))
		registries = append(registries, r)
	}
	control.count(3)
	for _, r := range registries {
		eventually(t, "all replicas know that they are three", func() bool { return r.value(t, "weir_replicas", nil) == 3 })
	}
	return limiters
}

// Redis is killed under load: no decision takes long, and in every later window the replicas admit no more than the
// limit together.
func TestRedisKilledUnderLoad(t *testing.T) {
	const limit, window = 30, time.Second
	server := env.Redis(t, env.RedisOptions{})
	limiters := replicas(t, server.Addr, policy.Spec{Rules: []policy.Rule{{
		Name: "exports", Key: []policy.KeyPart{{Header: "X-Api-Key"}},
		Limits: []policy.Limit{{Requests: requests(limit), Window: "1s", Algorithm: policy.FixedWindow}},
	}}})
	l := startLoad(t, limiters, window, ratelimit.Request{Header: http.Header{"X-Api-Key": {"alice"}}})
	<-time.After(1500 * time.Millisecond)
	server.Kill()
	killed := time.Now()
	<-time.After(4 * time.Second)
	l.end()

	t.Logf("longest decision %v; decided by %v", l.longest, l.sources)
	if l.longest > 10*worstDecision {
		t.Errorf("a decision took %v, want at most %v", l.longest, worstDecision)
	}
	if l.sources[ratelimit.SourceStore] == 0 || l.sources[ratelimit.SourceLocalShare] == 0 {
		t.Errorf("decided by %v, want by the store first and by local shares then", l.sources)
	}
	last := l.windowOf(killed)
	for w := last + 1; w < last+4; w++ {
		t.Logf("window %d after the kill: admitted %d of %d", w-last, l.admitted[w], limit)
		if got := l.admitted[w]; got > limit || got == 0 {
			t.Errorf("window %d after the kill: admitted %d, want 1 to %d", w-last, got, limit)
		}
	}
}

// Redis is stopped with its sockets open, as when a network drops every packet: decisions keep their time, and when it
// goes on they are its own again (B19).
func TestRedisFallsSilent(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	limiters := replicas(t, server.Addr, policy.Spec{Rules: []policy.Rule{{
		Name: "exports", Key: []policy.KeyPart{{Header: "X-Api-Key"}},
		Limits: []policy.Limit{{Requests: requests(1_000_000), Window: "1h"}},
	}}})
	l := startLoad(t, limiters, time.Hour, ratelimit.Request{Header: http.Header{"X-Api-Key": {"alice"}}})
	<-time.After(500 * time.Millisecond)
	server.Pause()
	<-time.After(2 * time.Second)
	server.Resume()
	for i, limiter := range limiters {
		start := time.Now()
		eventually(t, "the store decides again", func() bool {
			return limiter.Decide(t.Context(), ratelimit.Request{Header: http.Header{"X-Api-Key": {"bob"}}}).Source == ratelimit.SourceStore
		})
		t.Logf("replica %d asks the store again %v after it goes on", i, time.Since(start).Round(time.Millisecond))
	}
	l.end()
	t.Logf("longest decision %v; decided by %v", l.longest, l.sources)
	if l.longest > 10*worstDecision {
		t.Errorf("a decision took %v, want at most %v", l.longest, worstDecision)
	}
}

// A script that Redis lost is loaded again in the same call, and charged once (B25).
func TestScriptsAreLost(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	limiters := replicas(t, server.Addr, policy.Spec{Rules: []policy.Rule{{
		Name: "exports", Limits: []policy.Limit{{Requests: requests(10), Window: "1h"}},
	}}})
	client := newClient(t, server.Addr)
	for i := range int64(3) {
		d := limiters[0].Decide(t.Context(), ratelimit.Request{})
		if d.Source != ratelimit.SourceStore && d.Source != ratelimit.SourceLocalShare {
			t.Fatalf("decision %d: %+v", i, d)
		}
		if d.Source == ratelimit.SourceStore && d.Remaining != 9-i {
			t.Errorf("decision %d: %d left, want %d", i, d.Remaining, 9-i)
		}
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
