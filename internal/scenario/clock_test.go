package scenario

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer"
)

func TestTimePassesOnlyWhenNothingRuns(t *testing.T) {
	w := newWorld(0)
	r := &runtime{world: w}
	var log []string
	note := func(what string) { log = append(log, r.Elapsed().String()+" "+what) }
	w.do(func() {
		note("begins")
		r.AfterFunc(3*time.Second, func() { note("timer") })
		stop := r.AfterFunc(2*time.Second, func() { note("stopped timer") })
		r.Go(func() {
			note("second begins")
			if err := w.sleep(t.Context(), 2*time.Second); err != nil {
				t.Error(err)
			}
			note("second slept")
		})
		note("goes on before the second")
		if !stop() {
			t.Error("a timer that was pending was not stopped")
		}
		if r.Wait(nil, nil, 5*time.Second) != enforcer.WokenLate {
			t.Error("a wait for nothing ended early")
		}
		note("waited")
	})
	w.advance(time.Second.Microseconds())
	note("after one second")
	w.advance(time.Minute.Microseconds())
	note("after a minute")
	want := []string{
		"0s begins", "0s goes on before the second", "0s second begins", "1s after one second", "2s second slept",
		"3s timer", "5s waited", "1m0s after a minute",
	}
	if diff := cmp.Diff(want, log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAWaitEndsWithTheFirstReason(t *testing.T) {
	w := newWorld(0)
	r := &runtime{world: w}
	ready := make(chan struct{}, 1)
	var got []enforcer.Woken
	w.do(func() {
		ready <- struct{}{}
		got = append(got, r.Wait(ready, nil, time.Second)) // there already
		r.AfterFunc(time.Second, func() { ready <- struct{}{} })
		got = append(got, r.Wait(ready, nil, 2*time.Second)) // in time
		ctx, cancel := r.WithTimeout(time.Second)
		defer cancel()
		got = append(got, r.Wait(ready, ctx.Done(), 2*time.Second))
		if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("the context ended by %v", cause)
		}
	})
	w.drain()
	if diff := cmp.Diff([]enforcer.Woken{enforcer.WokenReady, enforcer.WokenReady, enforcer.WokenDone}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w.now != (2 * time.Second).Microseconds() {
		t.Errorf("the clock is at %d µs, want 2 s", w.now)
	}
	if len(w.timers) != 0 || len(w.waiters) != 0 {
		t.Errorf("%d timers and %d waiters are left", len(w.timers), len(w.waiters))
	}
}

func TestTimersOfOneInstantFireInTheirOrder(t *testing.T) {
	w := newWorld(0)
	var got []int
	for i := range 5 {
		w.after(time.Second, func() { got = append(got, i) })
	}
	w.drain()
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
