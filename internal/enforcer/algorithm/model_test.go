package algorithm_test

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/algorithm/model"
)

// TestTakeAgainstModel compares every answer with the exact rationals over random
// lives of counters. WEIR_STEPS sets how many steps.
func TestTakeAgainstModel(t *testing.T) {
	fallback := uint64(300_000)
	if testing.Short() {
		fallback = 30_000
	}
	steps, seed := envInt(t, "WEIR_STEPS", fallback), startSeed(t)
	var seen sights
	for i := uint64(0); uint64(seen.Steps) < steps; i++ {
		w := newWalk(newSeeded(seed+i), &seen)
		for range stepsPerWalk {
			if err := w.step(); err != nil {
				t.Fatalf("replay with WEIR_SEED=%d WEIR_STEPS=1: %v", seed+i, err)
			}
		}
	}
	t.Logf("%+v", seen)
	if steps < 10_000 {
		return // a replay
	}
	counts := reflect.ValueOf(seen)
	for i := range counts.NumField() {
		if n := counts.Field(i).Int(); n < int64(steps/2_000) {
			t.Errorf("only %d of %d steps were %s", n, steps, counts.Type().Field(i).Name)
		}
	}
}

// bytesDice takes the choices of a walk from the input of a fuzzer.
type bytesDice struct{ data []byte }

func (b *bytesDice) below(n int64) int64 {
	width := 1
	if n > 256 {
		width = 8
	}
	if len(b.data) < width {
		b.data = nil
		return 0
	}
	var word [8]byte
	copy(word[:], b.data[:width])
	b.data = b.data[width:]
	return int64(binary.LittleEndian.Uint64(word[:]) % uint64(n))
}

func FuzzTakeAgainstModel(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(8) {
		d := newSeeded(seed)
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(d.below(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &bytesDice{data: data[:min(len(data), 2_000)]}
		w := newWalk(d, new(sights))
		for len(d.data) > 0 {
			if err := w.step(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The model's two ways of answering agree, so that Check proves what Look says.
func TestModelChecksWhatItLooksUp(t *testing.T) {
	seed := startSeed(t)
	var seen sights
	for i := range uint64(40) {
		w := newWalk(newSeeded(seed+i), &seen)
		for range 10 {
			if err := w.step(); err != nil {
				t.Fatalf("replay with WEIR_SEED=%d: %v", seed+i, err)
			}
			cost := w.chooseCost()
			want := w.model.Look(w.now, cost)
			if err := w.model.Check(w.now, cost, want); err != nil {
				t.Fatalf("WEIR_SEED=%d: the model refuses its own answer: %v", seed+i, w.fail(err))
			}
			if diff := cmp.Diff(want, w.limit.Look(w.state, w.now, cost)); diff != "" {
				t.Fatalf("WEIR_SEED=%d: cost %d (-model +got):\n%s", seed+i, cost, diff)
			}
			for name, lie := range lies(want) {
				if w.model.Check(w.now, cost, lie) == nil {
					t.Fatalf("WEIR_SEED=%d: the model accepts %s: %+v for %+v", seed+i, name, lie, want)
				}
			}
		}
	}
}

// lies are answers beside the right one.
func lies(r algorithm.Result) map[string]algorithm.Result {
	all := map[string]algorithm.Result{}
	for name, change := range map[string]func(*algorithm.Result){
		"another verdict":           func(r *algorithm.Result) { r.Allowed = !r.Allowed },
		"another satisfiable":       func(r *algorithm.Result) { r.Satisfiable = !r.Satisfiable },
		"one more remaining":        func(r *algorithm.Result) { r.Remaining++ },
		"a retry 1 µs later":        func(r *algorithm.Result) { r.RetryAfter++ },
		"a retry 1 µs earlier":      func(r *algorithm.Result) { r.RetryAfter-- },
		"a reset 1 µs later":        func(r *algorithm.Result) { r.ResetAfter++ },
		"a reset 1 µs earlier":      func(r *algorithm.Result) { r.ResetAfter-- },
		"another time of judgement": func(r *algorithm.Result) { r.At++ },
	} {
		lie := r
		change(&lie)
		all[name] = lie
	}
	return all
}

// The model itself, on numbers that can be followed by hand.
func TestModelByHand(t *testing.T) {
	bucket := model.New(algorithm.Limit{Requests: 6, Window: minute})
	bucket.Charge(0, 6)
	want := algorithm.Result{
		Satisfiable: true, RetryAfter: 9_900 * ms, ResetAfter: 59_900 * ms, At: 100 * ms,
	}
	if diff := cmp.Diff(want, bucket.Look(100*ms, 1)); diff != "" {
		t.Errorf("bucket (-want +got):\n%s", diff)
	}
	counter := model.New(algorithm.Limit{Algorithm: algorithm.SlidingWindowCounter, Requests: 60, Window: minute})
	counter.Charge(59*second, 60)
	want = algorithm.Result{
		Satisfiable: true, Remaining: 30, RetryAfter: second, ResetAfter: 30 * second, At: 90 * second,
	}
	if diff := cmp.Diff(want, counter.Look(90*second, 31)); diff != "" {
		t.Errorf("sliding counter (-want +got):\n%s", diff)
	}
}
