package skew

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/redisstore"
)

// step is one request to the counters: one of take, refund, push and reset, how a version sent it and what it understood
// of the answer. These forms are the folder's own, so that the code may change its types.
type step struct {
	At     int64     `json:"at"` // µs of the store's clock
	Take   []entry   `json:"take,omitempty"`
	Refund []refund  `json:"refund,omitempty"`
	Push   []push    `json:"push,omitempty"`
	Reset  []counter `json:"reset,omitempty"`

	Call    call     `json:"call"`
	Answers []answer `json:"answers,omitempty"`
	Pushed  []pushed `json:"pushed,omitempty"`
}

type counter struct {
	Identity  string `json:"identity"`
	ID        string `json:"id"`
	Algorithm string `json:"algorithm"`
	Requests  int64  `json:"requests"`
	Window    int64  `json:"window"`
	Burst     int64  `json:"burst,omitempty"`
	Cost      int64  `json:"cost,omitempty"`
}

type entry struct {
	Counters []counter `json:"counters"`
	Enforced int       `json:"enforced"`
	Shadow   []int     `json:"shadow,omitempty"`
	Callers  int64     `json:"callers"`
}

type refund struct {
	Counters []counter `json:"counters"`
	Callers  int64     `json:"callers"`
	Taken    int64     `json:"taken"`
}

type push struct {
	Counter counter `json:"counter"`
	Member  string  `json:"member"`
	Seq     int64   `json:"seq"`
	Since   int64   `json:"since"`
	Suspect bool    `json:"suspect,omitempty"`
	Round   int64   `json:"round,omitempty"`
	Untold  state   `json:"untold"`
	Fresh   state   `json:"fresh"`
	Used    state   `json:"used"`
}

type state struct {
	At    int64      `json:"at"`
	Used  int64      `json:"used,omitempty"`
	Carry int64      `json:"carry,omitempty"`
	Log   [][2]int64 `json:"log,omitempty"` // time and cost
}

type answer struct {
	Granted int64    `json:"granted"`
	Shadow  []int64  `json:"shadow,omitempty"`
	Results []result `json:"results"`
}

type result struct {
	Allowed     bool  `json:"allowed"`
	Satisfiable bool  `json:"satisfiable"`
	Remaining   int64 `json:"remaining"`
	RetryAfter  int64 `json:"retryAfter"`
	ResetAfter  int64 `json:"resetAfter"`
	At          int64 `json:"at"`
}

type pushed struct {
	Round int64 `json:"round"`
	Reset int64 `json:"reset"`
}

func (c counter) now(t *testing.T) enforcer.Counter {
	t.Helper()
	kind, err := algorithm.Parse(c.Algorithm)
	if err != nil {
		t.Fatal(err)
	}
	out := enforcer.Counter{
		ID: c.ID, Cost: c.Cost,
		Limit: algorithm.Limit{Algorithm: kind, Requests: c.Requests, Window: c.Window, Burst: c.Burst},
	}
	if n, err := hex.Decode(out.Identity[:], []byte(c.Identity)); err != nil || n != len(out.Identity) {
		t.Fatalf("identity %q (%v)", c.Identity, err)
	}
	return out
}

func nowAll(t *testing.T, counters []counter) []enforcer.Counter {
	t.Helper()
	var all []enforcer.Counter
	for _, c := range counters {
		all = append(all, c.now(t))
	}
	return all
}

func (s state) now() algorithm.State {
	out := algorithm.State{At: s.At, Used: s.Used, Carry: s.Carry}
	for _, e := range s.Log {
		out.Log = append(out.Log, algorithm.LogEntry{At: e[0], Cost: e[1]})
	}
	return out
}

