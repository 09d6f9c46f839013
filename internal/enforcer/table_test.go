package enforcer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// Nothing but a good row of a higher revision ever replaces the row in force (B61).
func TestLastGoodRowStays(t *testing.T) {
	good := rowOf(t, 5, policyOf("p", byKey("r", fixed(1, "1h"))))
	edit := func(from, to string) []byte {
		edited := bytes.Replace(good, []byte(from), []byte(to), 1)
		if bytes.Equal(edited, good) {
			t.Fatalf("the row has no %s: %s", from, good)
		}
		return edited
	}
	tests := map[string]struct {
		row     []byte
		problem enforcer.RowProblem
	}{
		"broken JSON":            {good[:len(good)/2], enforcer.RowCorrupt},
		"nothing at all":         {[]byte{}, enforcer.RowCorrupt},
		"null":                   {[]byte("null"), enforcer.RowCorrupt},
		"an unknown algorithm":   {edit(`"FixedWindow"`, `"Foo"`), enforcer.RowCorrupt},
		"a limit that is null":   {edit(`"requests":1`, `"requests":null`), enforcer.RowCorrupt},
		"a window that is empty": {edit(`"window":3600000000`, `"window":""`), enforcer.RowCorrupt},
		"no window":              {edit(`"window":3600000000`, `"window":0`), enforcer.RowCorrupt},
		"a newer version":        {edit(`"v":1`, `"v":2`), enforcer.RowNewer},
		"ten megabytes":          {bytes.Repeat([]byte(" "), 10<<20), enforcer.RowCorrupt},
		"a lower revision":       {rowOf(t, 4), enforcer.RowOlder},
		"no row":                 {nil, enforcer.RowMissing},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				h := newHarness(t, func(o *enforcer.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
				h.table.set(func(tb *table) { tb.state.Row = good })
				if err := h.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
				h.table.set(func(tb *table) { tb.state.Row = tc.row })
				for range 3 {
					if err := h.Poll(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if admitted, last := h.send(3, as("alice")); admitted != 1 || last.Rule != "r" {
					t.Errorf("admitted %d by %q, want 1 by the last good row", admitted, last.Rule)
				}
				f := h.Figures()
				if f.Revision.N != 5 || f.Problems[tc.problem] != 3 {
					t.Errorf("revision %v, problems %v, want 5 and 3 %v", f.Revision, f.Problems, tc.problem)
				}
				if got := strings.Count(log.String(), "Row not taken"); tc.problem != enforcer.RowMissing && got != 1 {
					t.Errorf("logged %d times, want once:\n%s", got, log.String())
				}
				h.table.set(func(tb *table) {
					if tc.problem == enforcer.RowMissing && tb.asked != 3 {
						t.Errorf("asked %d times for the missing row, want at each poll", tb.asked)
					}
				})
				// A good row afterwards is taken.
				h.table.set(func(tb *table) { tb.state.Row = rowOf(t, 6, policyOf("p", byKey("r", fixed(3, "1h")))) })
				if err := h.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
				if admitted, _ := h.send(5, as("alice")); admitted != 2 {
					t.Errorf("admitted %d more after the limit rose from 1 to 3, want 2", admitted)
				}
			})
		})
	}
}

// A rule that needs what this library does not know is skipped and counted; the others are enforced.
func TestUnknownNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		row := rowOf(t, 1, policyOf("p", byKey("future", fixed(0, "1h")), byKey("r", fixed(2, "1h"))))
		row = bytes.Replace(row, []byte(`"name":"future",`), []byte(`"name":"future","needs":["telepathy"],"limits":{"by":"thought"},`), 1)
		h.table.set(func(tb *table) { tb.state.Row = row })
		if err := h.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if admitted, last := h.send(3, as("alice")); admitted != 2 || last.Rule != "r" {
			t.Errorf("admitted %d by %q, want 2 by r", admitted, last.Rule)
		}
		if f := h.Figures(); f.Skipped != 1 {
			t.Errorf("%d rules skipped, want 1", f.Skipped)
		}
		h.table.set(func(tb *table) {
			if last := tb.reports[len(tb.reports)-1]; last.Skipped != 1 || last.Revision.N != 1 {
				t.Errorf("reported %+v", last)
			}
		})
	})
}

func TestTombstoneLiftsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.send(2, as("alice"))
		h.apply()
		if d := h.Decide(t.Context(), as("alice")); !d.Allowed || d.Source != "NoRule" {
			t.Errorf("after the last policy went: %+v", d)
		}
		// Deleted and created again, the policy has its counters.
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		if d := h.Decide(t.Context(), as("alice")); d.Allowed {
			t.Error("a policy that was deleted and created again starts with fresh counters")
		}
	})
}

