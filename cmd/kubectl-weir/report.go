package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/weir-dev/weir/internal/scenario"
)

// reporters tell results in the forms that -o names.
var reporters = map[string]func(io.Writer, []scenario.Result) error{
	"text":  reportText,
	"json":  reportJSON,
	"junit": reportJUnit,
}

// reportText writes one line for each scenario and store, below a failed one all that was not met but the first, and at
// the end what was skipped for want of a server.
func reportText(w io.Writer, results []scenario.Result) error {
	var b strings.Builder
	failed, skipped := 0, make(map[scenario.StoreName]int)
	for _, r := range results {
		name := fmt.Sprintf("%-8s  %s: %s", r.Store, r.Scenario.File, r.Scenario.Name)
		switch {
		case r.Skipped != "":
			skipped[r.Store]++
		case len(r.Failures) > 0:
			failed++
			fmt.Fprintf(&b, "FAIL  %s: line %d: %v\n", name, r.Failures[0].Line, r.Failures[0])
			for _, f := range r.Failures[1:] {
				fmt.Fprintf(&b, "      line %d: %v\n", f.Line, f)
			}
		default:
			fmt.Fprintf(&b, "ok    %s\n", name)
		}
	}
	ran := len(results)
	var missing strings.Builder
	for _, store := range slices.Sorted(maps.Keys(skipped)) {
		ran -= skipped[store]
		fmt.Fprintf(&missing, ", %d skipped without --%s", skipped[store], store)
	}
	fmt.Fprintf(&b, "%d passed, %d failed%s\n", ran-failed, failed, &missing)
	_, err := io.WriteString(w, b.String())
	return err
}

// reported is a result in JSON.
type reported struct {
	File     string             `json:"file"`
	Scenario string             `json:"scenario"`
	Store    scenario.StoreName `json:"store"`
	// Result is ok, FAIL or skip.
	Result      string                `json:"result"`
	Skipped     string                `json:"skipped,omitempty"`
	Failures    []reportedFailure     `json:"failures,omitempty"`
	Sends       []scenario.SendResult `json:"sends"`
	TookSeconds float64               `json:"tookSeconds"`
}

type reportedFailure struct {
	scenario.Failure
	At string `json:"at"`
}

func reportJSON(w io.Writer, results []scenario.Result) error {
	all := make([]reported, 0, len(results))
	for _, r := range results {
		out := reported{
			File: r.Scenario.File, Scenario: r.Scenario.Name, Store: r.Store, Result: "ok", Skipped: r.Skipped,
			Sends: r.Sends, TookSeconds: r.Took.Seconds(),
		}
		if r.Skipped != "" {
			out.Result = "skip"
		}
		for _, f := range r.Failures {
			out.Result = "FAIL"
			out.Failures = append(out.Failures, reportedFailure{f, f.At.String()})
		}
		all = append(all, out)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(all)
}

// The form that CI systems read: a suite for each file, a case for each scenario and store.
type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Seconds float64       `xml:"time,attr"`
	Skipped *junitMessage `xml:"skipped"`
	Failure *junitMessage `xml:"failure"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func reportJUnit(w io.Writer, results []scenario.Result) error {
	var all junitSuites
	for _, r := range results {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != r.Scenario.File {
			all.Suites = append(all.Suites, junitSuite{Name: r.Scenario.File})
		}
		suite := &all.Suites[len(all.Suites)-1]
		suite.Tests++
		c := junitCase{
			Name: fmt.Sprintf("%s (%s)", r.Scenario.Name, r.Store), Class: r.Scenario.File, Seconds: r.Took.Seconds(),
		}
		if r.Skipped != "" {
			suite.Skipped++
			c.Skipped = &junitMessage{Message: r.Skipped}
		}
		if len(r.Failures) > 0 {
			suite.Failures++
			c.Failure = &junitMessage{Message: r.Failures[0].String()}
			for _, f := range r.Failures {
				c.Failure.Text += fmt.Sprintf("%s:%d: %v\n", r.Scenario.File, f.Line, f)
			}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
