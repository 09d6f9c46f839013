package outage_test

import (
	"testing"
	"time"
)

// The budget is spent when Redis dies: the replicas that saw that admit nothing more, neither without Redis nor when it
// is back with nothing in it.
func TestSpentStaysSpent(t *testing.T) {
	for _, kind := range algorithms {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, 3)
			began := time.Now()
			if got := w.sendAll(200, "alice"); got != requests {
				t.Fatalf("admitted %d, want %d", got, requests)
			}
			w.kill()
			if got := w.sendAll(100, "alice"); got > w.earned(began) {
				t.Errorf("admitted %d more without Redis", got)
			}
			w.back()
			if got := w.sendAll(100, "alice"); got > w.earned(began) {
				t.Errorf("admitted %d more after Redis came back empty", got)
			}
			if got := w.counted("alice"); got < requests-int64(w.earned(began)) {
				t.Errorf("Redis counts %d, want %d", got, requests)
			}
		})
	}
}

// Only one replica knew that the budget was spent: the others admit their shares at most, and then nothing.
func TestReplicasThatNeverSawTheKey(t *testing.T) {
	for _, kind := range algorithms {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, 3)
			began := time.Now()
			if got := w.send(0, 400, "alice"); got != requests {
				t.Fatalf("admitted %d, want %d", got, requests)
			}
			w.kill()
			if got := w.send(0, 50, "alice"); got > w.earned(began) {
				t.Errorf("the replica that spent it admitted %d more", got)
			}
			others := w.send(1, 200, "alice") + w.send(2, 200, "alice")
			if most := 2*requests/3 + 2*w.earned(began); others > most || others < 2*requests/3 {
				t.Errorf("the others admitted %d, want their shares of 100 each", others)
			}
			w.back()
			if got := w.sendAll(100, "alice"); got > w.earned(began) {
				t.Errorf("admitted %d more after Redis came back empty", got)
			}
		})
	}
}

// What replicas admit without Redis, it counts when it is back, on top of what it has lost.
func TestRedisCountsWhatWasReallyAdmitted(t *testing.T) {
	for _, kind := range algorithms {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, 3)
			began := time.Now()
			admitted := w.send(0, 40, "alice") + w.send(1, 10, "alice")
			w.kill()
			admitted += w.sendAll(20, "alice")
			if admitted != 110 {
				t.Fatalf("admitted %d, want 110", admitted)
			}
			w.back()
			more := w.send(2, 7, "alice")
			admitted += more
			if more != 7 {
				t.Errorf("admitted %d of 7 once Redis was back", more)
			}
			least := int64(admitted - w.earned(began))
			w.until("counting all", func() bool {
				got := w.counted("alice")
				return got >= least && got <= int64(admitted)
			})
		})
	}
}
