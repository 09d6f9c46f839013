package sim

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
)

var (
	schedules = flag.Int("schedules", 10_000, "random schedules to run")
	from      = flag.Uint64("from", 1, "seed of the first schedule")
)

// runMany runs schedules of consecutive seeds, and returns the first seed that failed.
func runMany(first uint64, n int, options Options) (total Report, failed uint64, err error) {
	var next atomic.Int64
	var mu sync.Mutex
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				seed := first + uint64(i)
				report, failure := Run(seed, options)
				mu.Lock()
				total.Add(report)
				if failure != nil && (err == nil || seed < failed) {
					failed, err = seed, failure
					next.Store(int64(n))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return total, failed, err
}

// WEIR_SEED=n replays one schedule and prints what happens in it.
func TestSchedules(t *testing.T) {
	if text := os.Getenv("WEIR_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("reading WEIR_SEED: %v", err)
		}
		report, err := Run(seed, Options{Trace: func(line string) { t.Log(line) }})
		t.Logf("%+v", report)
		if err != nil {
			t.Error(err)
		}
		return
	}
	n := *schedules
	if testing.Short() || underRace { // make test runs all of them without the race detector, too
		n = min(n, 300)
	}
	report, failed, err := runMany(*from, n, Options{})
	t.Logf("%d schedules from seed %d: %+v", n, *from, report)
	if err != nil {
		t.Errorf("replay with WEIR_SEED=%d: %v", failed, err)
	}
	for what, n := range map[string]int{
		"outages": report.Outages, "losses": report.Losses, "rollbacks": report.Rollbacks, "cuts": report.Cuts, "decisions by local shares": report.Local, "decisions by leases": report.Leased,
		"decisions while store and share must both admit": report.Guarded, "exact counts": report.Exact, "windows": report.Windows,
		"sums of shares": report.SharesAdded, "pushes": report.Pushed,
	} {
		if n == 0 {
			t.Errorf("no %s at all", what)
		}
	}
	if n >= 1000 && report.Alone == 0 {
		t.Error("no windows of a lasting outage at all")
	}
}

func TestASeedGivesOneRun(t *testing.T) {
	for seed := range uint64(20) {
		first, errFirst := Run(seed, Options{})
		second, errSecond := Run(seed, Options{})
		if first != second || (errFirst == nil) != (errSecond == nil) {
			t.Errorf("seed %d: %+v, and then %+v", seed, first, second)
		}
	}
}

// Shares that are wrong are caught, and the seed says how to see it again.
func TestWrongSharesAreCaught(t *testing.T) {
	for name, options := range map[string]Options{
		"one replica too few is counted": {
			Count: func(n int) int { return n - 1 },
			Spoil: func(s enforcer.Standing) enforcer.Standing { s.Count--; return s },
		},
		"every replica takes the remainder": {
			Spoil: func(s enforcer.Standing) enforcer.Standing { s.Rank = 0; return s },
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, seed, err := runMany(1, 300, options)
			if err == nil {
				t.Fatal("300 schedules without a violation")
			}
			t.Logf("caught with seed %d: %v", seed, err)
			if _, again := Run(seed, options); again == nil || again.Error() != err.Error() {
				t.Errorf("the seed does not show it again: %v", again)
			}
		})
	}
}
