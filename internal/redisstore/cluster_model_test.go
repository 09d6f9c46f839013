package redisstore

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
)

// TestClusterTakesNeverAdmitTooMuch runs takes over several slots as the store does, by split and merge, against one
// exact server for each slot on a virtual clock. Messages take their time and overtake each other, some requests and
// some replies are lost, and so are many refunds. What was admitted must then be what the limits alone would have
// admitted.
func TestClusterTakesNeverAdmitTooMuch(t *testing.T) {
	losses := map[string]clusterLoss{
		"nothing lost":                       {},
		"5% of replies, 30% of refunds lost": {reply: 0.05, refund: 0.3},
		"half of everything lost":            {reply: 0.5, refund: 0.5},
	}
	schedules := 400
	if testing.Short() {
		schedules = 40
	}
	for name, loss := range losses {
		for _, a := range []algorithm.Algorithm{
			algorithm.TokenBucket, algorithm.FixedWindow, algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog,
		} {
			t.Run(fmt.Sprintf("%s/%v", name, a), func(t *testing.T) {
				first := rand.Uint64()
				var admitted, denied, lost, refunds int
				for i := range schedules {
					m := newClusterModel(first+uint64(i), loss, a)
					m.run()
					if err := m.check(); err != nil {
						t.Fatalf("seed %d: %v", first+uint64(i), err)
					}
					admitted, denied = admitted+m.admitted, denied+m.denied
					lost, refunds = lost+m.lostRefunds, refunds+m.refunds
				}
				t.Logf("%d schedules from seed %d: admitted %d, denied %d; %d of %d refunds lost", schedules, first, admitted, denied, lost, refunds)
				if admitted == 0 || denied == 0 || refunds == 0 {
					t.Error("nothing admitted, nothing denied or nothing refunded: the schedules show nothing")
				}
			})
		}
	}
}

// clusterLoss is how likely messages are lost: requests of takes and their replies together, and refunds.
type clusterLoss struct{ reply, refund float64 }

const (
	modelWindow  = 1_000_000 // µs
	modelTenants = 5
)

type clusterModel struct {
	random *rand.Rand
	loss   clusterLoss
	algo   algorithm.Algorithm

	now    int64
	events modelEvents
	order  int // of executions, over all servers

	servers   map[uint16]*memstore.Store
	histories map[enforcer.Identity][]modelCharge

	admitted, denied, refunds, lostRefunds int
}

// modelCharge is what the callers that were admitted charged to a counter, in the order in which its server ran them.
type modelCharge struct {
	order int
	at    int64
	cost  int64
	n     int64
	limit algorithm.Limit
}

func newClusterModel(seed uint64, loss clusterLoss, a algorithm.Algorithm) *clusterModel {
	return &clusterModel{
		random:    rand.New(rand.NewPCG(seed, 1)),
		loss:      loss,
		algo:      a,
		now:       1_700_000_000_000_000,
		servers:   map[uint16]*memstore.Store{},
		histories: map[enforcer.Identity][]modelCharge{},
	}
}

func (m *clusterModel) server(slot uint16) *memstore.Store {
	if m.servers[slot] == nil {
		m.servers[slot] = memstore.New(memstore.Options{MaxKeys: 1 << 16, Clock: func() int64 { return m.now }})
	}
	return m.servers[slot]
}

// counter is the one of a tenant: each has another limit.
func (m *clusterModel) counter(tenant int) enforcer.Counter {
	limit := algorithm.Limit{Algorithm: m.algo, Requests: int64(3 + 4*tenant), Window: modelWindow}
	if m.algo == algorithm.TokenBucket {
		limit.Burst = int64(2 + 3*tenant)
	}
	return enforcer.Counter{Identity: enforcer.Identity{byte(tenant)}, ID: "limit", Limit: limit, Cost: 1 + m.random.Int64N(2)}
}

func (m *clusterModel) run() {
	for range 120 {
		m.after(m.random.Int64N(5*modelWindow), m.take)
	}
	for len(m.events) > 0 {
		e := heap.Pop(&m.events).(modelEvent)
		m.now = e.at
		e.do()
	}
}

func (m *clusterModel) after(wait int64, do func()) {
	m.order++
	heap.Push(&m.events, modelEvent{m.now + wait, m.order, do})
}

