package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
)

// Runner runs scenarios.
type Runner struct {
	// Stores open stores other than memory. Scenarios that name one that is not here are skipped there.
	Stores map[StoreName]OpenStore
	// Controller makes the one that tells the statuses of a workload's policies. A scenario that looks at one cannot be
	// run without.
	Controller func(w policy.Workload, owner string) Controller
}

// OpenStore gives an empty store for the counters of a namespace, on a clock in µs. A run opens one, and a further one
// whenever it loses what is in it.
type OpenStore func(ctx context.Context, namespace string, clock func() int64) (Store, error)

// Store can be told what was admitted without it, as every store of ours can.
type Store interface {
	enforcer.Store
	enforcer.Pusher
}

// Doubtful is a store whose answers may be wrong for a reason of its own, such as a server whose clock is not the
// scenario's. A run on it ends with the error that it tells.
type Doubtful interface {
	enforcer.Store
	Doubt() error
}

// Run runs a scenario on one store. An error says that it could not be run; expectations that are not met are no error.
func (r Runner) Run(ctx context.Context, s *Scenario, name StoreName) (Result, error) {
	result := Result{Scenario: s, Store: name}
	open, ok := r.Stores[name]
	switch {
	case name == Memory:
		open = openMemory
	case !ok:
		result.Skipped = fmt.Sprintf("no %s to run on was given", name)
		return result, nil
	}
	began := time.Now()
	world := newWorld(s.Start.UnixMicro() - age.Microseconds())
	backend := newBackend(world, s.losesWrites())
	backend.open = func() (Store, error) { return open(ctx, s.Workload.Namespace, backend.clock) }
	if err := backend.empty(); err != nil {
		return result, err
	}
	run := &run{
		scenario: s, world: world, backend: backend, cluster: newCluster(s, world, backend), mux: s.mux(),
		deniers: make(map[denial]string),
	}
	if s.looksAtStatus() {
		if r.Controller == nil {
			return result, errors.New("a step looks at a status, but there is no controller to tell it")
		}
		run.cluster.controller = r.Controller(s.target(), owner)
	}
	if err := run.run(ctx); err != nil {
		return result, err
	}
	result.Failures, result.Sends, result.Took = run.failures(), run.sends(), time.Since(began)
	return result, nil
}

func openMemory(_ context.Context, _ string, clock func() int64) (Store, error) {
	return memstore.New(memstore.Options{Clock: clock, MaxKeys: maxCount}), nil
}

// losesWrites says whether a step needs the journal of the store.
func (s *Scenario) losesWrites() bool {
	for _, step := range s.Steps {
		if step.Event != nil && step.Event.Store != nil && step.Event.Store.LoseWrites != nil {
			return true
		}
	}
	return false
}

// mux routes as the application would; nil where the scenario has no routes.
func (s *Scenario) mux() *http.ServeMux {
	if s.Routes == nil {
		return nil
	}
	mux := http.NewServeMux()
	if err := addRoutes(mux, s.Routes); err != nil {
		return nil // Load refuses such a scenario
	}
	return mux
}

// run is one run of a scenario.
type run struct {
	scenario *Scenario
	world    *world
	backend  *backend
	cluster  *cluster
	mux      *http.ServeMux
	turn     int // of round robin
	steps    []*outcome
	// deniers are the sources that first denied what may be denied again without asking them.
	deniers map[denial]string
}

// denial is who was denied by what.
type denial struct {
	replica      int
	policy, rule string
	request      string
}

// outcome is what came of a step.
type outcome struct {
	step int
	// sent is nil for other steps than sends.
	sent *sent
	// found are failures that were seen at once.
	found []Failure
}

func (r *run) run(ctx context.Context) error {
	r.cluster.scaleTo(Scale{Desired: *r.scenario.Workload.Replicas, Ready: *r.scenario.Workload.Replicas})
	if err := r.cluster.settle(); err != nil {
		return err
	}
	for i := range r.scenario.Steps {
		step := &r.scenario.Steps[i]
		if err := r.until(step.At); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
		if i == 0 {
			r.cluster.begin()
		}
		out := &outcome{step: i}
		r.steps = append(r.steps, out)
		if err := r.step(ctx, out, step); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
		if store, ok := r.backend.store.(Doubtful); ok && store.Doubt() != nil {
			return fmt.Errorf("steps[%d]: %w", i, store.Doubt())
		}
	}
	r.cluster.closed = true
	r.world.drain()
	return r.world.stuck
}

// until lets time pass until a moment after the start.
func (r *run) until(at Duration) error {
	r.world.advance(r.scenario.Start.UnixMicro() + time.Duration(at).Microseconds())
	if r.world.stuck != nil {
		return r.world.stuck
	}
	return r.cluster.settle()
}

