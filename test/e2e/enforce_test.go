package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/run"
)

// TestThreeReplicasAdmitExactlyTheLimit sends 300 requests at once for one key over three replicas, in 20 rounds.
func TestThreeReplicasAdmitExactlyTheLimit(t *testing.T) {
	w := newWorld(t, "exactly", 5*time.Second)
	addresses := w.addresses(3)
	w.policy("{requests: 5, window: 1h}", 3)
	for round := range 20 {
		tally := run.Load(t.Context(), addresses, 300, exports(fmt.Sprintf("round-%d", round)))
		if tally.Failed > 0 {
			t.Fatalf("round %d: %d requests failed: %v", round, tally.Failed, tally.Failure)
		}
		if tally.Admitted() != 5 || tally.Sources["Store"]+tally.Sources["DenyCache"] != 300 {
			t.Errorf("round %d: admitted %d by %v, want 5, all by Redis or what it denied", round, tally.Admitted(), tally.Sources)
		}
	}
}

// TestRedisKilledMidLoadHoldsTheLimit kills Redis while clients send, and counts whole windows from then on.
func TestRedisKilledMidLoadHoldsTheLimit(t *testing.T) {
	w := newWorld(t, "killed", 10*time.Millisecond)
	addresses := w.addresses(3)
	const limit, window = 20, 3 * time.Second
	w.policy("{requests: 20, window: 3s, algorithm: FixedWindow}", 3)

	// Each burst begins 300 ms after a window did and takes far less than the rest of it.
	burst := func(killRedis bool) run.Tally {
		start := time.Now().Truncate(window).Add(window + 300*time.Millisecond)
		wait(t, start)
		done := make(chan run.Tally, 1)
		go func() { done <- run.Load(t.Context(), addresses, 600, exports("one-key")) }()
		if killRedis {
			w.redis.Kill()
		}
		tally := <-done
		if took := time.Since(start); took > window-600*time.Millisecond {
			t.Fatalf("the burst took %v, too long to belong to one window", took)
		}
		if tally.Failed > 0 {
			t.Errorf("%d requests failed: %v", tally.Failed, tally.Failure)
		}
		return tally
	}
	before := burst(false)
	t.Logf("with Redis: admitted %d of %d, slowest decision %v", before.Admitted(), limit, before.Slowest)
	during := burst(true)
	t.Logf("killed in this window: admitted %d, slowest decision %v, by %v", during.Admitted(), during.Slowest, during.Sources)
	var slowest time.Duration
	for i := range 3 {
		after := burst(false)
		slowest = max(slowest, after.Slowest)
		t.Logf("window %d without Redis: admitted %d, slowest decision %v", i+1, after.Admitted(), after.Slowest)
		if after.Admitted() > limit || after.Admitted() == 0 {
			t.Errorf("window %d without Redis: admitted %d, want 1 to %d", i+1, after.Admitted(), limit)
		}
	}
	slowest = max(slowest, during.Slowest)
	t.Logf("slowest decision from the kill on: %v, promised 25 ms", slowest)
	if slowest > 10*25*time.Millisecond {
		t.Errorf("slowest decision %v, more than ten times the promised 25 ms", slowest)
	}
}

