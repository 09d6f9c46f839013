package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// A page has marked sections, each of which is replaced by a table of the results:
//
//	<!-- bench:redis -->
//	<!-- bench:end -->
var marked = regexp.MustCompile(`(?s)(<!-- bench:([a-z-]+) -->\n).*?(<!-- bench:end -->)`)

// column is one of a table of results.
type column struct {
	title string
	of    func(result) string
}

var columns = map[string]column{
	"keys":       {"keys", func(r result) string { return keysInWords(r.Keys) }},
	"goroutines": {"goroutines", func(r result) string { return strconv.Itoa(r.Goroutines) }},
	"subject":    {"subject", func(r result) string { return r.Subject }},
	"rate":       {"per s", func(r result) string { return grouped(r.PerSecond) }},
	"range":      {"lowest–highest", func(r result) string { return grouped(r.Low) + "–" + grouped(r.High) }},
	"p50":        {"p50 µs", func(r result) string { return grouped(r.P50) }},
	"p99":        {"p99 µs", func(r result) string { return grouped(r.P99) }},
	"allocs":     {"allocs", func(r result) string { return fmt.Sprintf("%.1f", r.Allocs) }},
	"server":     {"Redis s/M", func(r result) string { return fmt.Sprintf("%.2f", r.RedisCPU) }},
	"client":     {"client s/M", func(r result) string { return fmt.Sprintf("%.2f", r.ClientCPU) }},
	"ratio":      {"to best peer", func(r result) string { return fmt.Sprintf("%.2f", r.RatioToBestPeer) }},
}

// sections are what tables a page can have: the cases that they are of, and their columns.
var sections = map[string]struct {
	cases   []string
	columns string
}{
	"redis":     {[]string{"redis"}, "keys goroutines subject rate range p50 p99 allocs server client ratio"},
	"open-loop": {[]string{"redis-open-loop-2000", "redis-open-loop-10000"}, "keys goroutines subject rate p50 p99 server client"},
	"denied":    {[]string{"redis-denied"}, "goroutines subject rate range p50 p99 allocs server client ratio"},
	"ahead":     {[]string{"redis-leased", "redis-flood"}, "keys goroutines subject rate range p50 p99 allocs server client ratio"},
	"memory":    {[]string{"memory"}, "keys goroutines subject rate range p50 p99 allocs client ratio"},
	"rules":     {[]string{"memory-rules"}, "subject rate range p50 p99 allocs client"},
	"postgres":  {[]string{"postgres"}, "keys goroutines subject rate range p50 p99 allocs client ratio"},
}

// writePage writes results into the marked sections of a page.
func writePage(page, results string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("reading the page: %w", err)
	}
	written, err := render(string(text), results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, []byte(written), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// render returns a page with the tables of the results.
func render(page, results string) (string, error) {
	var f figures
	if err := readJSON(results, &f); err != nil {
		return "", err
	}
	var ran machine
	if err := readJSON(machineFile(results), &ran); err != nil {
		return "", err
	}
	var unknown error
	page = marked.ReplaceAllStringFunc(page, func(section string) string {
		parts := marked.FindStringSubmatch(section)
		text := ""
		switch known, ok := sections[parts[2]]; {
		case ok:
			text = "\n" + markdown(f, known.cases, strings.Fields(known.columns)) + "\n"
		case parts[2] == "targets":
			text = "\n" + targetTable(f) + "\n"
		case parts[2] == "machine":
			text = ran.sentence() + "\n"
		default:
			unknown = fmt.Errorf("the page has a section %q, which is none of the results", parts[2])
		}
		return parts[1] + text + parts[3]
	})
	return page, unknown
}

func readJSON(name string, into any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading results: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading results of %s: %w", name, err)
	}
	return nil
}

func markdown(f figures, cases, names []string) string {
	var b strings.Builder
	row := func(cell func(c column) string) {
		for _, name := range names {
			b.WriteString("| " + cell(columns[name]) + " ")
		}
		b.WriteString("|\n")
	}
	row(func(c column) string { return c.title })
	b.WriteString(strings.Repeat("|---", len(names)) + "|\n")
	for _, name := range cases {
		for _, r := range f {
			if r.Case != name {
				continue
			}
			if suffix := strings.TrimPrefix(name, "redis-"); len(cases) > 1 {
				r.Keys += ", " + suffix
			}
			row(func(c column) string { return c.of(r) })
		}
	}
	return b.String()
}

func targetTable(f figures) string {
	var b strings.Builder
	b.WriteString("| | wanted | measured | |\n|---|---|---|---|\n")
	for _, t := range targets {
		if wanted, value, met, ok := t.verdict(f); ok {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.text, wanted, value, notMet(met))
		}
	}
	return b.String()
}

func keysInWords(name string) string {
	return strings.NewReplacer(
		"uniform-10000", "10,000", "zipf-1.1-10000", "10,000, Zipf 1.1", "hot", "one", "open-loop-2000", "2,000 a second",
		"open-loop-10000", "10,000 a second",
	).Replace(name)
}

// grouped writes a number with three digits that matter, or in whole thousands with commas.
func grouped(v float64) string {
	if v < 1000 {
		return figure(v)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
