package redisstore

import (
	"errors"
	"flag"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

// The scripts must equal the pure functions on every input: verdicts, numbers, times, and the state that is left.

// pair holds the same counters twice: in Redis, and as the pure functions compute them.
type pair struct {
	t      *testing.T
	random *rand.Rand
	client redis.UniversalClient
	store  *Store
	now    int64
	all    []*twin
	steps  int
}

// twin is one counter as the pure functions compute it.
type twin struct {
	counter enforcer.Counter
	key     string
	state   algorithm.State
	ttl     int64 // ms, when it was charged in this round; -1 when it was only denied
	expiry  int64 // ms, as the state said last
	newest  int64 // of a log, before this round
	touched bool
	over    bool    // when it was only denied: nothing of it weighed any more
	taken   []int64 // times of charges
}

func newPair(t *testing.T, client redis.UniversalClient, seed uint64) *pair {
	p := &pair{
		t:      t,
		random: rand.New(rand.NewPCG(seed, 0)),
		client: client,
		now:    1_800_000_000_000_000,
	}
	p.store = NewStore(StoreOptions{Client: client, Table: testTable, Namespace: "shop", Time: func() int64 { return p.now }})
	for i := range 96 {
		tw := &twin{counter: enforcer.Counter{
			Identity: enforcer.Identity{byte(i)},
			ID:       strconv.Itoa(i),
			Limit:    algorithm.Limit{Algorithm: algorithm.Algorithm(i % 4), Window: p.window()},
		}}
		tw.key = string(appendCounter(nil, p.store.prefix, &tw.counter))
		p.all = append(p.all, tw)
	}
	return p
}

func (p *pair) below(n int64) int64 { return p.random.Int64N(max(n, 1)) }

// spread is a number up to most, of any order of magnitude.
func (p *pair) spread(most int64) int64 {
	n := int64(1)
	for n < most && p.below(8) != 0 {
		n *= 1 + p.below(20)
	}
	return min(p.below(n+1), most)
}

func (p *pair) window() int64 {
	switch p.below(4) {
	case 0:
		return 100_000 + p.below(1_000_000)
	case 1:
		return maxWindow - p.below(1000)
	default:
		return 100_000 + p.spread(maxWindow-100_000)
	}
}

// cofactor returns b from 0 to m-1 for which a*b mod m is rest, or a rest near it when there is none.
func cofactor(a, rest, m int64) int64 {
	gcd, inverse := new(big.Int), new(big.Int)
	gcd.GCD(inverse, nil, big.NewInt(a), big.NewInt(m))
	if gcd.Sign() == 0 {
		return 0
	}
	inverse.Mul(inverse, new(big.Int).Div(big.NewInt(rest), gcd))
	return inverse.Mod(inverse, new(big.Int).Div(big.NewInt(m), gcd)).Int64()
}

// move sets the clock: mostly a little forward, at times far or back, and at times to where a product of some counter
// is next to a multiple of its window.
func (p *pair) move() {
	tw := p.all[p.below(int64(len(p.all)))]
	window, rest := tw.counter.Limit.Window, p.below(5)-2
	switch p.below(10) {
	case 0:
		p.now -= p.spread(3 * window)
	case 1:
		p.now += p.spread(3 * window)
	case 2, 3, 4:
		switch {
		case tw.counter.Limit.Algorithm == algorithm.TokenBucket && tw.counter.Limit.Requests > 0 && tw.state.At > 0:
			p.now = tw.state.At + cofactor(tw.counter.Limit.Requests, tw.state.Carry+rest, window)
		case tw.counter.Limit.Algorithm == algorithm.SlidingWindowCounter && tw.state.Used > 0:
			p.now = (tw.state.At+2)*window - cofactor(tw.state.Used, rest, window)
		case tw.counter.Limit.Algorithm == algorithm.SlidingWindowLog && len(tw.state.Log) > 0:
			p.now = tw.state.Log[p.below(int64(len(tw.state.Log)))].At + window + rest
		default:
			p.now = (p.now/window+1)*window + rest
		}
	default:
		p.now += p.spread(window)
	}
	p.now = min(max(p.now, 1_600_000_000_000_000), 8_000_000_000_000_000)
}

// numbers gives a counter a limit and a cost, with a preference for the edge of what is left.
func (p *pair) numbers(tw *twin) {
	l := &tw.counter.Limit
	most := int64(maxRequests)
	if l.Algorithm == algorithm.SlidingWindowLog {
		most = algorithm.MaxLogEntries
	}
	if l.Requests == 0 || p.below(4) == 0 {
		l.Requests = p.spread(most)
		if p.below(3) == 0 {
			l.Requests = most - p.below(100)
		}
	}
	l.Burst = 0
	if l.Algorithm == algorithm.TokenBucket && p.below(2) == 0 {
		l.Burst = 1 + p.spread(most-1)
	}
	remaining := l.Look(tw.state, p.now, 0).Remaining
	switch p.below(6) {
	case 0:
		tw.counter.Cost = max(1, remaining+p.below(3)-1)
	case 1:
		tw.counter.Cost = 1 + p.spread(2*most)
	case 2:
		if l.Algorithm == algorithm.TokenBucket && l.Requests > 0 {
			tw.counter.Cost = max(1, cofactor(l.Window, p.below(5)-2-tw.state.Carry, l.Requests)+l.Capacity()-tw.state.Used)
		} else {
			tw.counter.Cost = 1 + p.below(remaining)
		}
	default:
		tw.counter.Cost = 1 + p.spread(10)
	}
}

// entry draws an entry over one to four counters.
func (p *pair) entry() (enforcer.Entry, []*twin) {
	var twins []*twin
	for range 1 + p.below(2)*p.below(4) {
		tw := p.all[p.below(int64(len(p.all)))]
		if !slices.Contains(twins, tw) {
			p.numbers(tw)
			twins = append(twins, tw)
		}
	}
	e := enforcer.Entry{N: p.below(5), Enforced: len(twins)}
	if p.below(20) == 0 {
		e.N = 1 + p.spread(1<<40)
	}
	if len(twins) > 1 && p.below(2) == 0 {
		e.Enforced = int(p.below(int64(len(twins))))
		for i := e.Enforced + 1; i <= len(twins); i++ {
			if i == len(twins) || p.below(2) == 0 {
				e.Shadow = append(e.Shadow, i)
			}
		}
	}
	for _, tw := range twins {
		e.Counters = append(e.Counters, tw.counter)
	}
	return e, twins
}

// take is the serial order: one caller after the other, each admitted only if all of the enforced counters allow it.
func (p *pair) take(e enforcer.Entry, twins []*twin) enforcer.Answer {
	answer := enforcer.Answer{Shadow: make([]int64, len(e.Shadow)), Results: []algorithm.Result{}}
	for i, tw := range twins {
		if tw.touched = tw.touched || e.N > 0; e.N > 0 {
			var moved bool
			if tw.state, moved = e.Counters[i].Limit.Rebase(tw.state, p.now); moved {
				tw.ttl = e.Counters[i].Limit.TTL(tw.state, p.now)
			}
		}
	}
	fits := func(from, to int) int64 {
		n := e.N
		for i := from; i < to; i++ {
			c := e.Counters[i]
			n = min(n, c.Limit.Look(twins[i].state, p.now, 0).Remaining/c.Cost)
		}
		return n
	}
	charge := func(from, to int, callers int64) {
		for i := from; i < to; i++ {
			c := e.Counters[i]
			single := max(0, min(callers, 10)-1)
			for range single {
				twins[i].state = c.Limit.Charge(twins[i].state, p.now, c.Cost)
			}
			if callers > 0 {
				at := c.Limit.Look(twins[i].state, p.now, 0).At
				twins[i].state = c.Limit.Charge(twins[i].state, p.now, (callers-single)*c.Cost)
				twins[i].ttl = c.Limit.TTL(twins[i].state, p.now)
				twins[i].taken = append(twins[i].taken[max(0, len(twins[i].taken)-5):], at)
			}
		}
	}
	answer.Granted = fits(0, e.Enforced)
	charge(0, e.Enforced, answer.Granted)
	from := e.Enforced
	for rule, to := range e.Shadow {
		answer.Shadow[rule] = min(answer.Granted, fits(from, to))
		charge(from, to, answer.Shadow[rule])
		from = to
	}
	for i, tw := range twins {
		result := e.Counters[i].Limit.Look(tw.state, p.now, e.Counters[i].Cost)
		answer.Results = append(answer.Results, result)
		if e.N > 0 {
			tw.over = result.ResetAfter == 0
		}
	}
	p.steps += len(twins)
	return answer
}

// run sends a script with what has been encoded, and compares what it left in the keys that were touched.
func (p *pair) run(b *batch) any {
	p.t.Helper()
	ctx := p.t.Context()
	pipe := p.client.TxPipeline()
	script := pipe.Do(ctx, b.args(p.store.now())...)
	type left struct {
		text *redis.StringCmd
		list *redis.StringSliceCmd
		ttl  *redis.Cmd
	}
	lefts := make([]left, len(p.all))
	for i, tw := range p.all {
		if tw.counter.Limit.Algorithm == algorithm.SlidingWindowLog {
			lefts[i].list = pipe.LRange(ctx, tw.key, 0, -1)
		} else {
			lefts[i].text = pipe.Get(ctx, tw.key)
		}
		lefts[i].ttl = pipe.Do(ctx, "pttl", tw.key)
		// The clock of the test runs as it likes; the server's must not end a key.
		pipe.Persist(ctx, tw.key)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		p.t.Fatal(err)
	}
	for i, tw := range p.all {
		got := algorithm.State{}
		if lefts[i].list != nil {
			got = decodeLog(p.t, lefts[i].list.Val())
		} else if text := lefts[i].text.Val(); text != "" {
			got = decodeState(p.t, text, tw.counter.Limit.Algorithm)
		}
		if tw.touched && tw.ttl < 0 && tw.over && isEmpty(got) {
			tw.state = got // it had no time to live, and got the shortest
		}
		if diff := cmp.Diff(tw.state, got); diff != "" {
			p.t.Fatalf("state of %+v at %d after %d steps (-pure +redis):\n%s", tw.counter, p.now, p.steps, diff)
		}
		ttl, _ := lefts[i].ttl.Val().(int64)
		p.checkTTL(tw, lefts[i].text, ttl)
		tw.touched, tw.ttl, tw.newest = false, -1, newest(tw.state)
	}
	return script.Val()
}

// checkTTL compares times to live in ms. Those of strings may have slack, and are not set again while they suffice.
func (p *pair) checkTTL(tw *twin, text *redis.StringCmd, ttl int64) {
	p.t.Helper()
	if !tw.touched || isEmpty(tw.state) {
		return
	}
	want, most := tw.ttl, tw.ttl
	if text != nil {
		r := reader{text.Val()[18:]}
		expiry := r.uint(6) - p.now/1000
		if tw.counter.Limit.Algorithm == algorithm.TokenBucket {
			most += max(1000, want/4)
		} else {
			most += 1000
		}
		if want > 0 && (expiry < want || expiry > max(most, tw.expiry-p.now/1000)) {
			p.t.Fatalf("%+v says that it lives for %d ms, want %d to %d", tw.counter, expiry, want, most)
		}
		if tw.expiry == expiry+p.now/1000 {
			return // the test made it live for ever before
		}
		tw.expiry = expiry + p.now/1000
		want, most = expiry, expiry
	}
	if text == nil && want > 0 {
		most += tw.counter.Limit.Window/8000 + 1001
		if eighth := tw.counter.Limit.Window / 8; tw.newest > 0 && tw.newest/eighth == newest(tw.state)/eighth && ttl == -1 {
			return // it lasts from the first charge of this eighth of a window
		}
		want += tw.counter.Limit.Window / 8000
	}
	if want > 0 && (ttl < want-1000 || ttl > most) {
		p.t.Fatalf("%+v lives for %d ms, want %d to %d", tw.counter, ttl, want, most)
	}
}

func newest(s algorithm.State) int64 {
	if len(s.Log) == 0 {
		return 0
	}
	return s.Log[len(s.Log)-1].At
}

func isEmpty(s algorithm.State) bool { return s.Used == 0 && s.Carry == 0 }

func decodeState(t *testing.T, text string, a algorithm.Algorithm) algorithm.State {
	t.Helper()
	size := 24 // format and algorithm, at, used, carry, expiry
	if a == algorithm.SlidingWindowLog {
		size = 18
	}
	if len(text) != size || text[0] != 0x10+byte(a) {
		t.Fatalf("%q is no state of %v", text, a)
	}
	r := reader{text[1:]}
	return algorithm.State{At: r.uint(7), Used: r.uint(4), Carry: r.uint(6)}
}

func decodeLog(t *testing.T, entries []string) algorithm.State {
	t.Helper()
	var s algorithm.State
	var before int64
	for i, text := range entries {
		entry := decodeState(t, text, algorithm.SlidingWindowLog)
		if i > 0 && entry.Carry != before {
			t.Fatalf("entry %d says that %d was charged before it, want %d", i, entry.Carry, before)
		}
		before = entry.Carry + entry.Used
		s.Log = append(s.Log, algorithm.LogEntry{At: entry.At, Cost: entry.Used})
		s.Used += entry.Used
	}
	return s
}

func (p *pair) takes(n int) {
	p.t.Helper()
	var entries []enforcer.Entry
	var want []enforcer.Answer
	for range n {
		e, twins := p.entry()
		entries = append(entries, e)
		want = append(want, p.take(e, twins))
	}
	p.check(entries, want)
}

// singles takes up to n counters, each alone in its entry and once: the batches of single.lua.
func (p *pair) singles(n int) {
	p.t.Helper()
	var entries []enforcer.Entry
	var want []enforcer.Answer
	for _, i := range p.random.Perm(len(p.all)) {
		tw := p.all[i]
		if tw.counter.Limit.Algorithm == algorithm.SlidingWindowLog || len(entries) == n {
			continue
		}
		p.numbers(tw)
		e := enforcer.Entry{Counters: []enforcer.Counter{tw.counter}, Enforced: 1, N: p.below(5)}
		if p.below(20) == 0 {
			e.N = 1 + p.spread(1<<40)
		}
		entries = append(entries, e)
		want = append(want, p.take(e, []*twin{tw}))
	}
	b := newBatch()
	if err := b.encodeTake(p.store.prefix, entries); err != nil || b.script != singleScript {
		p.t.Fatalf("encoded for %s: %v", b.script.name, err)
	}
	p.check(entries, want)
}

func (p *pair) check(entries []enforcer.Entry, want []enforcer.Answer) {
	p.t.Helper()
	b := newBatch()
	if err := b.encodeTake(p.store.prefix, entries); err != nil {
		p.t.Fatal(err)
	}
	reply, _ := p.run(b).(string)
	got := make([]enforcer.Answer, len(entries))
	now, err := decodeTake(reply, entries, got)
	if err != nil || now != p.now {
		p.t.Fatalf("%d, %v", now, err)
	}
	for i := range want {
		if diff := cmp.Diff(want[i], got[i], cmpopts.EquateEmpty()); diff != "" {
			p.t.Fatalf("entry %d, %+v at %d after %d steps (-pure +redis):\n%s", i, entries[i], p.now, p.steps, diff)
		}
	}
}

func (p *pair) refunds(n int) {
	p.t.Helper()
	var refunds []enforcer.Refund
	for range n {
		tw := p.all[p.below(int64(len(p.all)))]
		taken := p.now - p.spread(2*tw.counter.Limit.Window)
		if len(tw.taken) > 0 && p.below(4) > 0 {
			taken = tw.taken[p.below(int64(len(tw.taken)))]
		}
		r := enforcer.Refund{Counters: []enforcer.Counter{tw.counter}, N: 1 + p.below(3), Taken: max(0, taken)}
		if l := tw.counter.Limit; !isEmpty(tw.state) {
			tw.state = l.Refund(tw.state, p.now, r.Taken, r.N*tw.counter.Cost)
			tw.ttl, tw.touched = l.TTL(tw.state, p.now), true
		}
		refunds = append(refunds, r)
		p.steps++
	}
	b := newBatch()
	if err := b.encodeRefunds(p.store.prefix, refunds); err != nil {
		p.t.Fatal(err)
	}
	if failed := p.run(b); failed != int64(0) {
		p.t.Fatalf("refund answers %v", failed)
	}
}

var seedFlag = flag.Uint64("seed", 0, "seed of the random steps; 0 draws one")

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -seed=%d", seed)
	return seed
}

func TestScriptsEqualThePureFunctions(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	for _, s := range []*script{takeScript, singleScript, refundScript} {
		if err := w.admin.ScriptLoad(t.Context(), s.source).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p := newPair(t, w.admin, seedOf(t))
	for p.steps < 200_000 {
		p.move()
		switch p.below(8) {
		case 0:
			p.refunds(10)
		case 1, 2:
			p.singles(50)
		case 3:
			p.singles(1)
		default:
			p.takes(150)
		}
	}
	t.Logf("%d steps", p.steps)
}
