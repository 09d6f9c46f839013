package main

import (
	"os"
	"strings"
	"testing"
)

// The tables of the page are those of the results: neither is edited by hand.
func TestPageIsOfTheResults(t *testing.T) {
	const page = "../docs/performance.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := render(string(text), "results.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("%s and results.json differ: make docs writes the tables", page)
	}
	for name := range sections {
		if !strings.Contains(want, "<!-- bench:"+name+" -->") {
			t.Errorf("%s has no section %q", page, name)
		}
	}
	if n := strings.Count(want, "<!-- bench:end -->"); n != len(marked.FindAllString(want, -1)) {
		t.Errorf("%s has %d ends of sections, of which some end none", page, n)
	}
}

func TestNumbersAreGrouped(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.123", 123.4: "123.4", 1234: "1,234", 1234567.8: "1,234,568"} {
		if got := grouped(v); got != want {
			t.Errorf("%g is written %s, want %s", v, got, want)
		}
	}
}
