package algorithm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/algorithm/model"
)

var algorithms = []algorithm.Algorithm{
	algorithm.TokenBucket, algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog,
}

const (
	maxRequests  = 1_000_000_000
	maxWindow    = 31 * day
	stepsPerWalk = 30
)

// envInt reads a number that tunes the randomised tests: WEIR_STEPS for how many
// steps, WEIR_SEED to replay.
func envInt(t testing.TB, name string, fallback uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("reading %s: %v", name, err)
	}
	return n
}

// startSeed returns the seed of this run and prints it.
func startSeed(t testing.TB) uint64 {
	seed := envInt(t, "WEIR_SEED", rand.Uint64())
	t.Logf("WEIR_SEED=%d", seed)
	return seed
}

// dice is where a walk gets its choices from.
type dice interface {
	below(n int64) int64 // 0 to n − 1
}

type seeded struct{ *rand.Rand }

func newSeeded(seed uint64) seeded { return seeded{rand.New(rand.NewPCG(seed, 0))} }

func (s seeded) below(n int64) int64 { return s.Int64N(n) }

// walk takes one counter through a random life, with the model beside it.
type walk struct {
	dice
	limit algorithm.Limit
	state algorithm.State
	model *model.Model
	now   int64
	taken []algorithm.LogEntry // charges that can be refunded
	retry int64                // what the last denial said
	trail []string
	seen  *sights
}

// sights counts what walks have come across.
type sights struct {
	Steps, Admitted, Denied, Unsatisfiable, Peeked, Refunded, Forced, Ahead, Rebased, JustFits, JustNot, Batches int
}

func newWalk(d dice, seen *sights) *walk {
	w := &walk{dice: d, seen: seen}
	w.limit = w.chooseLimit()
	w.model = model.New(w.limit)
	if w.below(4) > 0 {
		w.now = 1_800_000_000*second + w.below(1_000_000*second)
	}
	return w
}

func (w *walk) note(format string, args ...any) {
	w.trail = append(w.trail, fmt.Sprintf("%d µs: ", w.now)+fmt.Sprintf(format, args...))
}

func (w *walk) fail(err error) error {
	return fmt.Errorf("%w\nlimit %+v\nstate %+v\n%s", err, w.limit, w.state, strings.Join(w.trail, "\n"))
}

func (w *walk) pick(values ...int64) int64 { return values[w.below(int64(len(values)))] }

// around is n, or 1 beside it.
func (w *walk) around(n int64) int64 { return n + w.below(3) - 1 }

// magnitude is 1 to most, every number of digits as likely.
func (w *walk) magnitude(most int64) int64 {
	top := int64(1)
	for top < most && w.below(8) > 0 {
		top = min(top*10, most)
	}
	return 1 + w.below(top)
}

func (w *walk) chooseLimit() algorithm.Limit {
	limit := algorithm.Limit{Algorithm: algorithms[w.below(4)]}
	limit.Window = w.pick(100*ms, second, minute, hour, day, maxWindow,
		100*ms+w.below(maxWindow-100*ms), maxWindow-w.below(1000), 100*ms+w.below(1000))
	w.chooseNumbers(&limit)
	return limit
}

// chooseNumbers chooses what may change while the counter lives.
func (w *walk) chooseNumbers(limit *algorithm.Limit) {
	most := int64(maxRequests)
	if limit.Algorithm == algorithm.SlidingWindowLog {
		most = algorithm.MaxLogEntries
	}
	limit.Requests = w.pick(w.below(4), 1+w.below(20), w.magnitude(most), most-w.below(1000), most-w.below(most/2))
	limit.Burst = 0
	if limit.Algorithm == algorithm.TokenBucket && w.below(2) == 0 {
		limit.Burst = w.pick(1, w.magnitude(most), most-w.below(1000), most-w.below(most/2))
	}
}

// step moves the clock, perhaps changes the limit, and does one thing.
func (w *walk) step() error {
	w.seen.Steps++
	w.moveClock()
	switch w.below(8) {
	case 0:
		w.chooseNumbers(&w.limit)
	case 1, 2:
		w.chooseEdge(&w.limit)
	}
	w.model.SetLimit(w.limit)

	before, entries := w.state, slices.Clone(w.state.Log)
	var err error
	switch w.below(16) {
	case 0:
		err = w.peek()
	case 1, 2:
		err = w.refund()
	case 3:
		w.force()
	case 4:
		err = w.batch()
	case 5:
		err = w.rebase()
	default:
		err = w.take()
	}
	if err == nil && !slices.Equal(before.Log, entries) {
		err = fmt.Errorf("the log of a state that was given changed from %v to %v", entries, before.Log)
	}
	if err == nil {
		err = w.checkState()
	}
	if err != nil {
		return w.fail(err)
	}
	return nil
}

