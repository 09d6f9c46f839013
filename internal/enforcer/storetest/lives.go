package storetest

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/algorithm/model"
)

// stepsPerWorld is how long a set of counters lives before another one begins.
const stepsPerWorld = 2_000

// lives takes counters of random limits through random times, entries and refunds, in batches that share counters.
func (s *suite) lives(t *testing.T) {
	steps, seed := s.options.Steps, startSeed(t)
	if testing.Short() {
		steps = min(steps, 5_000)
	}
	var seen sights
	c := new(clock)
	store := s.newStore(t, c.time)
	for i := uint64(0); seen.Steps < steps; i++ {
		// Every fifth world lives beside the model, shorter and in small numbers: that is a thousand times slower.
		w := newWorld(t, s, store, c, rand.NewPCG(seed+i, 0), i%5 == 0)
		w.seen = &seen
		end := seen.Steps + stepsPerWorld
		if w.modelled {
			end = seen.Steps + stepsPerWorld/10
		}
		for seen.Steps < end {
			if err := w.step(); err != nil {
				t.Fatalf("replay with WEIR_SEED=%d: %v", seed+i, err)
			}
		}
	}
	t.Logf("%+v", seen)
	for what, n := range map[string]int{
		"grants": seen.Granted, "denials": seen.Denied, "costs above the capacity": seen.Unsatisfiable,
		"peeks": seen.Peeks, "refunds": seen.Refunds, "shadow rules that charged": seen.Shadowed,
		"states ahead of the clock": seen.Ahead, "steps beside the model": seen.Modelled,
	} {
		if n < steps/1_000 && !(what == "states ahead of the clock" && s.options.Forward) {
			t.Errorf("only %d of %d steps were %s", n, steps, what)
		}
	}
}

// sights counts what the worlds have come across.
type sights struct {
	Steps, Granted, Denied, Unsatisfiable, Peeks, Refunds, Shadowed, Ahead, Modelled int
}

// world is a set of counters that entries share.
type world struct {
	t        *testing.T
	suite    *suite
	store    enforcer.Store
	clock    *clock
	random   *rand.Rand
	twins    []*twin
	modelled bool
	seen     *sights
}

func newWorld(t *testing.T, s *suite, store enforcer.Store, c *clock, source rand.Source, modelled bool) *world {
	w := &world{t: t, suite: s, store: store, clock: c, random: rand.New(source), modelled: modelled, seen: new(sights)}
	start := noon + w.below(1_000*day)
	if w.below(4) == 0 && !s.options.Forward {
		start = w.below(minute) // an injected clock may count from 0
	}
	c.now.Store(max(start, 0))
	if s.options.Forward {
		c.now.Store(max(start, c.time()))
	}
	// Identities have several limits, and limits several identities.
	ids := []string{newID(), newID(), newID(), newID(), newID(), newID(), newID(), newID()}
	windows := make([]int64, len(ids))
	for i := range windows {
		windows[i] = w.window()
	}
	for identity := range 6 {
		for i, id := range ids {
			limit := algorithm.Limit{Algorithm: algorithms[i%4], Window: windows[i]}
			w.numbers(&limit)
			tw := &twin{counter: enforcer.Counter{Identity: enforcer.Identity{byte(identity)}, ID: id, Limit: limit, Cost: 1}}
			if modelled {
				tw.model = model.New(limit)
			}
			w.twins = append(w.twins, tw)
		}
	}
	return w
}

// below is 0 to n − 1, also for an n below 1.
func (w *world) below(n int64) int64 { return w.random.Int64N(max(n, 1)) }

func (w *world) pick(values ...int64) int64 { return values[w.below(int64(len(values)))] }

// magnitude is 1 to most, every number of digits as likely.
func (w *world) magnitude(most int64) int64 {
	top := int64(1)
	for top < most && w.below(8) > 0 {
		top = min(top*10, most)
	}
	return 1 + w.below(top)
}

func (w *world) window() int64 {
	return w.pick(100*millisecond, second, minute, hour, day, maxWindow, maxWindow-w.below(1000),
		100*millisecond+w.below(maxWindow-100*millisecond))
}