// take sends one batch, waits until every part has answered or is lost, and owes what was charged too much.
func (m *clusterModel) take() {
	entries := make([]enforcer.Entry, 1+m.random.IntN(2))
	for i := range entries {
		tenants := m.random.Perm(modelTenants)[:1+m.random.IntN(3)]
		for _, tenant := range tenants {
			entries[i].Counters = append(entries[i].Counters, m.counter(tenant))
		}
		entries[i].Enforced, entries[i].N = len(tenants), 1+m.random.Int64N(3)
	}
	parts := split(entries)
	ran := make([]int, len(parts))
	open := len(parts)
	answered := func(p *part, err error) {
		p.err = err
		if open--; open == 0 {
			m.settle(entries, parts, ran)
		}
	}
	lost := errors.New("lost")
	for i, p := range parts {
		arrives, returns := m.random.Int64N(5_000), m.random.Int64N(5_000)
		request := m.random.Float64() < m.loss.reply/2
		reply := m.random.Float64() < m.loss.reply/2
		m.after(arrives, func() {
			if request {
				m.after(returns, func() { answered(p, lost) })
				return
			}
			m.order++
			ran[i] = m.order
			_, err := m.server(p.slot).Take(context.Background(), p.entries, p.answers)
			if reply {
				err = lost
			}
			m.after(returns, func() { answered(p, err) })
		})
	}
}

func (m *clusterModel) settle(entries []enforcer.Entry, parts []*part, ran []int) {
	answers := make([]enforcer.Answer, len(entries))
	for _, owed := range merge(entries, parts, answers) {
		m.refunds++
		if m.random.Float64() < m.loss.refund {
			m.lostRefunds++
			continue
		}
		m.after(m.random.Int64N(20_000), func() {
			slot := slotOf(owed.Counters[0].Identity)
			_ = m.server(slot).Refund(context.Background(), []enforcer.Refund{owed})
		})
	}
	order := map[enforcer.Identity]int{}
	for i, p := range parts {
		for _, e := range p.entries {
			for _, c := range e.Counters {
				order[c.Identity] = ran[i]
			}
		}
	}
	for i := range entries {
		m.admitted += int(answers[i].Granted)
		m.denied += int(entries[i].N - answers[i].Granted)
		for j, c := range entries[i].Counters {
			if answers[i].Granted > 0 {
				m.histories[c.Identity] = append(m.histories[c.Identity], modelCharge{
					order[c.Identity], answers[i].Results[j].At, c.Cost, answers[i].Granted, c.Limit,
				})
			}
		}
	}
}

// check replays what was admitted, and nothing else, against the limit: each of it must fit. Once all has settled, a
// server must not have more left than the replay has, and where nothing was lost and charges do not age, just as much.
func (m *clusterModel) check() error {
	for identity, history := range m.histories {
		slices.SortStableFunc(history, func(a, b modelCharge) int { return cmp.Compare(a.order, b.order) })
		var state algorithm.State
		for _, charge := range history {
			for range charge.n {
				var result algorithm.Result
				state, result = charge.limit.Take(state, charge.at, charge.cost)
				if !result.Allowed {
					return fmt.Errorf("tenant %d: a cost of %d was admitted at %d although only %d were left", identity[0], charge.cost, charge.at, result.Remaining)
				}
			}
		}
		c := enforcer.Counter{Identity: identity, ID: "limit", Limit: history[0].limit, Cost: 1}
		answers := make([]enforcer.Answer, 1)
		peek := []enforcer.Entry{{Counters: []enforcer.Counter{c}, Enforced: 1}}
		if _, err := m.server(slotOf(identity)).Take(context.Background(), peek, answers); err != nil {
			return err
		}
		left, want := answers[0].Results[0].Remaining, c.Limit.Look(state, m.now, 1).Remaining
		exact := m.loss == clusterLoss{} && (m.algo == algorithm.FixedWindow || m.algo == algorithm.SlidingWindowLog)
		if left > want || exact && left != want {
			return fmt.Errorf("tenant %d: the server has %d left, what was admitted leaves %d", identity[0], left, want)
		}
	}
	return nil
}

type modelEvent struct {
	at    int64
	order int
	do    func()
}

// modelEvents is a heap: the earliest first, then in the order in which they were sent.
type modelEvents []modelEvent

func (h modelEvents) Len() int      { return len(h) }
func (h modelEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h modelEvents) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].order, h[j].order)) < 0
}
func (h *modelEvents) Push(x any) { *h = append(*h, x.(modelEvent)) }
func (h *modelEvents) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
