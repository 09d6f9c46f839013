package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Format is how a log writes its lines.
type Format string

// The formats. Auto is told by the first line that can be read.
const (
	Auto     Format = "auto"
	Combined Format = "combined" // and the common log format
	JSON     Format = "json"     // one object a line
	CSV      Format = "csv"      // the first line has the names of the columns
)

// Formats lists their names.
func Formats() []string { return []string{string(Auto), string(Combined), string(JSON), string(CSV)} }

// detect says what a line is in, if it is in a format at all.
func detect(line string) Format {
	switch trimmed := strings.TrimSpace(line); {
	case strings.HasPrefix(trimmed, "{"):
		return JSON
	case strings.Contains(trimmed, " [") && strings.Contains(trimmed, `] "`):
		return Combined
	default:
		return CSV
	}
}

// parser reads a line into values.
type parser interface {
	parse(line string, v *values) error
}

// newParser returns the parser of a format. head says that the first line was only the names of columns.
func newParser(f Format, first string, s *slots) (p parser, head bool, err error) {
	switch f {
	case Combined:
		return newCombined(s), false, nil
	case JSON:
		return jsonLines{}, false, nil
	case CSV:
		c := &csvLines{}
		columns, err := c.split(first)
		if err != nil {
			return nil, false, fmt.Errorf("the names of the columns: %w", err)
		}
		c.columns = slices.Clone(columns)
		timed := false
		for _, name := range c.columns {
			from, ok := s.find(name)
			if !ok {
				c.sources = append(c.sources, nil)
				continue
			}
			c.sources = append(c.sources, &from)
			timed = timed || s.targets[from.slot] == Time
		}
		if !timed {
			return nil, false, fmt.Errorf("no column is a time: the first line must have the names of the columns, "+
				"and it has %s; name the column with --field time=NAME", strings.Join(c.columns, ", "))
		}
		return c, true, nil
	case Auto:
	}
	return nil, false, fmt.Errorf("unknown format %q", f)
}

// combined reads the combined log format, the common one, and what servers append to it in quotes:
//
//	host ident user [time] "request" status size "referer" "user agent" "extra1" …
type combined struct {
	tail  bool // something behind the size is read
	user  bool
	extra []string // names of what is appended
	// request and remote are where these two go; nil where the user has other names for what they tell.
	request, remote *source
}

func newCombined(s *slots) *combined {
	c := &combined{}
	_, c.user = s.sources["user"]
	if from, ok := s.sources["request"]; ok {
		c.request = &from
	}
	if from, ok := s.sources["remote"]; ok {
		c.remote = &from
	}
	for i := 1; i <= maxExtra; i++ {
		c.extra = append(c.extra, fmt.Sprintf("extra%d", i))
	}
	for _, name := range append([]string{"referer", "user_agent", "status", "size"}, c.extra...) {
		if _, ok := s.sources[name]; ok {
			c.tail = true
		}
	}
	return c
}

// maxExtra bounds what is read of what servers append.
const maxExtra = 16

var errCombined = errors.New(`not in combined log format: host ident user [time] "request" status size "referer" "user agent"`)

func (c *combined) parse(line string, v *values) error {
	host, rest, ok := strings.Cut(line, " ")
	if !ok {
		return errCombined
	}
	open := strings.Index(rest, " [")
	if open < 0 {
		return errCombined
	}
	if c.user {
		if _, user, ok := strings.Cut(rest[:open], " "); ok {
			v.set("user", user)
		}
	}
	rest = rest[open+2:]
	end := strings.IndexByte(rest, ']')
	if end < 0 || len(rest) < end+3 || rest[end+1] != ' ' || rest[end+2] != '"' {
		return errCombined
	}
	v.text[0], v.ranks[0] = rest[:end], 0 // what stands in brackets is the time, whatever the user calls his
	request, rest, ok := cutQuoted(rest[end+3:])
	if !ok || len(rest) < 4 || rest[0] != ' ' || rest[1] < '1' || rest[1] > '9' {
		return errCombined
	}
	if c.request != nil {
		v.put(*c.request, request)
	}
	if c.remote != nil {
		v.put(*c.remote, host)
	}
	if c.tail {
		return c.parseTail(rest[1:], v)
	}
	return nil
}

func (c *combined) parseTail(rest string, v *values) error {
	status, rest, _ := strings.Cut(rest, " ")
	size, rest, _ := strings.Cut(rest, " ")
	v.set("status", status)
	v.set("size", size)
	for i := 0; i < 2+maxExtra && rest != ""; i++ {
		var value string
		if quoted, ok := strings.CutPrefix(rest, `"`); ok {
			if value, rest, ok = cutQuoted(quoted); !ok {
				return errCombined
			}
			rest = strings.TrimPrefix(rest, " ")
		} else {
			value, rest, _ = strings.Cut(rest, " ")
		}
		switch i {
		case 0:
			v.set("referer", value)
		case 1:
			v.set("user_agent", value)
		default:
			v.set(c.extra[i-2], value)
		}
	}
	return nil
}

// cutQuoted cuts s behind the quote that ends it; a backslash takes the meaning from the next character.
func cutQuoted(s string) (value, rest string, ok bool) {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '"')
		if i < 0 {
			return "", "", false
		}
		i += from
		slashes := 0
		for i-slashes > 0 && s[i-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s[:i], s[i+1:], true
		}
		from = i + 1
	}
}

// csvLines reads comma-separated values as RFC 4180 writes them, one record a line.
type csvLines struct {
	columns []string
	sources []*source // of each column, nil where it is not read
	fields  []string
}

var (
	errCSVColumns = errors.New("the line has not as many values as there are columns")
	errCSVQuote   = errors.New("a quoted value does not end on its line")
)

func (c *csvLines) parse(line string, v *values) error {
	fields, err := c.split(line)
	if err != nil {
		return err
	}
	if len(fields) != len(c.columns) {
		return errCSVColumns
	}
	for i, from := range c.sources {
		if from != nil {
			v.put(*from, fields[i])
		}
	}
	return nil
}

// split returns the values of a line, which hold until the next one.
func (c *csvLines) split(line string) ([]string, error) {
	c.fields = c.fields[:0]
	line = strings.TrimPrefix(line, "\ufeff")
	for {
		var value string
		if strings.HasPrefix(line, `"`) {
			end := 1
			for {
				i := strings.IndexByte(line[end:], '"')
				if i < 0 {
					return nil, errCSVQuote
				}
				end += i + 1
				if end == len(line) || line[end] != '"' {
					break
				}
				end++ // a doubled quote
			}
			value = line[1 : end-1]
			if strings.Contains(value, `""`) {
				value = strings.ReplaceAll(value, `""`, `"`)
			}
			line = line[end:]
			if line != "" && line[0] != ',' {
				return nil, errCSVQuote
			}
		} else {
			end := strings.IndexByte(line, ',')
			if end < 0 {
				end = len(line)
			}
			value, line = line[:end], line[end:]
		}
		c.fields = append(c.fields, value)
		if line == "" {
			return c.fields, nil
		}
		line = line[1:]
	}
}