// numbers chooses what may change while a counter lives.
func (w *world) numbers(limit *algorithm.Limit) {
	most := maxRequests
	if limit.Algorithm == algorithm.SlidingWindowLog {
		most = algorithm.MaxLogEntries
	}
	limit.Requests = w.pick(w.below(4), 1+w.below(20), w.magnitude(most), most-w.below(1000))
	limit.Burst = 0
	if limit.Algorithm == algorithm.TokenBucket && w.below(2) == 0 {
		limit.Burst = w.pick(1, w.magnitude(most), most-w.below(1000))
	}
}

// cofactor returns b with a·b ≡ rest (mod m), or with another rest if there is none: a product next to a multiple of
// m, where arithmetic that is not exact goes wrong.
func cofactor(a, rest, m int64) int64 {
	inverse := new(big.Int)
	gcd := new(big.Int).GCD(inverse, nil, big.NewInt(a), big.NewInt(m))
	inverse.Mul(inverse, new(big.Int).Div(big.NewInt(rest), gcd))
	return inverse.Mod(inverse, new(big.Int).Div(big.NewInt(m), gcd)).Int64()
}

// moveClock moves the time: a little or far, to hard products, and back.
func (w *world) moveClock() {
	tw := w.twins[w.below(int64(len(w.twins)))]
	limit, state, now, rest := tw.counter.Limit, tw.state, w.clock.time(), w.below(5)-2
	window := limit.Window
	next := now
	switch w.below(12) {
	case 0:
		next -= w.magnitude(window)
	case 1:
		next -= w.magnitude(4 * window)
	case 2:
		next += w.magnitude(4 * window)
	case 3, 4, 5:
		next = (now/window+1)*window + rest
		switch {
		case limit.Algorithm == algorithm.TokenBucket && limit.Requests > 0 && state.At > 0:
			next = state.At + cofactor(limit.Requests, state.Carry+rest, window)
		case limit.Algorithm == algorithm.SlidingWindowCounter && state.Used > 0:
			next = (state.At+2)*window - cofactor(state.Used, rest, window)
		case limit.Algorithm == algorithm.SlidingWindowLog && len(state.Log) > 0:
			next = state.Log[w.below(int64(len(state.Log)))].At + window + rest
		}
	case 6:
	default:
		next += w.magnitude(window)
	}
	next = min(max(next, 0), 8_000_000_000*second)
	if next < now && w.suite.options.Forward {
		return
	}
	w.clock.now.Store(next)
}

// cost is often what is left, or one beside it.
func (w *world) cost(tw *twin) int64 {
	limit := tw.counter.Limit
	left := limit.Look(tw.state, w.clock.time(), 0).Remaining
	switch w.below(6) {
	case 0:
		return max(1, left+w.below(3)-1)
	case 1:
		return max(1, left/w.pick(2, 3)+w.below(2))
	case 2:
		return w.magnitude(2 * maxRequests)
	case 3:
		if limit.Algorithm == algorithm.TokenBucket && limit.Requests > 0 {
			return max(1, cofactor(limit.Window, w.below(5)-2-tw.state.Carry, limit.Requests)+limit.Capacity()-tw.state.Used)
		}
	}
	return w.pick(1, 1+w.below(5))
}

// entry draws an entry over one to four counters, those of one identity where the store decides identities apart.
func (w *world) entry() (enforcer.Entry, []*twin) {
	var twins []*twin
	for range w.pick(1, 1, 2, 3, 4) {
		tw := w.twins[w.below(int64(len(w.twins)))]
		if slices.Contains(twins, tw) || w.suite.options.Split && len(twins) > 0 && twins[0].counter.Identity != tw.counter.Identity {
			continue
		}
		twins = append(twins, tw)
	}
	e := enforcer.Entry{N: w.pick(0, 1, 1, 1, 2, 2+w.below(5)), Enforced: len(twins)}
	if len(twins) > 1 && w.below(2) == 0 {
		e.Enforced = int(w.below(int64(len(twins))))
		for end := e.Enforced + 1; end <= len(twins); end++ {
			if end == len(twins) || w.below(2) == 0 {
				e.Shadow = append(e.Shadow, end)
			}
		}
	}
	for _, tw := range twins {
		if w.below(8) == 0 {
			before := tw.counter.Limit
			limit := before
			w.numbers(&limit)
			if tw.setLimit(limit); tw.outlived(w.clock.time()) {
				tw.setLimit(before)
			}
		}
		c := tw.counter
		c.Cost = w.cost(tw)
		e.Counters = append(e.Counters, c)
	}
	return e, twins
}