func TestWithoutPolicies(t *testing.T) {
	tests := map[string]struct {
		closed bool
		read   bool
		want   outcome
	}{
		"open, never read":          {false, false, outcome{true, 200, "", "FailOpen"}},
		"open, read without a row":  {false, true, outcome{true, 200, "", "NoRule"}},
		"closed, never read":        {true, false, outcome{false, 503, "", "FailClosed"}},
		"closed, read without rows": {true, true, outcome{false, 503, "", "FailClosed"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(o *enforcer.Options) { o.ClosedWithoutPolicy = tc.closed })
			if tc.read {
				if err := h.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := outcomeOf(h.Decide(t.Context(), as("alice"))); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

// run starts Run in the bubble and returns what ends it.
func run(t *testing.T, h *harness) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.table.set(func(tb *table) { tb.state.Row = rowOf(t, 1, policyOf("p", byKey("r", fixed(1, "1h")))) })
		stop := run(t, h)
		if err := h.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A poll finds a new row within the interval.
		h.table.set(func(tb *table) { tb.state.Row = rowOf(t, 2, policyOf("p", byKey("r", fixed(2, "1h")))) })
		advance(enforcer.DefaultPollInterval)
		synctest.Wait()
		if got := h.Figures().Revision.N; got != 2 {
			t.Errorf("revision %d after a poll interval, want 2", got)
		}
		// A hint brings it within 50 ms, and the report of it with it.
		h.table.set(func(tb *table) {
			tb.state.Row = rowOf(t, 3)
			tb.hint()
			tb.hint()
		})
		advance(50 * time.Millisecond)
		synctest.Wait()
		h.table.set(func(tb *table) {
			if last := tb.reports[len(tb.reports)-1]; last.Revision.N != 3 || last.Pod != "checkout-1" || last.Library != "test" {
				t.Errorf("50 ms after a hint the last report is %+v, want revision 3", last)
			}
		})
		stop()
		h.table.set(func(tb *table) {
			if len(tb.left) != 1 || !strings.HasPrefix(tb.left[0], "checkout-1/") || tb.left[0] != tb.reports[0].Member {
				t.Errorf("left %v", tb.left)
			}
		})
		// After Run decisions go on.
		if d := h.Decide(t.Context(), as("alice")); !d.Allowed || d.Source != "NoRule" {
			t.Errorf("after Run: %+v", d)
		}
	})
}

// herdTable notes when it is read.
type herdTable struct {
	*table
	mu    sync.Mutex
	reads []time.Time
}

func (h *herdTable) Read(ctx context.Context) (enforcer.TableState, error) {
	h.mu.Lock()
	h.reads = append(h.reads, time.Now())
	h.mu.Unlock()
	return h.table.Read(ctx)
}

// between counts the reads of a span of time since the start.
func (h *herdTable) between(start time.Time, from, to time.Duration) (count int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, read := range h.reads {
		if since := read.Sub(start); since >= from && since < to {
			count++
		}
	}
	return count
}

// B61: replicas that all start at once do not read the table at once, and while it fails they ask less and less often.
func TestAHerdReadsSpreadAndBacksOff(t *testing.T) {
	const replicas = 200
	synctest.Test(t, func(t *testing.T) {
		down := &herdTable{table: &table{err: errors.New("down")}}
		start := time.Now()
		for range replicas {
			stop := run(t, newHarness(t, func(o *enforcer.Options) { o.Table = down }))
			defer stop()
		}
		advance(time.Minute)
		synctest.Wait()
		const slice = 10 * time.Millisecond
		for from := time.Duration(0); from < time.Second; from += slice {
			if got := down.between(start, from, from+slice); got > replicas/2 {
				t.Errorf("%d of %d replicas read within %v after %v", got, replicas, slice, from)
			}
		}
		if got := down.between(start, 0, time.Second); got < replicas || got > 6*replicas {
			t.Errorf("%d reads in the first second, want each replica to try again, but not on and on", got)
		}
		// The longest wait is a quarter of StartTimeout, 1.25 s, of which the upper half is drawn.
		if got := down.between(start, 30*time.Second, 40*time.Second); got > 20*replicas {
			t.Errorf("%d reads in ten seconds of an outage, want at most 20 of each of %d replicas", got, replicas)
		}
		down.set(func(tb *table) { tb.err = nil })
		advance(enforcer.DefaultPollInterval)
		synctest.Wait()
		down.set(func(tb *table) {
			members := map[string]bool{}
			for _, report := range tb.reports {
				members[report.Member] = true
			}
			if len(members) != replicas {
				t.Errorf("%d of %d replicas are back within a poll interval", len(members), replicas)
			}
		})
	})
}

func TestMembersAreDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newHarness(t), newHarness(t)
		a.apply()
		b.apply()
		if a.table.reports[0].Member == b.table.reports[0].Member {
			t.Error("two limiters in one pod are one member")
		}
	})
}

