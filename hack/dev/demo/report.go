package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// report is what the demo prints: a line for each thing that it does, and at the end a line for each step.
type report struct {
	out     io.Writer
	started time.Time
	results []result
}

type result struct {
	step   string
	pass   bool
	detail string
}

func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.out, "  %5.1f s  %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

func (r *report) heading(format string, args ...any) {
	fmt.Fprintf(r.out, "\n%s\n", fmt.Sprintf(format, args...))
}

// indent shows what a command printed.
func (r *report) indent(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(r.out, "           %s\n", line)
	}
}

func (r *report) add(step string, pass bool, format string, args ...any) {
	r.results = append(r.results, result{step: step, pass: pass, detail: fmt.Sprintf(format, args...)})
	r.say("%s %s", verdict(pass), r.results[len(r.results)-1].detail)
}

func verdict(pass bool) string {
	if pass {
		return "PASS"
	}
	return "FAIL"
}

// summary prints one line for each step and says whether all passed.
func (r *report) summary() bool {
	fmt.Fprintln(r.out)
	all := true
	for _, x := range r.results {
		fmt.Fprintf(r.out, "%s %s: %s\n", verdict(x.pass), x.step, x.detail)
		all = all && x.pass
	}
	return all
}
