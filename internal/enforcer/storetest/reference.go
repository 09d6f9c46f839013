package storetest

import (
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/algorithm/model"
)

// twin is a counter as the pure functions compute it, and as the model does where it is asked.
type twin struct {
	counter enforcer.Counter
	state   algorithm.State
	model   *model.Model // nil where it would take too long
	taken   []int64      // when something was charged
	gone    int64        // when nothing weighs any more, by any limit that was used since the last write
	differs error        // pure functions and model, from each other
}

func (w *twin) setLimit(limit algorithm.Limit) {
	w.counter.Limit = limit
	if w.model != nil {
		w.model.SetLimit(limit)
	}
}

// rebase is what a store does to a state that is dated more than a window ahead of its clock.
func (w *twin) rebase(limit algorithm.Limit, now int64) {
	var far bool
	if w.state, far = limit.Rebase(w.state, now); far {
		w.wrote(limit, now)
	}
	if w.model != nil {
		w.model.Rebase(now)
	}
}

func (w *twin) charge(limit algorithm.Limit, now, cost int64) {
	w.taken = append(w.taken[max(0, len(w.taken)-5):], limit.Look(w.state, now, 0).At)
	w.state = limit.Charge(w.state, now, cost)
	w.wrote(limit, now)
	if w.model != nil {
		w.model.Charge(now, cost)
	}
}

func (w *twin) refund(now, taken, cost int64) {
	w.state = w.counter.Limit.Refund(w.state, now, taken, cost)
	w.wrote(w.counter.Limit, now)
	if w.model != nil {
		w.model.Refund(now, taken, cost)
	}
}

func (w *twin) wrote(limit algorithm.Limit, now int64) {
	w.gone = now + limit.Look(w.state, now, 0).ResetAfter
}

// outlived says whether a store may have forgotten what still weighs: the limit is slower than one that was used
// before, and by that one nothing weighs any more.
func (w *twin) outlived(now int64) bool {
	return now >= w.gone && w.counter.Limit.Look(w.state, now, 0).ResetAfter > 0
}

func (w *twin) reset() {
	w.state = algorithm.State{}
	if w.model != nil {
		w.model = model.New(w.counter.Limit)
	}
}

// look asks the pure functions, and holds them against the model.
func (w *twin) look(limit algorithm.Limit, now, cost int64) algorithm.Result {
	result := limit.Look(w.state, now, cost)
	if w.model != nil && w.differs == nil {
		if err := w.model.Check(now, cost, result); err != nil {
			w.differs = fmt.Errorf("the pure functions differ from the model: %+v at %d, cost %d: %w", limit, now, cost, err)
		}
	}
	return result
}

// answer answers an entry whose counters are the twins', one caller after the other: each is admitted if all enforced
// counters allow it, and is then charged to each shadow rule whose counters all allow it.
func answer(e enforcer.Entry, twins []*twin, now int64) enforcer.Answer {
	a := enforcer.Answer{Shadow: make([]int64, len(e.Shadow))}
	if e.N > 0 {
		for i, w := range twins {
			w.rebase(e.Counters[i].Limit, now)
		}
	}
	take := func(from, to int) bool {
		for i := from; i < to; i++ {
			if !twins[i].look(e.Counters[i].Limit, now, e.Counters[i].Cost).Allowed {
				return false
			}
		}
		for i := from; i < to; i++ {
			twins[i].charge(e.Counters[i].Limit, now, e.Counters[i].Cost)
		}
		return true
	}
	for range e.N {
		if !take(0, e.Enforced) {
			break
		}
		a.Granted++
		from := e.Enforced
		for rule, to := range e.Shadow {
			if take(from, to) {
				a.Shadow[rule]++
			}
			from = to
		}
	}
	for i, w := range twins {
		result := w.look(e.Counters[i].Limit, now, e.Counters[i].Cost)
		w.gone = min(w.gone, now+result.ResetAfter)
		a.Results = append(a.Results, result)
	}
	return a
}

// compare says how a store's answer differs from the reference's.
func compare(want, got enforcer.Answer) error {
	if got.Err != nil {
		return got.Err
	}
	if want.Granted == got.Granted && slices.Equal(want.Shadow, got.Shadow) && slices.Equal(want.Results, got.Results) {
		return nil
	}
	return fmt.Errorf("(-pure +store):\n%s", cmp.Diff(want, got, cmpopts.EquateEmpty()))
}