func TestWaitReady(t *testing.T) {
	errDown := errors.New("down")
	tests := map[string]struct {
		table  *table
		row    time.Duration // when a row appears, 0 for never
		within time.Duration
		err    string
	}{
		"a row is there":                             {&table{state: enforcer.TableState{Owner: "test"}}, time.Nanosecond, time.Second, ""},
		"a row comes on being asked for":             {&table{state: enforcer.TableState{Owner: "test"}}, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"nobody limits this workload":                {&table{state: enforcer.TableState{Owner: "test"}}, 0, 3 * time.Second, ""},
		"the store is down":                          {&table{err: errDown}, 0, 7 * time.Second, "down"},
		"no controller ever wrote to the table":      {&table{}, 0, 7 * time.Second, "no controller ever wrote"},
		"a row comes although nobody owns the table": {&table{}, 2 * time.Second, 4 * time.Second, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, func(o *enforcer.Options) { o.Table = tc.table })
				stop := run(t, h)
				defer stop()
				if tc.row > 0 {
					time.AfterFunc(tc.row, func() { tc.table.set(func(tb *table) { tb.state.Row = rowOf(t, 1) }) })
				}
				start := time.Now()
				err := h.WaitReady(t.Context())
				if took := time.Since(start); took > tc.within {
					t.Errorf("ready after %v, want %v", took, tc.within)
				}
				if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
			})
		})
	}
}

func TestWaitReadyEndsWithItsContext(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.WaitReady(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// While the table cannot be read, the policies stay, and its age tells.
func TestTableOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHarness(t, func(o *enforcer.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		stop := run(t, h)
		synctest.Wait()
		h.table.set(func(tb *table) { tb.err = errors.New("down") })
		advance(time.Minute)
		synctest.Wait()
		f := h.Figures()
		if f.TableAge < 55 || f.FailedPolls == 0 || f.Revision.N != 1 {
			t.Errorf("age %g s, %d failed polls, revision %v", f.TableAge, f.FailedPolls, f.Revision)
		}
		h.table.set(func(tb *table) { tb.err = nil })
		advance(2 * enforcer.DefaultPollInterval)
		synctest.Wait()
		if f := h.Figures(); f.TableAge > 5 {
			t.Errorf("age %g s after it is back", f.TableAge)
		}
		stop()
		if got := strings.Count(log.String(), "Cannot read the policies"); got != 1 {
			t.Errorf("logged %d times, want once:\n%s", got, log.String())
		}
	})
}

func TestForeignTableIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHarness(t, func(o *enforcer.Options) {
			o.Logger, o.Table = slog.New(slog.NewTextHandler(&log, nil)), new(table)
		})
		for range 3 {
			if err := h.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if h.Figures().Owned {
			t.Error("a table without an owner counts as owned")
		}
		if got := strings.Count(log.String(), "No controller ever wrote"); got != 1 {
			t.Errorf("logged %d times, want once", got)
		}
	})
}

// Counts of a rule go on over revisions, and end with the rule.
func TestCountsFollowTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.apply(policyOf("p", byKey("r", fixed(9, "1h")), byKey("s", fixed(9, "1h"))))
		h.send(2, as("alice"))
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		h.send(1, as("alice"))
		rules := h.Figures().Rules
		if len(rules) != 1 || rules[0].Decisions[enforcer.StoreAdmitted] != 2 || rules[0].Decisions[enforcer.StoreDenied] != 1 {
			t.Errorf("%+v, want 2 admitted and 1 denied by r alone", rules)
		}
	})
}

// What befalls policies that are kept apart from the store says nothing of the store.
func TestPoliciesKeptApartAreNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHarness(t, func(o *enforcer.Options) {
			o.TableApart, o.Logger = true, slog.New(slog.NewTextHandler(&log, nil))
		})
		h.apply(policyOf("p", byKey("r", fixed(1, "1h"))))
		stop := run(t, h)
		synctest.Wait()
		for _, mistake := range []string{"policy.yaml:8: a typo", "policy.yaml:9: another one"} {
			h.table.set(func(tb *table) { tb.err = errors.New(mistake) })
			advance(time.Minute)
		}
		h.table.set(func(tb *table) { tb.err = nil })
		advance(2 * enforcer.DefaultPollInterval)
		synctest.Wait()
		if f := h.Figures(); f.Suspicions != 0 || f.FailedPolls == 0 {
			t.Errorf("%d suspicions of the store after %d failed polls", f.Suspicions, f.FailedPolls)
		}
		stop()
		for text, want := range map[string]int{"policy.yaml:8: a typo": 1, "policy.yaml:9: another one": 1, "Reads the policies again": 1} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, &log)
			}
		}
	})
}