// between is until for the requests of one step: where nothing happens, what replicas and controller have to tell each
// other is looked at once a second.
func (r *run) between(at Duration) error {
	r.world.advance(r.scenario.Start.UnixMicro() + time.Duration(at).Microseconds())
	if r.world.stuck != nil {
		return r.world.stuck
	}
	if r.world.now-r.cluster.settled < settleEvery.Microseconds() {
		return nil
	}
	return r.cluster.settle()
}

// settleEvery is well below the interval of polls.
const settleEvery = time.Second

func (r *run) step(ctx context.Context, out *outcome, step *Step) error {
	switch {
	case step.Send != nil:
		return r.send(ctx, out, step)
	case step.Event != nil:
		if err := r.event(ctx, out, step.Event); err != nil {
			return err
		}
		if store := step.Event.Store; store == nil || store.State == StoreUp { // a loss, the controller does not see
			r.cluster.react()
		}
		return r.cluster.settle()
	}
	return r.look(out, step.Expect)
}

func (r *run) send(ctx context.Context, out *outcome, step *Step) error {
	send := step.Send
	s := newSent(*send.Count)
	out.sent = s
	s.chargedBefore = r.backend.charges()
	var random *rand.Rand
	if send.Replica.Seed != nil {
		random = rand.New(rand.NewPCG(uint64(*send.Replica.Seed), 0))
	}
	request := r.request(send)
	who := fmt.Sprint(request)
	for i := range *send.Count {
		if i > 0 && send.Every > 0 {
			if err := r.between(step.At + Duration(i)*send.Every); err != nil {
				return err
			}
		}
		p, err := r.pick(send.Replica, random)
		if err != nil {
			s.waiting--
			out.found = append(out.found, Failure{Path: "send.replica", Expected: "a replica that serves", Got: err.Error()})
			continue
		}
		r.world.do(func() {
			decide := p.enforcer.Decide
			if send.Peek {
				decide = p.enforcer.Peek
			}
			d := decide(ctx, request)
			d.Source = r.firstSource(denial{p.index, d.Policy, d.Rule, who}, d)
			s.decided(i, d)
			if s.waiting--; s.waiting == 0 {
				s.chargedAfter = r.backend.charges()
			}
		})
	}
	return r.world.stuck
}

// firstSource is the source of a decision. A denial that a replica repeats on its own counts as by the one that denied
// first; what is denied for ever was never asked.
func (r *run) firstSource(by denial, d enforcer.Decision) string {
	switch {
	case d.Allowed:
	case d.Source != enforcer.SourceDenyCache:
		r.deniers[by] = d.Source
	case d.RetryAfter > 0 && r.deniers[by] != "":
		return r.deniers[by]
	}
	return d.Source
}

func (r *run) pick(choice ReplicaChoice, random *rand.Rand) (*pod, error) {
	index := choice.Index
	switch {
	case len(r.cluster.pods) == 0:
		return nil, fmt.Errorf("no replica serves at this time")
	case choice.RoundRobin:
		index = r.turn % len(r.cluster.pods)
		r.turn++
	case random != nil:
		index = random.IntN(len(r.cluster.pods))
	}
	if index >= len(r.cluster.pods) {
		return nil, fmt.Errorf("replica %d does not serve at this time", index)
	}
	return r.cluster.pods[index], nil
}

// request is what the application tells the library of each request of a step.
func (r *run) request(s *Send) enforcer.Request {
	request := enforcer.Request{
		Method:     s.Method,
		Route:      s.Route,
		Path:       s.Path,
		Header:     make(http.Header),
		Remote:     s.Remote,
		Attributes: make(map[string]string),
	}
	if s.Path == "" && s.Route == "" {
		request.Path = "/"
	}
	for name, lines := range s.Headers {
		name = http.CanonicalHeaderKey(name)
		if name == "Host" && len(lines) > 0 {
			request.Host = lines[0]
			continue
		}
		request.Header[name] = append(request.Header[name], lines...)
	}
	for name, value := range s.Attributes {
		request.Attributes[name] = value
	}
	if s.Cost != nil {
		for _, attribute := range r.scenario.rules().costAttributes() {
			request.Attributes[attribute] = fmt.Sprint(*s.Cost)
		}
	}
	if s.Route == "" && r.mux != nil {
		request.Route = r.route(request)
	}
	return request
}

// route asks the application's routes, as the middleware does.
func (r *run) route(request enforcer.Request) string {
	u, err := url.ParseRequestURI(request.Path)
	if err != nil {
		return ratelimit.NoRoute // Load refuses such a path
	}
	return ratelimit.MuxRoute(r.mux, &http.Request{
		Method: request.Method, URL: u, Host: request.Host, Header: request.Header, RequestURI: request.Path,
	})
}
