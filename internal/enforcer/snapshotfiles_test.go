package enforcer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// files are the snapshot files of a replica.
type files struct {
	mu            sync.Mutex
	mounted, kept []byte
	readErr       error
	keepErr       error
	keeps         int
}

func (f *files) ReadMounted() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounted, f.readErr
}

func (f *files) ReadKept() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept, nil
}

func (f *files) Keep(data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keeps++
	if f.keepErr == nil {
		f.kept = data
	}
	return f.keepErr
}

// mount changes what is mounted.
func (f *files) mount(data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounted = data
}

func snapshotOf(t testing.TB, row, replicas []byte) []byte {
	t.Helper()
	data, err := policy.EncodeSnapshot(policy.Snapshot{Row: row, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// perHour is a row of revision n that admits so many requests of a key in an hour.
func perHour(t testing.TB, n, requests int64) []byte {
	t.Helper()
	return rowOf(t, n, policyOf("p", byKey("r", fixed(requests, "1h"))))
}

// newMounted is a replica with snapshot files.
func newMounted(t *testing.T, f *files, change ...func(*enforcer.Options)) *harness {
	t.Helper()
	return newHarness(t, append([]func(*enforcer.Options){func(o *enforcer.Options) {
		o.Files, o.Workload = f, workload.String()
	}}, change...)...)
}

func withoutTable(o *enforcer.Options) { o.Table = nil }

// source is where the row in force came from, and its revision.
type source struct {
	From string
	N    int64
}

func (h *harness) source() source {
	f := h.Figures()
	return source{f.Source.String(), f.Revision.N}
}

// The newest revision is in force, wherever it was read.
func TestTheNewestOfTableAndFilesIsInForce(t *testing.T) {
	tests := map[string]struct {
		table, mounted, kept int64 // revisions, 0 for none
		want                 source
	}{
		"only the table":               {table: 1, want: source{"table", 1}},
		"only the mounted file":        {mounted: 1, want: source{"snapshot_file", 1}},
		"only what was kept":           {kept: 1, want: source{"snapshot_cache", 1}},
		"the table is ahead":           {table: 3, mounted: 2, kept: 1, want: source{"table", 3}},
		"the mounted file is ahead":    {table: 2, mounted: 3, kept: 1, want: source{"snapshot_file", 3}},
		"what was kept is ahead":       {table: 2, mounted: 1, kept: 3, want: source{"snapshot_cache", 3}},
		"all are of the same revision": {table: 2, mounted: 2, kept: 2, want: source{"snapshot_cache", 2}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := new(files)
			h := newMounted(t, f)
			if tc.table > 0 {
				h.table.set(func(tb *table) { tb.state.Row = perHour(t, tc.table, 1) })
			}
			if tc.mounted > 0 {
				f.mounted = snapshotOf(t, perHour(t, tc.mounted, 1), nil)
			}
			if tc.kept > 0 {
				f.kept = snapshotOf(t, perHour(t, tc.kept, 1), nil)
			}
			if err := h.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, h.source()); diff != "" {
				t.Errorf("in force (-want +got):\n%s", diff)
			}
		})
	}
}

// A replica that starts while the store is away enforces what is mounted.
func TestAReplicaThatStartsInAnOutageEnforces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{mounted: snapshotOf(t, perHour(t, 7, 0), countOf(t, policy.Replicas{N: 3, At: 1}))}
		h := newMounted(t, f)
		h.table.set(func(tb *table) { tb.err = errRefused })
		h.store.set(func(s *store) { s.err = errRefused })
		stop := run(t, h)
		defer stop()
		if err := h.WaitReady(t.Context()); err != nil {
			t.Error(err)
		}
		if d := h.Decide(t.Context(), as("alice")); d.Allowed || d.Policy != "p" {
			t.Errorf("got %+v, want a denial by the policy", d)
		}
		if got := h.Figures().Replicas; got != 3 {
			t.Errorf("%d replicas, want 3", got)
		}
	})
}