func wait(t *testing.T, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// TestScalingReachesThePods measures how long kubectl scale takes to change what pods admit on their own: each time it
// holds Redis still for one window and counts what every replica admits of a key that it has never seen.
func TestScalingReachesThePods(t *testing.T) {
	w := newWorld(t, "scaled", 10*time.Millisecond)
	const limit, window = 30, 4 * time.Second
	old := w.addresses(3)
	w.policy("{requests: 30, window: 4s, algorithm: FixedWindow}", 3)
	w.counted(old, 3)
	w.admitLocally("three", old, window, limit/3)

	began := time.Now()
	w.kubectl("scale", "deployment/"+deployment, "-n", w.namespace, "--replicas=5")
	w.counted(old, 5)
	up := time.Since(began)
	w.admitLocally("five-old", old, window, limit/5)
	t.Logf("3 to 5: old pods split by 5 replicas %v after kubectl scale began, promised 2 s", up.Round(time.Millisecond))
	if up > 10*2*time.Second {
		t.Errorf("3 to 5 took %v, more than ten times the promised 2 s", up)
	}
	five := w.addresses(5)
	w.counted(five, 5)
	w.admitLocally("five", five, window, limit/5)

	two := w.scale(2)
	w.fleet.WaitEnded()
	began = time.Now()
	w.counted(two, 2)
	down := time.Since(began)
	w.admitLocally("two", two, window, limit/2)
	t.Logf("5 to 2: pods split by 2 replicas %v after the last pod's end, promised 32 s", down.Round(time.Millisecond))
	if down > 10*32*time.Second {
		t.Errorf("5 to 2 took %v, more than ten times the promised 32 s", down)
	}
}

// admitLocally waits until each of the replicas admits exactly its share of a window in which Redis stands still, and
// fails at once when one admits more. It tries again as long as replicas have yet to earn their share.
func (w *world) admitLocally(key string, addresses []string, window time.Duration, share int) {
	w.t.Helper()
	began := time.Now()
	for try := range 6 {
		admitted := w.windowWithoutRedis(fmt.Sprintf("%s-%d", key, try), addresses, window)
		for _, n := range admitted {
			if n > share {
				w.t.Fatalf("%s: replicas admitted %v without Redis, want at most %d each", key, admitted, share)
			}
		}
		if slices.Min(admitted) == share {
			w.t.Logf("%s: replicas admitted %v without Redis, %v later", key, admitted, time.Since(began).Round(time.Millisecond))
			return
		}
		w.t.Logf("%s: replicas admitted %v without Redis, not yet %d each", key, admitted, share)
	}
	w.t.Fatalf("%s: replicas never admitted their share of %d", key, share)
}

// windowWithoutRedis returns what each replica admits of 40 requests in one window.
func (w *world) windowWithoutRedis(key string, addresses []string, window time.Duration) []int {
	w.t.Helper()
	start := time.Now().Truncate(window).Add(window)
	wait(w.t, start.Add(-200*time.Millisecond))
	w.redis.Pause()
	defer w.redis.Resume()
	wait(w.t, start.Add(200*time.Millisecond))
	admitted := make([]int, len(addresses))
	var replicas sync.WaitGroup
	for i, address := range addresses {
		replicas.Go(func() {
			tally := run.Load(w.t.Context(), []string{address}, 40, exports(key))
			admitted[i] = tally.Admitted()
		})
	}
	replicas.Wait()
	if took := time.Since(start); took > window-200*time.Millisecond {
		w.t.Fatalf("the requests took %v, too long to belong to one window", took)
	}
	return admitted
}

// counted waits until all the replicas split limits by n.
func (w *world) counted(addresses []string, n int) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		for _, address := range addresses {
			got, err := gauge(ctx, address, "weir_replicas")
			if err != nil {
				return err
			}
			if int(got) != n {
				return fmt.Errorf("%s counts %v replicas, want %d", address, got, n)
			}
		}
		return nil
	})
}

// TestEditsReachEveryPod measures from the API write to the last pod's acknowledgement, over 50 edits.
func TestEditsReachEveryPod(t *testing.T) {
	w := newWorld(t, "edited", 10*time.Millisecond)
	w.addresses(3)
	w.policy("{requests: 1000, window: 1m}", 3)
	took := make([]time.Duration, 0, 50)
	for i := range 50 {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/rules/0/limits/0/requests","value":%d}]`, 1001+i)
		only := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "only"}}
		began := time.Now()
		if err := w.client.Patch(t.Context(), only, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
		w.acknowledged(only.Generation, 3)
		took = append(took, time.Since(began))
	}
	w.enforced(3)
	slices.Sort(took)
	p99 := took[len(took)-1] // of 50, the slowest
	t.Logf("edit to acknowledged by all 3 pods: median %v, p99 %v, promised 1 s", took[len(took)/2], p99)
	if p99 > 10*time.Second {
		t.Errorf("p99 %v, more than ten times the promised 1 s", p99)
	}
}
