package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxFileBytes bounds a file; the largest policy that the API server takes has 1.5 MB.
	maxFileBytes = 4 << 20
	// maxVisits bounds the values that are read from one file, so that aliases of aliases end.
	maxVisits = 250_000
	// maxDepth bounds how deep values stand in each other; an alias inside its own anchor has no end.
	maxDepth = 100
)

// File is a YAML file, parsed but not yet read.
type File struct {
	// Name is the file as the user named it.
	Name string
	// Documents are those that are not empty.
	Documents []Node
	state     *state
}

// state is shared by the nodes of one file.
type state struct {
	file   string
	faults Faults
	noted  int // faults, also those that are not told
	visits int
	// meant are the paths of fields that were written with another name.
	meant []string
}

// ReadFile parses a file. A syntax error is a fault of the file; an error says that it could not be opened.
func ReadFile(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading file: %w", err)
	}
	return Parse(name, data), nil
}

// Parse parses the text of a file.
func Parse(name string, data []byte) *File {
	f := &File{Name: name, state: &state{file: name}}
	if len(data) > maxFileBytes {
		f.state.faults = Faults{{File: name, Message: fmt.Sprintf("the file has more than %d bytes", maxFileBytes)}}
		return f
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return f
		}
		if err != nil {
			// What stands before the error may be half of what the user meant.
			f.Documents = nil
			f.state.faults = Faults{syntaxFault(name, data, err)}
			return f
		}
		if len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null" {
			continue
		}
		root := Node{yaml: document.Content[0], state: f.state}
		root.ownAnchors(document.Content[0], document.Line)
		f.Documents = append(f.Documents, root)
	}
}

// Faults are those found until now, by line.
func (f *File) Faults() Faults {
	f.state.faults.sort()
	return f.state.faults
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)

func syntaxFault(name string, data []byte, err error) Fault {
	message := err.Error()
	fault := Fault{File: name, Message: message}
	if found := syntaxLine.FindStringSubmatch(message); found != nil {
		fault.Message = "not YAML: " + strings.TrimPrefix(message, found[0])
		if line, err := strconv.Atoi(found[1]); err == nil {
			fault.Line = line
		}
		// The library counts the lines of what it calls parser errors from 0.
		if strings.HasPrefix(fault.Message, "not YAML: did not find expected") {
			fault.Line++
		}
		fault.Line = min(fault.Line, 1+bytes.Count(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")))
	}
	return fault
}

// ownAnchors refuses aliases of anchors in a document before, which start at a line below first: other readers take each
// document by itself.
func (n Node) ownAnchors(y *yaml.Node, first int) {
	if y.Kind == yaml.AliasNode && y.Alias.Line < first {
		n.faultAt("", y.Line, fmt.Sprintf("*%s stands for an anchor of another document", y.Value))
	}
	for _, inner := range y.Content {
		n.ownAnchors(inner, first)
	}
}
