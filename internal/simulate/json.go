package simulate

import (
	"encoding/json"
	"errors"
	"strings"
)

// jsonLines reads one object a line. It looks at every byte and understands only what is asked for: decoding the whole
// object would take several times as long as deciding about it.
type jsonLines struct{}

var errJSON = errors.New("not a JSON object on one line")

// maxNesting bounds how deep names with dots are looked for.
const maxNesting = 4

func (jsonLines) parse(line string, v *values) error {
	s := &scanner{text: line, values: v}
	s.space()
	if !s.object("", 0) {
		return errJSON
	}
	s.space()
	if s.at != len(s.text) {
		return errJSON
	}
	return nil
}

// scanner walks over a line. Its methods return false where the text is not JSON.
type scanner struct {
	text   string
	at     int
	values *values
}

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t') {
		s.at++
	}
}

func (s *scanner) take(c byte) bool {
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

// object reads an object whose members have the prefix before their names.
func (s *scanner) object(prefix string, depth int) bool {
	if !s.take('{') {
		return false
	}
	s.space()
	if s.take('}') {
		return true
	}
	for {
		s.space()
		name, ok := s.string()
		if !ok {
			return false
		}
		s.space()
		if !s.take(':') {
			return false
		}
		s.space()
		if prefix != "" {
			name = prefix + "." + name
		}
		if !s.member(name, depth) {
			return false
		}
		s.space()
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// member reads the value of a name. Of a list, as Caddy writes headers, it is the first text.
func (s *scanner) member(name string, depth int) bool {
	if s.at >= len(s.text) {
		return false
	}
	from, read := s.values.find(name)
	switch s.text[s.at] {
	case '{':
		if depth < maxNesting && s.values.maybe(name) && s.values.parents[name] {
			return s.object(name, depth+1)
		}
		return s.skip()
	case '[':
		start := s.at
		if !s.skip() {
			return false
		}
		if read {
			var list []string
			if json.Unmarshal([]byte(s.text[start:s.at]), &list) == nil && len(list) > 0 {
				s.values.put(from, list[0])
			}
		}
		return true
	case '"':
		value, ok := s.string()
		if ok && read {
			s.values.put(from, value)
		}
		return ok
	}
	start := s.at
	if !s.skip() {
		return false
	}
	if value := s.text[start:s.at]; read && value != "null" {
		s.values.put(from, value)
	}
	return true
}

// string reads a text.
func (s *scanner) string() (string, bool) {
	if !s.take('"') {
		return "", false
	}
	value, rest, ok := cutQuoted(s.text[s.at:])
	if !ok {
		return "", false
	}
	start := s.at - 1
	s.at = len(s.text) - len(rest)
	if strings.IndexByte(value, '\\') < 0 {
		return value, true
	}
	var decoded string
	err := json.Unmarshal([]byte(s.text[start:s.at]), &decoded)
	return decoded, err == nil
}

// skip passes over a value.
func (s *scanner) skip() bool {
	if s.at >= len(s.text) {
		return false
	}
	switch s.text[s.at] {
	case '"':
		s.at++
		_, rest, ok := cutQuoted(s.text[s.at:])
		s.at = len(s.text) - len(rest)
		return ok
	case '{', '[':
		depth := 0
		for s.at < len(s.text) {
			switch s.text[s.at] {
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					s.at++
					return true
				}
			case '"':
				if !s.skip() {
					return false
				}
				continue
			}
			s.at++
		}
		return false
	}
	start := s.at
	for s.at < len(s.text) && !endsScalar(s.text[s.at]) {
		s.at++
	}
	return scalar(s.text[start:s.at])
}

func endsScalar(c byte) bool { return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\t' }

// scalar says whether a value without quotes is one of JSON's.
func scalar(s string) bool {
	switch s {
	case "":
		return false
	case "true", "false", "null":
		return true
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			return false
		}
	}
	return true
}
