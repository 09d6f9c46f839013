package memstore_test

import (
	"context"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
)

// teller is a replica that tells a store what it used.
type teller struct {
	*memstore.Store
	t     *testing.T
	name  string
	clock *clock
}

// use takes from a store.
func (r teller) use(s *memstore.Store, c enforcer.Counter, n int64) {
	r.t.Helper()
	a := take(r.t, s, enforced(n, c))[0]
	r.Note(&c, &enforcer.Note{Result: a.Results[0], Admitted: a.Granted, N: 2})
}

// tell tells all that there is to tell, and how many counters that were.
func (r teller) tell(s *memstore.Store) int {
	r.t.Helper()
	var cursor enforcer.Cursor
	pushes := r.Untold(r.clock.read(), &cursor, 100, nil)
	answers := make([]enforcer.Pushed, len(pushes))
	for i := range pushes {
		pushes[i].Member = r.name
	}
	now, err := s.Push(context.Background(), pushes, answers)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range pushes {
		r.Told(now, &pushes[i], answers[i])
	}
	return len(pushes)
}

// A replica that joined a round from before the loss joins the one that others have begun after it, though it uses
// nothing more.
func TestARoundFromBeforeTheLossIsNotTheLast(t *testing.T) {
	c := new(clock)
	c.now.Store(minute)
	x := counter("x", 1, algorithm.FixedWindow, 100)
	shared := memstore.New(memstore.Options{Clock: c.read})
	replica := func(name string) teller {
		return teller{memstore.New(memstore.Options{Clock: c.read}), t, name, c}
	}
	early, late := replica("early"), replica("late")
	early.use(shared, x, 3)
	early.Suspect()
	early.tell(shared)
	saved := shared.Copy()
	early.use(shared, x, 4)
	late.use(shared, x, 2)
	c.now.Add(second)

	shared = saved // which holds the round that early has begun, and the first three
	late.Suspect()
	late.tell(shared)
	early.Suspect()
	early.tell(shared)
	for range 20 {
		c.now.Add(second)
		late.tell(shared)
	}
	if left := take(t, shared, enforced(0, x))[0].Results[0].Remaining; left != 91 {
		t.Errorf("the store has %d left, want 91: 7 and 2 of 100 were used", left)
	}
	if n := late.tell(shared); n != 0 {
		t.Errorf("it goes on telling %d counters of which nothing is new", n)
	}
}