func TestABadFileLeavesTheLastGoodRowInForce(t *testing.T) {
	good := snapshotOf(t, perHour(t, 5, 1), countOf(t, policy.Replicas{N: 3, At: 1}))
	bad := func(row string) []byte { return []byte(`{"v":1,"row":` + row + `}`) }
	tests := map[string]struct {
		data    []byte
		err     error
		problem enforcer.SnapshotProblem
	}{
		"half of it":           {data: good[:len(good)/2], problem: enforcer.SnapshotCorrupt},
		"an empty file":        {data: []byte{}, problem: enforcer.SnapshotCorrupt},
		"a row without rules":  {data: bad(`{"v":1,"workload":"shop/apps/Deployment/checkout"}`), problem: enforcer.SnapshotCorrupt},
		"another workload's":   {data: bad(`{"v":1,"workload":"shop/apps/Deployment/cart","policies":[],"rules":[]}`), problem: enforcer.SnapshotCorrupt},
		"a bad count":          {data: snapshotOf(t, perHour(t, 6, 2), []byte(`{"v":1,"n":0}`)), problem: enforcer.SnapshotCorrupt},
		"a newer version":      {data: []byte(`{"v":2}`), problem: enforcer.SnapshotNewer},
		"a row of a newer one": {data: bad(`{"v":2,"workload":"shop/apps/Deployment/checkout"}`), problem: enforcer.SnapshotNewer},
		"it cannot be read":    {err: errors.New("permission denied"), problem: enforcer.SnapshotUnreadable},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := &files{mounted: good}
			h := newMounted(t, f, withoutTable)
			if err := h.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.mounted, f.readErr = tc.data, tc.err
			for range 2 { // each poll counts
				if err := h.Poll(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if got, want := h.source(), (source{"snapshot_file", 5}); got != want {
				t.Errorf("in force %+v, want %+v", got, want)
			}
			if got := h.Figures().Files[enforcer.FromMounted][tc.problem]; got != 2 {
				t.Errorf("%s counted %d times, want 2", tc.problem, got)
			}
			f.mounted, f.readErr = snapshotOf(t, perHour(t, 6, 1), nil), nil
			if err := h.Poll(t.Context()); err != nil {
				t.Error(err)
			}
			if got := h.source().N; got != 6 {
				t.Errorf("revision %d after the file was mended, want 6", got)
			}
		})
	}
}

// What is in force is kept as it was read, for a process after this one, and only when it is something else.
func TestWhatIsInForceIsKept(t *testing.T) {
	f := new(files)
	h := newMounted(t, f)
	row, count := perHour(t, 1, 1), countOf(t, policy.Replicas{N: 3, MembersVersion: 1, At: 1})
	h.table.set(func(tb *table) { tb.state.Row, tb.state.Replicas = row, count })
	for range 3 {
		if err := h.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(snapshotOf(t, row, count)), string(f.kept)); diff != "" || f.keeps != 1 {
		t.Errorf("kept %d times (-want +got):\n%s", f.keeps, diff)
	}

	f.keepErr = errors.New("no space left on device")
	h.table.set(func(tb *table) { tb.state.Row = perHour(t, 2, 1) })
	for range 2 {
		if err := h.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.Figures().Files[enforcer.FromKept][enforcer.SnapshotUnwritable]; got != 2 {
		t.Errorf("%d failures counted, want one at each poll", got)
	}
	f.keepErr = nil
	if err := h.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}

	next := newMounted(t, f)
	next.table.set(func(tb *table) { tb.err = errRefused })
	if err := next.Poll(t.Context()); err == nil {
		t.Error("the table was read")
	}
	if got, want := next.source(), (source{"snapshot_cache", 2}); got != want {
		t.Errorf("the next process has in force %+v, want %+v", got, want)
	}
	if got := next.Figures().Replicas; got != 3 {
		t.Errorf("the next process counts %d replicas, want 3", got)
	}
}

// The count of a snapshot is gone by while the store is away, up and down, and until the table tells something new.
func TestSharesFollowTheFileWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(files)
		h := newMounted(t, f)
		row := perHour(t, 1, 60)
		count := func(n int, at int64) []byte {
			return countOf(t, policy.Replicas{N: n, Ready: n, Desired: n, MembersVersion: 1, At: at})
		}
		poll := func(want int, what string) {
			t.Helper()
			_ = h.Poll(t.Context()) // fails while the store is away
			if got := h.Figures().Replicas; got != want {
				t.Errorf("%s: %d replicas, want %d", what, got, want)
			}
		}
		h.table.set(func(tb *table) {
			tb.state.Row, tb.state.Replicas = row, count(3, 100)
			tb.standing = enforcer.Standing{Count: 3, Version: 1, Now: time.Now().UnixMicro()}
		})
		poll(3, "with the store")
		f.mount(snapshotOf(t, row, count(2, 99)))
		poll(3, "a file that is behind")

		h.table.set(func(tb *table) { tb.err = errRefused })
		poll(3, "in the outage")
		f.mount(snapshotOf(t, row, count(10, 200)))
		poll(10, "scaled up")
		f.mount(snapshotOf(t, row, count(1, 150)))
		poll(10, "an older file in the place of a newer one")
		f.mount(snapshotOf(t, row, count(2, 300)))
		poll(2, "scaled down, below the members that lived last")

		h.table.set(func(tb *table) { tb.err, tb.standing.Count = nil, 1 })
		poll(2, "the store is back, with the count from before")
		h.table.set(func(tb *table) { tb.standing.Count = 4 })
		poll(4, "more members live than were counted")
		h.table.set(func(tb *table) { tb.standing.Count, tb.state.Replicas = 4, count(5, 400) })
		poll(5, "the controller has counted anew")
	})
}

