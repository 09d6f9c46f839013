package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"
)

// subject is one limiter as an application would call it.
type subject struct {
	name string
	role role
	// take decides about one request for each of the keys; only a ceiling is asked for several. It returns how many of
	// them the limiter itself decided: what was answered by something else is no decision.
	take func(ctx context.Context, keys []int) (decided int, err error)
	// batch is how many of that many outstanding decisions one call carries; nil means one.
	batch func(outstanding int) int
	// release frees what the subject holds; nil means nothing.
	release func()
}

type role uint8

const (
	ours role = iota
	peer
	// ceiling is not a limiter that anybody could use, but what the server can do at most.
	ceiling
)

// one makes a take of a function for one key.
func one(take func(ctx context.Context, key int) error) func(context.Context, []int) (int, error) {
	return func(ctx context.Context, keys []int) (int, error) {
		if err := take(ctx, keys[0]); err != nil {
			return 0, err
		}
		return 1, nil
	}
}

// errWrong is a decision that the case does not allow: a denial where the limit is out of reach, or an admission where
// nothing is left.
var errWrong = errors.New("the wrong decision")

// want checks a decision of a subject that was to admit everything, or to deny everything.
func want(allowed, deny bool) error {
	if allowed == deny {
		return errWrong
	}
	return nil
}

// deadline is how long every subject that can be told so waits for the server. It is far above what a busy machine
// takes, so that all decisions are the server's; how they fare when it is slow is another question.
const deadline = 250 * time.Millisecond

// keys are the identities of a case and how often each of them comes.
type keys struct {
	name  string // as in results.json: "uniform-10000"
	names []string
	zipf  float64 // 0 is uniform
}

func uniform(n int) keys {
	name := "uniform-" + strconv.Itoa(n)
	if n == 1 {
		name = "hot"
	}
	return keys{name: name, names: keyNames(n)}
}

func zipf(n int, s float64) keys {
	return keys{name: "zipf-" + strconv.FormatFloat(s, 'g', -1, 64) + "-" + strconv.Itoa(n), names: keyNames(n), zipf: s}
}

func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "customer-" + strconv.Itoa(1_000_000+i)
	}
	return names
}

// rings are what was drawn before.
var rings = map[string][][]int{}

// draws returns a ring of keys for each of some goroutines, drawn beforehand so that drawing costs the decisions nothing.
func (k keys) draws(goroutines int) [][]int {
	for seed := len(rings[k.name]); seed < goroutines; seed++ {
		rings[k.name] = append(rings[k.name], k.draw(uint64(seed+1)))
	}
	return rings[k.name][:goroutines]
}

func (k keys) draw(seed uint64) []int {
	const ring = 1 << 14
	random := rand.New(rand.NewPCG(seed, 7))
	next := func() int { return random.IntN(len(k.names)) }
	if k.zipf > 0 {
		z := rand.NewZipf(random, k.zipf, 1, uint64(len(k.names)-1))
		next = func() int { return int(z.Uint64()) }
	}
	drawn := make([]int, ring)
	for i := range drawn {
		drawn[i] = next()
	}
	return drawn
}
