package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// A log of the most entries that there can be costs the scripts no more than a short one, and is as exact.
func TestLongLogsEqualThePureFunctions(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	for _, s := range []*script{takeScript, refundScript} {
		if err := w.admin.ScriptLoad(ctx, s.source).Err(); err != nil {
			t.Fatal(err)
		}
	}
	seed := seedOf(t)
	for round := range uint64(2) {
		p := newPair(t, w.admin, seed+round)
		w.admin.FlushAll(ctx)
		tw := &twin{counter: counterOf("long", algorithm.SlidingWindowLog, algorithm.MaxLogEntries, time.Hour)}
		tw.counter.Identity = enforcer.Identity{200}
		tw.key = keyOf(p.store, tw.counter)
		p.all = []*twin{tw}
		fillLog(ctx, t, w.admin, tw, p)
		window := tw.counter.Limit.Window
		for range 300 {
			entries := tw.state.Log
			switch p.below(3) {
			case 0:
				p.now += p.spread(window / 20)
			case 1:
				if n := int64(len(entries)); n > 0 {
					p.now = max(p.now, entries[p.below(n)/8].At+window+p.below(3)-1)
				}
			}
			tw.counter.Cost = 1 + p.below(3)*p.spread(2000)
			tw.counter.Limit.Requests = algorithm.MaxLogEntries - p.below(2)*p.spread(8000)
			if p.below(6) == 0 && len(entries) > 0 {
				tw.taken = []int64{entries[p.below(int64(len(entries)))].At}
				p.refunds(1)
				continue
			}
			e := enforcer.Entry{Counters: []enforcer.Counter{tw.counter}, Enforced: 1, N: p.below(3)}
			p.check([]enforcer.Entry{e}, []enforcer.Answer{p.take(e, []*twin{tw})})
		}
	}
}

// fillLog gives a counter as many entries as it can have, in both worlds.
func fillLog(ctx context.Context, t *testing.T, client redis.UniversalClient, tw *twin, p *pair) {
	t.Helper()
	at, before := p.now, int64(0)
	var values []any
	for range algorithm.MaxLogEntries {
		at += 1 + p.below(300_000)
		state := appendUint56([]byte{0x13}, at)
		state = append(state, 0, 0, 0, 1)
		values = append(values, appendUint48(state, before))
		before++
		tw.state.Log = append(tw.state.Log, algorithm.LogEntry{At: at, Cost: 1})
		tw.state.Used++
	}
	p.now, tw.newest = at, at
	if err := client.RPush(ctx, tw.key, values...).Err(); err != nil {
		t.Fatal(err)
	}
}
