package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// timeToLive: a state stays until nothing of it weighs any more, and not much longer. A store may give it a quarter
// more and a second, so that it need not be given anew with each charge.
func (s *suite) timeToLive(t *testing.T) {
	c := newClock()
	store := s.newStore(t, c.time)
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			one := counter(algorithm.Limit{Algorithm: a, Requests: 10, Window: maxWindow})
			if _, there := s.options.TimeToLive(t, one, c.time()); there {
				t.Fatal("a counter that was never taken from has a state")
			}
			var most time.Duration
			check := func(what string) {
				t.Helper()
				reset := take(t, store, enforced(0, one)).Results[0].ResetAfter
				least := time.Duration((reset+999)/1000+1) * time.Millisecond
				most = max(most, least+least/4+time.Second)
				got, there := s.options.TimeToLive(t, one, c.time())
				// Where the server's own clock ends states, time goes on while we look.
				if !there || got > most || got < least-time.Minute {
					t.Errorf("%s: lives for %v (%t), want %v to %v", what, got, there, least, most)
				}
			}
			take(t, store, enforced(3, one))
			check("after a charge")
			c.now.Add(hour)
			taken := take(t, store, enforced(2, one)).Results[0].At
			check("after another")
			refund := enforcer.Refund{Counters: []enforcer.Counter{one}, N: 1, Taken: taken}
			if err := store.Refund(t.Context(), []enforcer.Refund{refund}); err != nil {
				t.Fatal(err)
			}
			check("after a refund")
			if err := store.Reset(t.Context(), []enforcer.Counter{one}); err != nil {
				t.Fatal(err)
			}
			if _, there := s.options.TimeToLive(t, one, c.time()); there {
				t.Error("a counter has a state after a reset")
			}
		})
	}
}

// spoiled: a state that is not understood is an error of the entries that need it, and of them alone.
func (s *suite) spoiled(t *testing.T) {
	for _, a := range algorithms {
		for _, what := range []Spoil{NewerFormat, Garbage} {
			t.Run(fmt.Sprintf("%s for %v", what, a), func(t *testing.T) {
				c := newClock()
				store := s.newStore(t, c.time)
				limit := algorithm.Limit{Algorithm: a, Requests: 5, Window: hour}
				bad, good, shadow := counter(limit), counter(limit), counter(limit)
				take(t, store, enforced(5, bad))
				s.options.Spoil(t, bad, what)
				for range 2 {
					entries := []enforcer.Entry{
						enforced(1, good),
						enforced(1, good, bad),
						enforced(0, bad),
						{Counters: []enforcer.Counter{good, bad, shadow}, Enforced: 1, Shadow: []int{2, 3}, N: 1},
					}
					answers := make([]enforcer.Answer, len(entries))
					if _, err := store.Take(t.Context(), entries, answers); err != nil {
						t.Fatalf("one counter that is not understood failed the whole batch: %v", err)
					}
					for i, failed := range []bool{false, true, true, false} {
						if failed {
							wantStateError(t, i, answers[i])
						} else if answers[i].Err != nil || answers[i].Granted != 1 {
							t.Errorf("entry %d: granted %d, %v; want 1", i, answers[i].Granted, answers[i].Err)
						}
					}
					if got := answers[3].Shadow; !slices.Equal(got, []int64{0, 1}) {
						t.Errorf("shadow rules charged %v, want nothing for the one that is not understood, and 1", got)
					}
				}
				if got := remaining(t, store, good); got != 1 {
					t.Errorf("%d remain of the counter that is understood, want 1 after four charges", got)
				}
				if err := store.Reset(t.Context(), []enforcer.Counter{bad}); err != nil {
					t.Fatal(err)
				}
				if got := remaining(t, store, bad); got != 5 {
					t.Errorf("%d remain after the reset, want 5", got)
				}
			})
		}
	}
}

func wantStateError(t *testing.T, i int, a enforcer.Answer) {
	t.Helper()
	var known *enforcer.StoreError
	if !errors.As(a.Err, &known) || known.Reason != enforcer.ReasonState || a.Granted != 0 {
		t.Errorf("entry %d: granted %d, error %v; want none and %q", i, a.Granted, a.Err, enforcer.ReasonState)
	}
}
