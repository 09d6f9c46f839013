package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one defect of a file, and where it stands.
type Fault struct {
	File string `json:"file"`
	// Line counts from 1; 0 where none is known.
	Line int `json:"line,omitempty"`
	// Path is written as the API server writes it: "spec.rules[0].limits[0].window". Empty is the whole document.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// Error gives "file:line: path: message".
func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	if f.Path != "" {
		b.WriteString(": " + f.Path)
	}
	b.WriteString(": " + f.Message)
	return b.String()
}

// Faults are the defects of one or several files. It is an error when it is not empty; see Err.
type Faults []Fault

// Error gives one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Err is nil when there are no faults.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// sort orders the faults of one file by line; those of one line stay in the order in which they were found.
func (f Faults) sort() {
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
}
