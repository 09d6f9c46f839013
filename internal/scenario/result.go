package scenario

import (
	"fmt"
	"strings"
	"time"
)

// Result is what became of a scenario on one store.
type Result struct {
	Scenario *Scenario
	Store    StoreName
	// Skipped says why it was not run; empty when it was.
	Skipped string
	// Failures are the expectations that were not met, in the order of the steps.
	Failures []Failure
	// Sends are what came of the requests of each step that sends.
	Sends []SendResult
	// Took is real time.
	Took time.Duration
}

// SendResult is what came of the requests of one step.
type SendResult struct {
	// Step counts from 0.
	Step int `json:"step"`
	// Decisions are A for an admitted and D for a denied request, in order.
	Decisions string `json:"decisions"`
	// Sources are how many decisions came from where.
	Sources map[string]int64 `json:"sources"`
	// Charged is by rule what the store was charged, refunds taken off.
	Charged map[string]int64 `json:"charged"`
	// Last is the last decision, in words.
	Last string `json:"last"`
}

// Failure is one expectation that was not met.
type Failure struct {
	// Step counts from 0, as paths do.
	Step int      `json:"step"`
	At   Duration `json:"-"`
	Line int      `json:"line"`
	// Path is the expectation within its step: "expect.last.remaining".
	Path     string `json:"path"`
	Expected string `json:"expected"`
	Got      string `json:"got"`
}

// String gives one line, such as
//
//	steps[1] at 1s: decisions: expected AADD, got AAAD
func (f Failure) String() string {
	return fmt.Sprintf("steps[%d] at %v: %s: expected %s, got %s", f.Step, f.At, strings.TrimPrefix(f.Path, "expect."), f.Expected, f.Got)
}

// Passed says that it was run and every expectation was met.
func (r Result) Passed() bool { return r.Skipped == "" && len(r.Failures) == 0 }