func (w *walk) moveClock() {
	window := w.limit.Window
	switch w.below(16) {
	case 0, 1, 2:
	case 3:
		w.now += 1 + w.below(3)
	case 4:
		w.now += w.below(window)
	case 5:
		w.now += w.magnitude(3 * window)
	case 6:
		w.now = w.around((w.now/window + 1 + w.below(3)) * window)
	case 7, 8, 9, 10:
		w.hardInstant()
	case 11, 12:
		if w.retry < 4*window {
			w.now += w.retry - w.below(2)
		}
	case 13:
		w.now -= w.magnitude(window)
	case 14:
		w.now -= window + w.around(0)
	case 15:
		w.now += w.pick(-1, 1) * w.magnitude(40*365*day)
	}
	w.now = min(max(w.now, 0), 1<<52)
	w.retry = 0
}

func (w *walk) chooseCost() int64 {
	capacity := max(w.limit.Capacity(), 1)
	room := w.limit.Look(w.state, w.now, 0).Remaining
	return max(0, w.pick(1, 1, 2, 1+w.below(capacity), 1+w.below(capacity), room, room+1, capacity, capacity+1,
		w.magnitude(capacity), w.hardCost(), 1+w.below(4*algorithm.MaxDebit)))
}

func (w *walk) take() error {
	cost := w.chooseCost()
	w.note("take %d of %+v from %+v", cost, w.limit, w.state)
	looked := w.limit.Look(w.state, w.now, cost)
	if err := w.model.Check(w.now, cost, looked); err != nil {
		return fmt.Errorf("looking for %d: %w", cost, err)
	}
	next, result := w.limit.Take(w.state, w.now, cost)
	if !looked.Allowed || cost == 0 {
		if result != looked {
			return fmt.Errorf("take answers %+v, look %+v", result, looked)
		}
		if !equal(next, w.state) {
			return fmt.Errorf("a take that charges nothing made %+v", next)
		}
		w.saw(looked)
		return w.checkRetry(cost, looked)
	}
	w.saw(looked)
	if charged := w.limit.Charge(w.state, w.now, cost); !equal(next, charged) {
		return fmt.Errorf("take makes %+v, charge %+v", next, charged)
	}
	if looked.Remaining == cost {
		w.seen.JustFits++
	}
	if result.Remaining != looked.Remaining-cost {
		return fmt.Errorf("remaining went from %d to %d at a cost of %d", looked.Remaining, result.Remaining, cost)
	}
	w.model.Charge(w.now, cost)
	w.taken = append(w.taken, algorithm.LogEntry{At: result.At, Cost: cost})
	w.state = next
	return w.model.Check(w.now, 0, result)
}

func (w *walk) saw(looked algorithm.Result) {
	switch {
	case looked.At != w.now:
		w.seen.Ahead++
	case looked.Allowed:
		w.seen.Admitted++
	case looked.Satisfiable:
		w.seen.Denied++
	default:
		w.seen.Unsatisfiable++
	}
}

// checkRetry: alone, the same cost is admitted after the wait and not 1 µs before.
func (w *walk) checkRetry(cost int64, denied algorithm.Result) error {
	if denied.Allowed || denied.RetryAfter == algorithm.MaxWait {
		return nil
	}
	w.retry = denied.RetryAfter
	state, _ := w.limit.Rebase(w.state, w.now)
	if retry := w.limit.Look(state, w.now+w.retry, cost); !retry.Allowed {
		return fmt.Errorf("denied again after the wait of %d: %+v", w.retry, retry)
	}
	if early := w.limit.Look(state, w.now+w.retry-1, cost); early.Allowed {
		return fmt.Errorf("admitted 1 µs before the wait of %d is over", w.retry)
	}
	if denied.RetryAfter == 1 {
		w.seen.JustNot++
	}
	return nil
}

func (w *walk) peek() error {
	w.seen.Peeked++
	w.note("peek")
	next, result := w.limit.Take(w.state, w.now, 0)
	if !result.Allowed || !equal(next, w.state) || !equal(w.limit.Charge(w.state, w.now, 0), w.state) {
		return fmt.Errorf("a peek answered %+v and made %+v", result, next)
	}
	return w.model.Check(w.now, 0, result)
}

func (w *walk) force() {
	w.seen.Forced++
	cost := w.pick(1, w.magnitude(maxRequests), w.magnitude(4*algorithm.MaxDebit))
	w.note("force %d onto %+v", cost, w.state)
	w.taken = append(w.taken, algorithm.LogEntry{At: w.limit.Look(w.state, w.now, 0).At, Cost: cost})
	w.state = w.limit.Charge(w.state, w.now, cost)
	w.model.Charge(w.now, cost)
}

func (w *walk) refund() error {
	if len(w.taken) == 0 {
		return nil
	}
	w.seen.Refunded++
	i := w.below(int64(len(w.taken)))
	charge := w.taken[i]
	w.taken = slices.Delete(w.taken, int(i), int(i)+1)
	charge.Cost = w.pick(charge.Cost, charge.Cost, 1+w.below(charge.Cost))
	w.note("refund %+v to %+v", charge, w.state)
	before := w.limit.Look(w.state, w.now, 0).Remaining
	w.state = w.limit.Refund(w.state, w.now, charge.At, charge.Cost)
	w.model.Refund(w.now, charge.At, charge.Cost)
	if after := w.limit.Look(w.state, w.now, 0).Remaining; after < before || after > before+charge.Cost {
		return fmt.Errorf("remaining went from %d to %d with a refund of %d", before, after, charge.Cost)
	}
	return nil
}

