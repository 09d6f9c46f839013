package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// textTable writes columns as kubectl does.
type textTable struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...string) textTable {
	t := textTable{tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)}
	t.row(head...)
	return t
}

// row writes a line. What is empty stays empty; nothing stands behind the last value.
func (t textTable) row(values ...string) {
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(values, "\t"), "\t"))
}

func (t textTable) flush() { _ = t.w.Flush() }

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// shortDuration writes a duration as policies do: 1m, not 1m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
