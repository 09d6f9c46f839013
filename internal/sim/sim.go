// Package sim runs enforcers through random schedules of outages on a virtual clock, and checks after every step what
// they promise: scaling, restarts and crashes, a store that goes, comes back, comes back empty or as it was a while ago, replicas that are cut
// off, and messages that are late or lost. A seed gives the same run on every machine.
package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// Options is how a run differs from a right one. The zero value is right.
type Options struct {
	// Count and Spoil falsify the number of replicas and their places, and so their shares.
	Count func(n int) int
	Spoil func(enforcer.Standing) enforcer.Standing
	// Trace gets what happens, a line each.
	Trace func(line string)
}

// Report is what a run came across.
type Report struct {
	Admitted, Denied                       int
	Leased                                 int // decisions by a lease
	Local, Guarded                         int // decisions by the local share; while store and share must both admit
	Outages, Losses, Rollbacks, Cuts, Pods int
	Exact                                  int // keys whose count was compared with what was admitted
	Windows, Pushed, Suspicions            int
	Alone                                  int // windows of an outage that lasts, under NeverZero
	SharesAdded                            int // times that shares were added up
}

// Add adds another report.
func (r *Report) Add(o Report) {
	r.Admitted += o.Admitted
	r.Denied += o.Denied
	r.Leased += o.Leased
	r.Local += o.Local
	r.Guarded += o.Guarded
	r.Outages += o.Outages
	r.Losses += o.Losses
	r.Rollbacks += o.Rollbacks
	r.Cuts += o.Cuts
	r.Pods += o.Pods
	r.Exact += o.Exact
	r.Windows += o.Windows
	r.Alone += o.Alone
	r.Pushed += o.Pushed
	r.Suspicions += o.Suspicions
	r.SharesAdded += o.SharesAdded
}

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// keys is how many identities ask.
const keys = 3

// world is one run.
type world struct {
	options    Options
	clock      *clock
	schedule   schedule
	server     *server
	fleet      *fleet
	controller *controller
	book       *book
	report     Report
	mended     bool // no faults any more
}

// Run runs the schedule of a seed. The error says what broke a promise, and when.
func Run(seed uint64, options Options) (Report, error) {
	random := rand.New(rand.NewPCG(seed, 0x57656972)) //nolint:gosec // to be replayed
	w := &world{options: options, schedule: newSchedule(seed, random)}
	w.clock = newClock(1_700_000_000_000_000/w.schedule.window*w.schedule.window+random.Int64N(w.schedule.window), random)
	w.clock.yields = w.schedule.yields
	w.server = newServer(w.clock)
	w.fleet = &fleet{world: w}
	w.controller = &controller{world: w, row: must(policy.EncodeRow(w.schedule.row()))}
	w.book = newBook(w)
	w.controller.resync()
	w.fleet.scale(1 + random.IntN(4))
	err := w.play()
	for _, p := range append(w.fleet.pods, w.fleet.gone...) {
		if p.enforcer != nil {
			figures := p.enforcer.Figures()
			w.report.Pushed += int(figures.Pushed)         //nolint:gosec // few
			w.report.Suspicions += int(figures.Suspicions) //nolint:gosec // few
		}
	}
	w.report.Pods = w.fleet.made
	if err != nil {
		return w.report, fmt.Errorf("seed %d, %v after %s (%v): %w", seed, w.elapsed(), w.book.last, w.schedule, err)
	}
	return w.report, nil
}

func (w *world) elapsed() time.Duration {
	return time.Duration(w.clock.now-w.book.began) * time.Microsecond
}

func (w *world) trace(format string, values ...any) {
	w.book.last = fmt.Sprintf(format, values...)
	if w.options.Trace != nil {
		w.options.Trace(fmt.Sprintf("%12v  %s", w.elapsed(), w.book.last))
	}
}

// between draws a time.
func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.clock.random.Int64N(int64(to-from)+1))
}

func (w *world) pass(d time.Duration) { w.clock.pass(w.clock.now + d.Microseconds()) }

func request(key int) enforcer.Request {
	return enforcer.Request{
		Method: http.MethodPost, Path: "/", Header: http.Header{"X-Api-Key": {string(rune('a' + key))}}, Remote: "203.0.113.7:1",
	}
}

// send lets pods decide about requests of one key, all at once if together.
func (w *world) send(p *pod, key, n int) {
	for range n {
		w.clock.run(func() {
			d := p.enforcer.Decide(context.Background(), request(key))
			w.book.decided(p, key, d)
		})
	}
}
