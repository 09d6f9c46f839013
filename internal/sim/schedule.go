package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// maxReplicas is how many replicas are asked for at most.
const maxReplicas = 5

// schedule is what is drawn before a run.
type schedule struct {
	algorithm policy.Algorithm
	rounding  policy.Rounding
	requests  int64
	window    int64 // µs
	lease     int64 // tokens, 0 for none
	steps     int
	// prompt: a caller may ask the store on his own goroutine. yields: who is answered goes on before the next batch
	// leaves; a real process does the one or the other.
	prompt, yields bool
	// What may happen beside an outage of the store.
	lossy, slow, cuts, scaling, crashes, emptied, rolledBack bool
}

func newSchedule(seed uint64, r *rand.Rand) schedule {
	some := func(n int) bool { return r.IntN(n) == 0 }
	s := schedule{
		algorithm: []policy.Algorithm{
			policy.FixedWindow, policy.FixedWindow, policy.TokenBucket, policy.SlidingWindowLog, policy.SlidingWindowCounter,
		}[r.IntN(5)],
		rounding: []policy.Rounding{policy.RoundingNeverExceed, policy.RoundingNeverZero}[r.IntN(2)],
		requests: []int64{1, 3, 10, 30}[r.IntN(4)],
		window:   []int64{5, 20, 60}[r.IntN(3)] * 1_000_000,
		steps:    20 + r.IntN(30),
		prompt:   seed%2 == 0, yields: seed%4 < 2,
		lossy: some(5), slow: some(5), cuts: some(4), scaling: !some(3), crashes: some(3), emptied: some(2), rolledBack: some(3),
	}
	if s.algorithm != policy.SlidingWindowLog && some(3) {
		s.lease, s.requests = 10, []int64{30, 100}[r.IntN(2)]
	}
	return s
}

func (s schedule) String() string {
	return fmt.Sprintf("%s of %d in %v, lease %d, %s, prompt %t, yields %t, lossy %t, slow %t, cuts %t, scaling %t, crashes %t, emptied %t, rolled back %t",
		s.algorithm, s.requests, time.Duration(s.window)*time.Microsecond, s.lease, s.rounding, s.prompt, s.yields,
		s.lossy, s.slow, s.cuts, s.scaling, s.crashes, s.emptied, s.rolledBack)
}

// row is the one policy of a run, compiled.
func (s schedule) row() policy.Row {
	var lease *policy.Lease
	if s.lease > 0 {
		lease = &policy.Lease{Tokens: s.lease}
	}
	row, verdicts := policy.Compile(workload, "sim", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: workload.Namespace, Name: "p", UID: "uid", Generation: 1},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: workload.Group, Kind: workload.Kind, Name: workload.Name},
			Rules: []policy.Rule{{
				Name:       "r",
				Key:        []policy.KeyPart{{Header: "X-Api-Key"}},
				Limits:     []policy.Limit{{Requests: &s.requests, Window: fmt.Sprintf("%ds", s.window/1_000_000), Algorithm: s.algorithm}},
				LocalShare: &policy.LocalShare{Rounding: s.rounding},
				Lease:      lease,
			}},
		},
	}})
	if !verdicts[0].Accepted() {
		panic(verdicts[0].Message) // the policy is the simulation's own
	}
	row.Revision = policy.Revision{Epoch: "1", N: 1}
	return row
}

// play runs the schedule: a quiet start, faults at random, and an end at which everything must be well again.
func (w *world) play() error {
	r := w.clock.random
	w.pass(8 * time.Second)
	for range w.schedule.steps {
		w.pass(w.between(0, 1500*time.Millisecond))
		w.fault()
		if err := w.load(); err != nil {
			return err
		}
		if r.IntN(6) == 0 {
			w.pass(w.between(0, 15*time.Second))
		}
	}
	w.mend()
	w.pass(25 * time.Second) // the longest interval of probes, a push, and the rounds
	for range 8 {
		if err := w.load(); err != nil {
			return err
		}
		w.pass(time.Second)
	}
	w.pass(3 * time.Second)
	return w.book.settled()
}

// fault does one of the things that go wrong or change.
func (w *world) fault() {
	r, s := w.clock.random, &w.schedule
	switch r.IntN(14) {
	case 0, 1:
		if w.server.up {
			w.server.stop()
			w.book.faulty()
			w.report.Outages++
			w.trace("store down")
		}
	case 2, 3, 4:
		if !w.server.up {
			with := everything
			switch {
			case s.emptied && r.IntN(2) == 0:
				with = nothing
				w.report.Losses++
			case s.rolledBack && w.server.saved != nil && r.IntN(2) == 0:
				with = older
				w.report.Rollbacks++
			}
			w.server.start(with)
			w.controller.changed()
			w.book.faulty()
			w.trace("store up, remembers %s", with)
		}
	case 5:
		if s.scaling {
			n := 1 + r.IntN(maxReplicas)
			w.fleet.scale(n)
			w.trace("scale to %d", n)
		}
	case 6:
		if pods := w.fleet.serving(); s.crashes && len(pods) > 0 {
			p := pods[r.IntN(len(pods))]
			w.fleet.crash(p)
			w.trace("%s crashes", p.name)
		}
	case 7:
		if pods := w.fleet.serving(); s.cuts && len(pods) > 0 {
			p := pods[r.IntN(len(pods))]
			p.link.cut = !p.link.cut
			w.book.faulty()
			w.book.cut = true
			w.report.Cuts++
			w.trace("%s cut off: %t", p.name, p.link.cut)
		}
	case 9:
		if s.rolledBack && w.server.up {
			w.server.save()
			w.trace("store saved")
		}
	case 8:
		w.controller.paused = r.IntN(2) == 0
		w.trace("controller paused: %t", w.controller.paused)
	}
}

// mend ends all faults.
func (w *world) mend() {
	w.mended = true
	if !w.server.up {
		w.server.start(everything)
	}
	w.controller.paused = false
	w.controller.changed()
	for _, p := range w.fleet.pods {
		if p.link != nil {
			p.link.cut, p.link.slow, p.link.lossy = false, false, false
		}
	}
	w.book.faulty()
	w.trace("all mended")
}

// load sends a few requests, away from the end of a window, and checks what came of them.
func (w *world) load() error {
	const edge = 60_000 // µs: longer than a decision takes, with everything late
	if left := w.schedule.window - w.clock.now%w.schedule.window; left < edge {
		w.clock.pass(w.clock.now + left + 1000)
	}
	r := w.clock.random
	pods := w.fleet.serving()
	for range 1 + r.IntN(3) {
		if len(pods) == 0 {
			break
		}
		w.send(pods[r.IntN(len(pods))], r.IntN(keys), 1+r.IntN(6))
	}
	w.pass(40 * time.Millisecond) // late answers
	return w.book.check()
}