// A fall that only the last poll before an outage could have told is not forgotten when the outage is noticed.
func TestACountThatCameJustBeforeTheOutage(t *testing.T) {
	f := new(files)
	h := newMounted(t, f)
	row := perHour(t, 1, 60)
	h.table.set(func(tb *table) {
		tb.state.Row, tb.state.Replicas = row, countOf(t, policy.Replicas{N: 10, MembersVersion: 1, At: 100})
		tb.standing = enforcer.Standing{Count: 10, Version: 1}
	})
	if err := h.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.mount(snapshotOf(t, row, countOf(t, policy.Replicas{N: 2, At: 200})))
	h.table.set(func(tb *table) { tb.err = errRefused })
	if err := h.Poll(t.Context()); err == nil {
		t.Fatal("the table was read")
	}
	if got := h.Figures().Replicas; got != 2 {
		t.Errorf("%d replicas, want 2", got)
	}
}

// Without a table nobody hears of a replica but those who count pods: under NeverExceed it has no share for 120 s after
// it has begun to decide, and then from the next window on.
func TestAReplicaWithoutATableIsCountedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exceed := byKey("r", fixed(30, "1m"))
		exceed.LocalShare = &policy.LocalShare{Rounding: policy.RoundingNeverExceed}
		f := &files{mounted: snapshotOf(t, rowOf(t, 1, policyOf("p", exceed)), countOf(t, policy.Replicas{N: 3, At: 1}))}
		h := newMounted(t, f, withoutTable)
		stop := run(t, h)
		defer stop()
		if err := h.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Minute)
		h.Decide(t.Context(), as("alice")) // the first, by the store
		advance(5 * time.Second)           // a poll finds out
		h.store.set(func(s *store) { s.err = errRefused })
		share := func() int64 { return h.Shares(as("bob"))[0].Share.Requests }
		advance(110 * time.Second)
		if got := share(); got != 0 {
			t.Errorf("a share of %d before the others know of it, want none", got)
		}
		advance(75 * time.Second)
		if got := share(); got != 10 {
			t.Errorf("a share of %d, want a third of 30", got)
		}
	})
}

func TestWithoutATableAndWithoutAFileNothingIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(files)
		h := newMounted(t, f, withoutTable)
		stop := run(t, h)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), enforcer.DefaultStartTimeout-time.Second)
		defer cancel()
		if err := h.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before StartTimeout: %v", err)
		}
		if err := h.WaitReady(t.Context()); err == nil {
			t.Error("ready without policies")
		}
		if d := h.Decide(t.Context(), as("alice")); !d.Allowed || d.Source != "FailOpen" {
			t.Errorf("got %+v, want what WhenNoPolicy says", d)
		}
		f.mount(snapshotOf(t, perHour(t, 1, 0), nil))
		advance(enforcer.DefaultPollInterval)
		synctest.Wait()
		if d := h.Decide(t.Context(), as("alice")); d.Allowed {
			t.Errorf("got %+v, want the policy that was mounted late", d)
		}
		if age := h.Figures().TableAge; age > 5 {
			t.Errorf("the file was read %v s ago", age)
		}
	})
}

// Without any store each replica has its share of every limit, also of one that fails open or closed: nothing fails.
func TestReplicasWithoutAStoreSplitTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, onFailure := range []policy.OnStoreFailure{
			policy.OnStoreFailureLocalShare, policy.OnStoreFailureFailOpen, policy.OnStoreFailureFailClosed,
		} {
			rule := byKey("r", fixed(30, "1m"))
			rule.OnStoreFailure = onFailure
			row := rowOf(t, 1, policyOf("p", rule))
			f := &files{mounted: snapshotOf(t, row, countOf(t, policy.Replicas{N: 3, At: 1}))}
			var replicas []*harness
			for range 3 {
				h := newMounted(t, f, withoutTable, func(o *enforcer.Options) { o.InProcess = true })
				if err := h.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
				replicas = append(replicas, h)
			}
			advance(2 * time.Minute) // until they have earned their shares
			total := 0
			for _, h := range replicas {
				admitted, last := h.send(40, as("alice"))
				total += admitted
				if last.Source != "LocalShare" || last.Status != 429 || last.Cause != "" {
					t.Errorf("%s: the last decision is %+v", onFailure, last)
				}
				if h.store.asked() > 0 {
					t.Errorf("%s: the store was asked", onFailure)
				}
			}
			if total != 30 {
				t.Errorf("%s: three replicas admitted %d, want 30", onFailure, total)
			}

			f.mount(snapshotOf(t, row, countOf(t, policy.Replicas{N: 1, At: 2})))
			if err := replicas[0].Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			advance(time.Minute)
			if admitted, _ := replicas[0].send(40, as("alice")); admitted != 30 {
				t.Errorf("%s: one replica that is left admitted %d, want 30", onFailure, admitted)
			}
		}
	})
}