// run takes a step with the code of today and returns what it understood.
func (s *step) run(t *testing.T, client redis.UniversalClient) (answers []answer, told []pushed) {
	t.Helper()
	store := redisstore.NewStore(redisstore.StoreOptions{
		Client: client, Table: table, Namespace: checkout.Namespace, Time: func() int64 { return s.At },
	})
	var err error
	switch {
	case s.Take != nil:
		var entries []enforcer.Entry
		for _, e := range s.Take {
			entries = append(entries, enforcer.Entry{Counters: nowAll(t, e.Counters), Enforced: e.Enforced, Shadow: e.Shadow, N: e.Callers})
		}
		got := make([]enforcer.Answer, len(entries))
		_, err = store.Take(t.Context(), entries, got)
		for _, a := range got {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			out := answer{Granted: a.Granted, Shadow: a.Shadow}
			for _, r := range a.Results {
				out.Results = append(out.Results, result(r))
			}
			answers = append(answers, out)
		}
	case s.Refund != nil:
		var refunds []enforcer.Refund
		for _, r := range s.Refund {
			refunds = append(refunds, enforcer.Refund{Counters: nowAll(t, r.Counters), N: r.Callers, Taken: r.Taken})
		}
		err = store.Refund(t.Context(), refunds)
	case s.Push != nil:
		var pushes []enforcer.Push
		for _, p := range s.Push {
			c := p.Counter.now(t)
			pushes = append(pushes, enforcer.Push{
				Identity: c.Identity, ID: c.ID, Limit: c.Limit, Member: p.Member, Seq: p.Seq, Since: p.Since,
				Suspect: p.Suspect, Round: p.Round, Untold: p.Untold.now(), Fresh: p.Fresh.now(), Used: p.Used.now(),
			})
		}
		got := make([]enforcer.Pushed, len(pushes))
		_, err = store.Push(t.Context(), pushes, got)
		for _, p := range got {
			if p.Err != nil {
				t.Fatal(p.Err)
			}
			told = append(told, pushed{Round: p.Round, Reset: p.Reset})
		}
	default:
		err = store.Reset(t.Context(), nowAll(t, s.Reset))
	}
	if err != nil {
		t.Fatal(err)
	}
	return answers, told
}

// Counters go on exactly where another version left them, in both directions: for each pattern of old and new, every
// answer is the one that the old version alone got.
func TestCountersGoOn(t *testing.T) {
	for _, c := range versions(t) {
		half := len(c.steps) / 2
		patterns := map[string]func(i int) (isNew bool){
			"old alone":             func(int) bool { return false },
			"new alone":             func(int) bool { return true },
			"new after old":         func(i int) bool { return i >= half },
			"old after new":         func(i int) bool { return i < half },
			"in turn":               func(i int) bool { return i%2 == 0 },
			"in turn, old first":    func(i int) bool { return i%2 == 1 },
			"one new among two old": func(i int) bool { return i%3 == 0 },
		}
		for name, isNew := range patterns {
			t.Run(c.name+" "+name, func(t *testing.T) {
				_, client := server(t)
				for i := range c.steps {
					s := &c.steps[i]
					if isNew(i) {
						answers, told := s.run(t, client)
						if diff := cmp.Diff(s.Answers, answers) + cmp.Diff(s.Pushed, told); diff != "" {
							t.Fatalf("step %d, new (-old alone +now):\n%s", i, diff)
						}
						continue
					}
					reply, err := c.do(t, client, s.Call)
					if err != nil {
						t.Fatalf("step %d, old: %v", i, err)
					}
					if s.Call.Reply != nil && !bytes.Equal(s.Call.Reply, []byte(fmt.Sprint(reply))) {
						t.Fatalf("step %d, old: %x, alone it was %x", i, reply, s.Call.Reply)
					}
				}
			})
		}
	}
}

// A state of a later format is no fresh budget, and is left as it is.
func TestCountersOfALaterFormatAreNotTouched(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			_, client := server(t)
			tried := 0
			for i := range c.steps {
				s := &c.steps[i]
				if len(s.Take) != 1 || len(s.Take[0].Counters) != 1 || s.Take[0].Callers == 0 {
					continue
				}
				tried++
				key := s.Call.Keys[0]
				later := "\x20" + string(make([]byte, 30))
				if err := client.Set(t.Context(), key, later, 0).Err(); err != nil {
					t.Fatal(err)
				}
				store := redisstore.NewStore(redisstore.StoreOptions{
					Client: client, Table: table, Namespace: checkout.Namespace, Time: func() int64 { return s.At },
				})
				answers := make([]enforcer.Answer, 1)
				entry := enforcer.Entry{Counters: nowAll(t, s.Take[0].Counters), Enforced: s.Take[0].Enforced, N: 1}
				if _, err := store.Take(t.Context(), []enforcer.Entry{entry}, answers); err != nil {
					t.Fatal(err)
				}
				if answers[0].Err == nil || answers[0].Granted != 0 && entry.Enforced > 0 {
					t.Errorf("step %d: %+v", i, answers[0])
				}
				if got := client.Get(t.Context(), key).Val(); got != later {
					t.Errorf("step %d: the state was written: %x", i, got)
				}
			}
			if tried < 4 {
				t.Errorf("only %d steps were tried", tried)
			}
		})
	}
}
