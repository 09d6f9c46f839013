package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "seed of everything random; 0 draws one")
	soakFlag    = flag.Duration("soak", 0, "how long to go on with rounds of all faults, at random times; 0 is one round at fixed ones")
	resultsFlag = flag.String("results", "", "file to write the table to, as JSON")
	rowsFlag    = flag.Int("rows", 5, "how many rows run at the same time: most of a row is waiting")
	timeoutFlag = flag.Duration("store-timeout", 100*time.Millisecond, "how long a decision waits for the store; the default is for machines that do other things too")
)

const (
	// overTime is by how much longer than StoreTimeout a decision may take at the 99.9th percentile, and openTime how long
	// it may take once the breaker is open. What is asserted is slack times as much, and of the first what the machine adds
	// to anything that waits.
	overTime = 5 * time.Millisecond
	openTime = 5 * time.Microsecond
	slack    = 10
	// moreGoroutines may run in a replica whose store does not answer: the batches under way, and dials of the driver.
	moreGoroutines = 50
	// findTime is how long it takes until the store is found back: 5 s at most between two probes, of which those that are
	// late on a busy machine are followed by another.
	findTime = 15 * time.Second
	// takeOver is how long it takes until an edited policy is in force although the leader is gone: the Lease of 15 s, and
	// a resync.
	takeOver = 45 * time.Second
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(*rowsFlag)); err != nil {
		panic(err)
	}
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// quiet drops what the Redis client logs of each connection that fails.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestChaos(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	var table results
	began := time.Now()
	for round := uint64(0); round == 0 || time.Since(began) < *soakFlag; round++ {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			t.Run("controller", func(t *testing.T) {
				t.Parallel()
				controllerRows(t, fmt.Sprintf("chaos-%d", round), seed^round, table.add)
			})
			for i := range faults {
				for _, mode := range faults[i].modes {
					t.Run(faults[i].name+" "+string(mode), func(t *testing.T) {
						t.Parallel()
						random := rand.New(rand.NewPCG(seed, round<<16|uint64(i))) //nolint:gosec // to be replayed
						result := result{Fault: faults[i].name, Mode: string(mode), Broken: []string{"it did not come to an end"}}
						defer func() { table.add(result) }()
						result = row(t, &faults[i], mode, random, *soakFlag > 0)
					})
				}
			}
		})
	}
	table.sort()
	table.print(t, seed)
	if *resultsFlag != "" {
		table.write(t, *resultsFlag)
	}
}

// row lets a fault happen to a world of its own. At random it strikes at any time of a window, and lasts for up to four.
func row(t *testing.T, f *fault, mode policy.OnStoreFailure, random *rand.Rand, atRandom bool) result {
	t.Helper()
	w := newWorld(t, f, mode, random.Uint64())
	phase, hold := f.phase, f.hold
	if phase == 0 {
		phase = 0.5
	}
	if hold == 0 {
		hold = 2.5
	}
	if atRandom {
		phase, hold = random.Float64(), hold*(0.2+1.4*random.Float64())
	}
	r := w.play(phase, hold)
	row := r.judge()
	row.Fault, row.Open = f.name, w.open
	check(t, &row, findTime)
	return row
}

// check says whether the row keeps the promises, and fails the test otherwise.
func check(t *testing.T, row *result, recovery time.Duration) {
	t.Helper()
	if most := *timeoutFlag + slack*overTime; row.P999-row.Noise > milliseconds(int64(most)) {
		row.Broken = append(row.Broken, fmt.Sprintf("p99.9 of a decision: %.1f ms, want at most %v and %.1f ms of noise", row.P999, most, row.Noise))
	}
	if most := slack * openTime; row.Open > float64(most.Microseconds()) {
		row.Broken = append(row.Broken, fmt.Sprintf("with an open breaker a decision took %.1f µs, want at most %v", row.Open, most))
	}
	if row.Recovered > recovery.Seconds() {
		row.Broken = append(row.Broken, fmt.Sprintf("recovered after %.1f s, want at most %v", row.Recovered, recovery))
	}
	row.Pass = len(row.Broken) == 0
	for _, broken := range row.Broken {
		t.Errorf("%s, %s: %s", row.Fault, row.Mode, broken)
	}
}

// play sends load, waits for a whole window, and has the fault strike in the next one and heal later; the row ends two
// windows after every replica decides by the store again.
func (w *world) play(phase, hold float64) *run {
	w.t.Helper()
	f, window := w.fault, w.fault.length()
	for i := range replicas {
		w.fleet.send(keyEven, i)
	}
	w.fleet.send(keyOne, 0)
	w.fleet.pulse(window / 15)
	began := time.Now().Truncate(window).Add(window) // Unix time begins with a window
	part := func(windows float64) time.Duration { return time.Duration(windows * float64(window)) }

	if f.prepare != nil {
		w.wait(began.Add(part(0.8)))
		f.prepare(w)
	}
	w.wait(began.Add(window + part(phase)))
	for i := 1; i < replicas; i++ {
		w.fleet.send(keyOne, i)
	}
	calm := w.fleet.goroutines()
	injected := time.Now()
	f.inject(w)
	if f.away {
		w.fleet.until("going on without the store", patience, func(s State) bool { return !s.Asks })
		w.open = float64(w.fleet.hurry(1)) / 1000
	}
	w.wait(injected.Add(part(hold)))
	if more := w.fleet.goroutines() - calm; more > moreGoroutines {
		w.t.Errorf("%s, %s: %d goroutines more than before the fault in one replica", f.name, w.mode, more)
	}
	if f.heal != nil {
		f.heal(w)
	}
	healed := time.Now()
	w.fleet.until("asking the store again", patience, func(s State) bool { return s.Asks })
	ended := time.Now().Truncate(window).Add(2 * window)
	w.wait(ended.Add(100 * time.Millisecond))
	return &run{
		mode: w.mode, window: window.Microseconds(), limit: func(int64) int64 { return requests }, bound: f.bound, away: f.away, empty: f.empty,
		began: began.UnixMicro(), injected: injected.UnixMicro(), healed: healed.UnixMicro(), ended: ended.UnixMicro(),
		records: w.fleet.records(),
	}
}