// step moves the clock and sends one batch, of takes or of refunds.
func (w *world) step() error {
	w.moveClock()
	if err := w.forget(); err != nil {
		return err
	}
	if w.below(6) == 0 {
		return w.refund()
	}
	now := w.clock.time()
	n := 1 + w.below(60)
	entries, answers := make([]enforcer.Entry, n), make([]enforcer.Answer, n)
	wants := make([]enforcer.Answer, n)
	for i := range entries {
		var twins []*twin
		entries[i], twins = w.entry()
		wants[i] = answer(entries[i], twins, now)
		w.note(entries[i], wants[i])
		for _, tw := range twins {
			if tw.differs != nil {
				return tw.differs
			}
		}
	}
	got, err := w.store.Take(w.t.Context(), entries, answers)
	if err != nil {
		return err
	}
	if got != now {
		return fmt.Errorf("the store says it is %d, want %d", got, now)
	}
	for i := range entries {
		if err := compare(wants[i], answers[i]); err != nil {
			return fmt.Errorf("entry %d of %d, %+v at %d: %w", i, n, entries[i], now, err)
		}
	}
	return nil
}

// forget resets counters of which it is open whether the store still knows them.
func (w *world) forget() error {
	var counters []enforcer.Counter
	for _, tw := range w.twins {
		if tw.outlived(w.clock.time()) || w.below(2_000) == 0 {
			counters = append(counters, tw.counter)
			tw.reset()
		}
	}
	if len(counters) == 0 {
		return nil
	}
	if err := w.store.Reset(w.t.Context(), counters); err != nil {
		return fmt.Errorf("resetting: %w", err)
	}
	return nil
}

func (w *world) note(e enforcer.Entry, a enforcer.Answer) {
	w.seen.Steps += len(e.Counters)
	if w.modelled {
		w.seen.Modelled += len(e.Counters)
	}
	if e.N == 0 {
		w.seen.Peeks++
	}
	w.seen.Granted += int(a.Granted)
	w.seen.Denied += int(e.N - a.Granted)
	for _, n := range a.Shadow {
		w.seen.Shadowed += int(n)
	}
	for _, r := range a.Results {
		if !r.Satisfiable {
			w.seen.Unsatisfiable++
		}
		if r.At != w.clock.time() {
			w.seen.Ahead++
		}
	}
}

// refund gives back charges, whole, in part, or such that never were.
func (w *world) refund() error {
	now := w.clock.time()
	var refunds []enforcer.Refund
	for range 1 + w.below(10) {
		tw := w.twins[w.below(int64(len(w.twins)))]
		r := enforcer.Refund{N: 1 + w.below(3), Taken: max(0, now-w.magnitude(2*tw.counter.Limit.Window))}
		if n := int64(len(tw.taken)); n > 0 && w.below(4) > 0 {
			r.Taken = tw.taken[w.below(n)]
		}
		for _, other := range []*twin{tw, w.twins[w.below(int64(len(w.twins)))]} {
			if len(r.Counters) > 0 && (other == tw || other.counter.Identity != tw.counter.Identity) {
				continue
			}
			c := other.counter
			c.Cost = w.cost(other)
			r.Counters = append(r.Counters, c)
			other.refund(now, r.Taken, r.N*c.Cost)
			w.seen.Steps++
			w.seen.Refunds++
		}
		refunds = append(refunds, r)
	}
	if err := w.store.Refund(w.t.Context(), refunds); err != nil {
		return fmt.Errorf("refunding %+v: %w", refunds, err)
	}
	return nil
}
