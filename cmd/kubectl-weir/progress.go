package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress shows how much of a file was read, on a terminal; elsewhere it says nothing.
type progress struct {
	to          io.Writer // nil: nobody is looking
	from        io.Reader
	size, read  int64
	start, last time.Time
}

// newProgress is for a file of so many bytes, 0 if nobody knows how many.
func newProgress(s streams, size int64) *progress {
	p := &progress{size: size, start: time.Now()}
	if isTerminal(s.err) {
		p.to = s.err
	}
	return p
}

func isTerminal(w io.Writer) bool {
	if checked, ok := w.(*checkedWriter); ok {
		w = checked.Writer
	}
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// watch counts what is read.
func (p *progress) watch(r io.Reader) io.Reader {
	p.from = r
	return p
}

// Read reads on, and shows it ten times a second.
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	p.read += int64(n)
	if now := time.Now(); p.to != nil && now.Sub(p.last) >= time.Second/10 {
		p.last = now
		fmt.Fprintf(p.to, "\r%s\x1b[K", p.line(now))
	}
	return n, err
}

const barWidth = 30

func (p *progress) line(now time.Time) string {
	rate := float64(p.read) / 1e6 / max(now.Sub(p.start).Seconds(), 0.001)
	if p.size <= 0 {
		return fmt.Sprintf("%d MB, %.0f MB/s", p.read/1e6, rate)
	}
	part := min(1, float64(p.read)/float64(p.size))
	full := int(part * barWidth)
	return fmt.Sprintf("[%s%s] %3.0f%% of %d MB, %.0f MB/s",
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*part, p.size/1e6, rate)
}

// done takes the line away.
func (p *progress) done() {
	if p.to != nil {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
