package simulate

import (
	"errors"
	"fmt"
	"strings"
)

// maxUnknown is how many lines are looked at for one that tells the format.
const maxUnknown = 100

var errFormat = errors.New("neither an object in JSON, nor in combined log format, nor the names of columns with a time among them")

// detection finds the format of a log by the first line that can be read. What comes before it is wrong, not fatal: a
// log that was cut begins in the middle of a line.
type detection struct {
	slots   *slots
	head    *csvLines // of the last line that could be the names of columns
	headAt  int64     // that line's number
	unknown int
}

// tell returns the parser of the format that the line tells, nil if it tells none. ok says whether a parser reads the
// line. wrong is called for lines that cannot be read, with their numbers.
func (d *detection) tell(
	line string, number int64, ok func(parser) error, wrong func(number int64, err error),
) (parser, error) {
	likely := detect(line)
	err := errFormat
	if likely != CSV {
		p, _, _ := newParser(likely, line, d.slots) // these two need no names
		if err = ok(p); err == nil {
			d.drop(wrong)
			return p, nil
		}
	} else if d.head != nil && ok(d.head) == nil {
		return d.head, nil
	} else if p, _, noHead := newParser(CSV, line, d.slots); noHead == nil {
		d.drop(wrong)
		d.head, d.headAt = p.(*csvLines), number //nolint:errcheck // that is what it makes of CSV
		return nil, nil
	} else if strings.Contains(line, ",") {
		err = noHead
	}
	wrong(number, err)
	if d.unknown++; d.unknown == maxUnknown {
		return nil, fmt.Errorf("none of %d lines tells the format, the last one because: %w: "+
			"name it with --format, and with --field what the log has other names for", maxUnknown, err)
	}
	return nil, nil
}

// drop counts what were not the names of columns after all.
func (d *detection) drop(wrong func(number int64, err error)) {
	if d.head != nil {
		wrong(d.headAt, errFormat)
		d.head = nil
	}
}