// batch: what remains is what equal requests can take at this instant, one by one
// or in one charge.
func (w *walk) batch() error {
	w.seen.Batches++
	remaining := w.limit.Look(w.state, w.now, 0).Remaining
	cost, n := w.pick(1, 1+w.below(remaining+1), 1+w.below(max(remaining/3, 1))), 1+w.below(6)
	w.note("batch of %d at %d each from %+v", n, cost, w.state)
	admitted := min(n, remaining/cost)
	single := w.state
	for i := range n {
		var result algorithm.Result
		single, result = w.limit.Take(single, w.now, cost)
		if result.Allowed != (i < admitted) {
			return fmt.Errorf("request %d of %d: allowed is %t, of %d remaining", i, n, result.Allowed, remaining)
		}
		if want := remaining - min(i+1, admitted)*cost; result.Remaining != want {
			return fmt.Errorf("request %d of %d: remaining is %d, want %d", i, n, result.Remaining, want)
		}
	}
	w.state = w.limit.Charge(w.state, w.now, admitted*cost)
	if !equal(single, w.state) {
		return fmt.Errorf("%d single takes make %+v, one charge %+v", admitted, single, w.state)
	}
	w.model.Charge(w.now, admitted*cost)
	return nil
}

func (w *walk) rebase() error {
	w.note("rebase %+v", w.state)
	before := w.limit.Look(w.state, w.now, 0)
	next, far := w.limit.Rebase(w.state, w.now)
	w.model.Rebase(w.now)
	if want := w.dated()-w.now > w.limit.Window; far != want {
		return fmt.Errorf("rebased is %t for a state dated %d", far, w.dated())
	}
	if far {
		w.seen.Rebased++
	} else if !equal(next, w.state) {
		return fmt.Errorf("rebase changed a state that is not far ahead to %+v", next)
	}
	w.state = next
	if after := w.limit.Look(w.state, w.now, 0); after != before {
		return fmt.Errorf("the answer was %+v before the rebase, %+v after", before, after)
	}
	return nil
}

func (w *walk) dated() int64 {
	switch w.limit.Algorithm {
	case algorithm.TokenBucket:
		return w.state.At
	case algorithm.SlidingWindowLog:
		if n := len(w.state.Log); n > 0 {
			return w.state.Log[n-1].At
		}
		return 0
	default:
		return w.state.At * w.limit.Window
	}
}

// checkForm: there is one way to write a state down, the same for every store.
func (w *walk) checkForm() error {
	s, sum := w.state, int64(0)
	for i, entry := range s.Log {
		if entry.Cost < 1 || i > 0 && entry.At <= s.Log[i-1].At {
			return fmt.Errorf("log %v", s.Log)
		}
		sum += entry.Cost
	}
	carry := s.Carry == 0
	switch w.limit.Algorithm {
	case algorithm.TokenBucket:
		carry = 0 <= s.Carry && s.Carry < w.limit.Window
	case algorithm.SlidingWindowCounter:
		carry = 0 <= s.Carry && s.Carry <= algorithm.MaxDebit
	case algorithm.SlidingWindowLog:
		if s.Used != sum || s.At != 0 {
			return fmt.Errorf("%d used at %d of %d in the log", s.Used, s.At, sum)
		}
	}
	if !carry || s.Used < 0 || s.Used > algorithm.MaxDebit {
		return fmt.Errorf("the state is out of range")
	}
	if s.Used == 0 && s.Carry == 0 && s.At != 0 {
		return fmt.Errorf("nothing weighs, and the state has a date")
	}
	return nil
}

// checkState compares the counter as it is now, and its lifetime, which is a
// millisecond longer than until the reset, rounded up.
func (w *walk) checkState() error {
	if err := w.checkForm(); err != nil {
		return err
	}
	look := w.limit.Look(w.state, w.now, 0)
	if err := w.model.Check(w.now, 0, look); err != nil {
		return err
	}
	ttl := w.limit.TTL(w.state, w.now)
	if look.ResetAfter == 0 {
		if ttl != 0 {
			return fmt.Errorf("nothing weighs and the lifetime is %d ms", ttl)
		}
		return nil
	}
	if over := ttl*1000 - look.ResetAfter; over < 1000 || over >= 2000 {
		return fmt.Errorf("the lifetime is %d ms for a reset after %d µs", ttl, look.ResetAfter)
	}
	return nil
}

func equal(a, b algorithm.State) bool {
	return a.At == b.At && a.Used == b.Used && a.Carry == b.Carry && slices.Equal(a.Log, b.Log)
}
