package enforcer_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

var workload = policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// store is a shared store whose answers a test can delay, fail and count. Each delay and failure is that of the moment
// in which a take begins.
type store struct {
	counters *memstore.Store

	mu      sync.Mutex
	delay   time.Duration
	err     error
	silent  bool // no answer until the caller's context ends
	takes   int
	entries []int // of each take
	refunds []enforcer.Refund
	pushes  int
}

func newStore() *store {
	return &store{counters: memstore.New(memstore.Options{Clock: func() int64 { return time.Now().UnixMicro() }})}
}

func (s *store) set(change func(*store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// asked counts the takes.
func (s *store) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takes
}

func (s *store) Take(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	s.mu.Lock()
	delay, err, silent := s.delay, s.err, s.silent
	s.takes++
	s.entries = append(s.entries, len(entries))
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	// A real store charges when it is asked and answers later.
	now, err := s.counters.Take(ctx, entries, answers)
	wait := (<-chan time.Time)(nil)
	switch {
	case silent:
	case delay == 0: // not by a timer: under the race detector Go 1.26 crashes when several goroutines of a bubble find one due
		return now, err
	default:
		wait = time.After(delay)
	}
	select {
	case <-wait:
		return now, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *store) Refund(ctx context.Context, refunds []enforcer.Refund) error {
	s.mu.Lock()
	s.refunds = append(s.refunds, refunds...)
	s.mu.Unlock()
	return s.counters.Refund(ctx, refunds)
}

func (s *store) Reset(ctx context.Context, counters []enforcer.Counter) error {
	return s.counters.Reset(ctx, counters)
}

// table is a policy table that a test writes to.
type table struct {
	mu       sync.Mutex
	state    enforcer.TableState
	standing enforcer.Standing
	err      error
	reports  []policy.Report
	denied   []policy.DeniedReport
	asked    int
	left     []string
	hint     func()
}

func (t *table) Read(context.Context) (enforcer.TableState, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state, t.err
}

func (t *table) Heartbeat(_ context.Context, r policy.Report, _ time.Duration) (enforcer.Standing, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reports = append(t.reports, r)
	return t.standing, t.err
}

func (t *table) ReportDenied(_ context.Context, _ string, r policy.DeniedReport, _ time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.denied = append(t.denied, r)
	return t.err
}

func (t *table) Leave(_ context.Context, member string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = append(t.left, member)
	return nil
}

func (t *table) Listen(ctx context.Context, hint func()) error {
	t.mu.Lock()
	t.hint = hint
	t.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (t *table) AskForRow(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	return nil
}

func (t *table) set(change func(*table)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(t)
}

// advance lets the time of a bubble pass.
func advance(d time.Duration) { <-time.After(d) }

// harness is one replica with a store and a table.
type harness struct {
	*enforcer.Enforcer
	t     *testing.T
	store *store
	table *table
	n     int64
}

func newHarness(t *testing.T, change ...func(*enforcer.Options)) *harness {
	t.Helper()
	h := &harness{t: t, store: newStore(), table: &table{state: enforcer.TableState{
		Owner: "test", Replicas: countOf(t, policy.Replicas{N: 1, Desired: 1, IdleSince: 1}),
	}}}
	o := enforcer.Options{
		Store: h.store, Table: h.table, Pod: "checkout-1", Library: "test",
		Local: memstore.New(memstore.Options{Clock: func() int64 { return 0 }}),
	}
	for _, c := range change {
		c(&o)
	}
	h.Enforcer = enforcer.New(o)
	return h
}

// apply publishes policies and reads them.
func (h *harness) apply(policies ...policy.Policy) {
	h.t.Helper()
	h.n++
	row := rowOf(h.t, h.n, policies...)
	h.table.set(func(t *table) { t.state.Row = row })
	if err := h.Poll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// countOf encodes a count. One with IdleSince says that nobody ran before, so that new processes have whole shares.
func countOf(t testing.TB, r policy.Replicas) []byte {
	t.Helper()
	r.Version = policy.RowVersion
	data, err := policy.EncodeReplicas(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// replicas publishes a count and this replica's place.
func (h *harness) replicas(n, rank int) {
	h.t.Helper()
	data := countOf(h.t, policy.Replicas{N: n, Ready: n, Desired: n, MembersVersion: 1})
	h.table.set(func(t *table) {
		t.state.Replicas = data
		t.standing = enforcer.Standing{Rank: rank, Count: n, Version: 1, Now: time.Now().UnixMicro()}
	})
	if err := h.Poll(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func rowOf(t testing.TB, n int64, policies ...policy.Policy) []byte {
	t.Helper()
	row, verdicts := policy.Compile(workload, "test", policies)
	for _, v := range verdicts {
		if !v.Accepted() {
			t.Fatalf("policy %s refused: %s", v.Name, v.Message)
		}
	}
	row.Revision = policy.Revision{Epoch: "1", N: n}
	data, err := policy.EncodeRow(row)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func policyOf(name string, rules ...policy.Rule) policy.Policy {
	return policy.Policy{
		Metadata: policy.Metadata{Namespace: workload.Namespace, Name: name, UID: name, Generation: 1},
		Spec:     policy.Spec{TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"}, Rules: rules},
	}
}

// byKey is a rule that counts by the header X-Api-Key.
func byKey(name string, limits ...policy.Limit) policy.Rule {
	return policy.Rule{Name: name, Key: []policy.KeyPart{{Header: "X-Api-Key"}}, Limits: limits}
}

func fixed(requests int64, window string) policy.Limit {
	return policy.Limit{Requests: &requests, Window: window, Algorithm: policy.FixedWindow}
}

func bucket(requests int64, window string) policy.Limit {
	return policy.Limit{Requests: &requests, Window: window, Algorithm: policy.TokenBucket}
}

func as(key string) enforcer.Request {
	return enforcer.Request{Method: "POST", Path: "/exports", Header: http.Header{"X-Api-Key": {key}}, Remote: "203.0.113.7:1"}
}

// send decides n times, one after the other.
func (h *harness) send(n int, r enforcer.Request) (admitted int, last enforcer.Decision) {
	for range n {
		last = h.Decide(h.t.Context(), r)
		if last.Allowed {
			admitted++
		}
	}
	return admitted, last
}

// sendAll decides n times at once.
func (h *harness) sendAll(n int, r enforcer.Request) (admitted int) {
	var count atomic.Int64
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			if h.Decide(h.t.Context(), r).Allowed {
				count.Add(1)
			}
		})
	}
	group.Wait()
	return int(count.Load())
}

var errRefused = &enforcer.StoreError{Reason: enforcer.ReasonRefused, Err: errors.New("connection refused")}

// counter is the one that the first limit of a policy "p" with one rule "r" by X-Api-Key counts a key with.
func (h *harness) counter(key string, requests int64) enforcer.Counter {
	h.t.Helper()
	return enforcer.Counter{
		Identity: enforcer.IdentityOf(h.Enforcer, as(key)),
		ID:       policy.LimitID(workload, "p", "r", policy.FixedWindow, time.Hour.Microseconds()),
		Limit:    algorithm.Limit{Algorithm: algorithm.FixedWindow, Requests: requests, Window: time.Hour.Microseconds()},
		Cost:     1,
	}
}
