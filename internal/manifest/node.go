package manifest

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Node is one value of a file with its path. The zero value is none.
type Node struct {
	yaml  *yaml.Node
	path  string
	depth int
	state *state
}

// Line counts from 1.
func (n Node) Line() int { return n.yaml.Line }

// Path is where the value stands in its document, for example "steps[2].send.count"; empty for the document itself.
func (n Node) Path() string { return n.path }

// Fault notes a defect of this value.
func (n Node) Fault(format string, args ...any) {
	n.faultAt(n.path, n.Line(), fmt.Sprintf(format, args...))
}

// FaultAt notes a defect of the value that stands at a path below this one, such as "limits[0].window". Where nothing
// stands there, the line is that of what would hold it.
func (n Node) FaultAt(path, message string) {
	found := n.Find(path)
	n.faultAt(join(n.path, path), found.Line(), message)
}

func (n Node) faultAt(path string, line int, message string) {
	n.state.noted++
	switch {
	case n.state.noted > maxFaults+1:
		return
	case n.state.noted == maxFaults+1:
		message = "too many faults: the rest of the file is not told"
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	n.state.faults = append(n.state.faults, Fault{File: n.state.file, Line: line, Path: path, Message: message})
}

const (
	// maxMessage bounds a message, which may quote a value of any length.
	maxMessage = 512
	// maxFaults bounds the faults of one file.
	maxFaults = 100
)

// IsMapping says whether the value has fields.
func (n Node) IsMapping() bool { return n.resolved().Kind == yaml.MappingNode }

// IsSequence says whether the value is a list.
func (n Node) IsSequence() bool { return n.resolved().Kind == yaml.SequenceNode }

// IsText says whether the value is text.
func (n Node) IsText() bool {
	y := n.resolved()
	return y.Kind == yaml.ScalarNode && y.ShortTag() == "!!str"
}

// Get returns the value of a field.
func (n Node) Get(name string) (Node, bool) {
	for key, value := range n.Fields() {
		if key.Value == name {
			return value, true
		}
	}
	return Node{}, false
}

// Text returns the value of a field that is text, and empty otherwise. It notes no fault: it is for looking at what a
// document is before it is read.
func (n Node) Text(name string) string {
	field, ok := n.Get(name)
	if !ok || !field.IsText() {
		return ""
	}
	return field.resolved().Value
}

// Fields yields the keys and values of a mapping, with the fields of what is merged into it behind its own.
func (n Node) Fields() iter.Seq2[*yaml.Node, Node] {
	return func(yield func(*yaml.Node, Node) bool) {
		n.eachField(nil, yield)
	}
}

func (n Node) eachField(hidden []string, yield func(*yaml.Node, Node) bool) bool {
	y := n.resolved()
	if y.Kind != yaml.MappingNode || !n.enter() {
		return true
	}
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		if key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if slices.Contains(hidden, key.Value) {
			continue
		}
		if !yield(key, Node{yaml: value, path: join(n.path, key.Value), depth: n.depth + 1, state: n.state}) {
			return false
		}
	}
	if len(merged) == 0 {
		return true
	}
	hidden = slices.Clone(hidden)
	for i := 0; i < len(y.Content); i += 2 {
		hidden = append(hidden, y.Content[i].Value)
	}
	for _, value := range merged {
		from := Node{yaml: value, path: n.path, depth: n.depth + 1, state: n.state}
		sources := []Node{from}
		if from.IsSequence() {
			sources = slices.Collect(from.Items())
		}
		for _, source := range sources {
			source.path = n.path
			if !source.IsMapping() {
				source.Fault("<< merges mappings only")
				continue
			}
			if !source.eachField(hidden, yield) {
				return false
			}
			for key := range source.Fields() {
				hidden = append(hidden, key.Value)
			}
		}
	}
	return true
}

// Items yields the items of a list.
func (n Node) Items() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		y := n.resolved()
		if y.Kind != yaml.SequenceNode || !n.enter() {
			return
		}
		for i, item := range y.Content {
			if !yield(Node{yaml: item, path: n.path + "[" + strconv.Itoa(i) + "]", depth: n.depth + 1, state: n.state}) {
				return
			}
		}
	}
}

// enter bounds how much of a file is read.
func (n Node) enter() bool {
	n.state.visits++
	switch {
	case n.depth > maxDepth:
		n.Fault("values stand in each other more than %d deep", maxDepth)
		n.state.visits = maxVisits + 1
	case n.state.visits == maxVisits:
		n.Fault("the file has more than %d values", maxVisits)
	}
	return n.depth <= maxDepth && n.state.visits < maxVisits
}

// resolved follows aliases.
func (n Node) resolved() *yaml.Node {
	y := n.yaml
	for range maxDepth {
		if y.Kind != yaml.AliasNode {
			return y
		}
		y = y.Alias
	}
	return y
}

// Find goes down a path as far as the file has it.
func (n Node) Find(path string) Node {
	for path != "" {
		var step string
		if rest, ok := strings.CutPrefix(path, "["); ok {
			step, path, _ = strings.Cut(rest, "]")
			item, ok := n.item(step)
			if !ok {
				return n
			}
			n = item
			continue
		}
		path = strings.TrimPrefix(path, ".")
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		if step, path = path[:end], path[end:]; step == "" {
			return n
		}
		field, ok := n.Get(step)
		if !ok {
			return n
		}
		n = field
	}
	return n
}

func (n Node) item(index string) (Node, bool) {
	i, err := strconv.Atoi(index)
	if err != nil {
		return Node{}, false
	}
	for item := range n.Items() {
		if i == 0 {
			return item, true
		}
		i--
	}
	return Node{}, false
}

func join(path, field string) string {
	if path == "" || field == "" || field[0] == '[' {
		return path + field
	}
	return path + "." + field
}
