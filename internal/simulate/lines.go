package simulate

import (
	"errors"
	"io"
	"strings"
)

// maxLine bounds a line. Longer ones cannot be read, and those behind them can.
const maxLine = 1 << 20

var errLongLine = errors.New("the line is longer than 1 MiB")

// lines cuts a stream into lines, without a copy of each: the lines of one block are parts of one string.
type lines struct {
	from   io.Reader
	block  []byte
	text   string // what was read and not yet given out
	number int64  // of the line given out last, from 1
	err    error  // of from; io.EOF at the end
}

func newLines(from io.Reader) *lines { return &lines{from: from, block: make([]byte, maxLine)} }

// next returns the next line without its end. The error is io.EOF at the end of the stream, errLongLine for a line that
// was passed over, and whatever reading fails with.
func (l *lines) next() (string, error) {
	for {
		if i := strings.IndexByte(l.text, '\n'); i >= 0 {
			line := l.text[:i]
			l.text = l.text[i+1:]
			l.number++
			return strings.TrimSuffix(line, "\r"), nil
		}
		switch {
		case l.err == io.EOF && l.text != "": //nolint:errorlint // readers return io.EOF itself
			line := strings.TrimSuffix(l.text, "\r")
			l.text = ""
			l.number++
			return line, nil
		case l.err != nil:
			return "", l.err
		case len(l.text) == len(l.block):
			l.number++
			return "", l.skip()
		}
		l.fill()
	}
}

// fill reads one block behind what is left of the last one.
func (l *lines) fill() {
	n := copy(l.block, l.text)
	const piece = 256 << 10
	end := min(len(l.block), n+piece)
	var m int
	m, l.err = l.from.Read(l.block[n:end])
	l.text = string(l.block[:n+m])
}

// skip passes over the rest of a line that is too long.
func (l *lines) skip() error {
	l.text = ""
	for l.err == nil {
		l.fill()
		if i := strings.IndexByte(l.text, '\n'); i >= 0 {
			l.text = l.text[i+1:]
			break
		}
		l.text = ""
	}
	return errLongLine
}
