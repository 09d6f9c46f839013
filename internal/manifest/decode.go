package manifest

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reader is a type that reads itself from a value of a file. It notes what is wrong by Node.Fault.
type Reader interface {
	ReadManifest(n Node)
}

// Enum is a kind of text that has a few possible values.
type Enum interface {
	Supported() []string
}

// Decode reads the value into what v points to, by the names of the json tags. It notes every defect and goes on, and
// says whether there was none; where there was one, what v then holds is of no use.
func (n Node) Decode(v any) bool {
	before := n.state.noted
	n.decode(reflect.ValueOf(v).Elem())
	return n.state.noted == before
}

func (n Node) decode(v reflect.Value) {
	y := n.resolved()
	if y.ShortTag() == "!!null" && y.Kind == yaml.ScalarNode {
		switch v.Addr().Interface().(type) {
		case *Ignored, *timestamp:
		default:
			n.Fault("has no value: write one or leave the field out")
		}
		return
	}
	if r, ok := v.Addr().Interface().(Reader); ok {
		r.ReadManifest(n)
		return
	}
	if t, ok := v.Addr().Interface().(*time.Time); ok {
		n.decodeTime(t)
		return
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if text, ok := n.text(); ok {
			if err := t.UnmarshalText([]byte(text)); err != nil {
				n.Fault("Invalid value: %q: %v", text, err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n.decode(v.Elem())
	case reflect.Struct:
		n.decodeStruct(v)
	case reflect.Map:
		n.decodeMap(v)
	case reflect.Slice:
		n.decodeSlice(v)
	case reflect.String:
		n.decodeString(v)
	case reflect.Bool:
		if y.Kind != yaml.ScalarNode || y.ShortTag() != "!!bool" {
			n.Fault("must be true or false, not %s", describe(y))
			return
		}
		v.SetBool(strings.EqualFold(y.Value, "true"))
	case reflect.Int, reflect.Int32, reflect.Int64:
		n.decodeInt(v)
	default:
		panic(fmt.Sprintf("manifest: a field of type %v cannot be read from a file", v.Type()))
	}
}

func (n Node) decodeStruct(v reflect.Value) {
	if !n.IsMapping() {
		n.Fault("must have fields, not be %s", describe(n.resolved()))
		return
	}
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool)
	for key, value := range n.Fields() {
		if !value.goodKey(key, seen) {
			continue
		}
		i, ok := fields[key.Value]
		if !ok {
			value.unknown(key, fields)
			continue
		}
		value.decode(v.FieldByIndex(i))
	}
}

// goodKey refuses keys that are not text and those that a mapping has twice, of which readers take one or the other.
func (n Node) goodKey(key *yaml.Node, seen map[string]bool) bool {
	if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null" {
		n.faultAt(n.path, key.Line, "the name of a field must be text")
		return false
	}
	if seen[key.Value] {
		n.faultAt(n.path, key.Line, "is there twice")
		return false
	}
	seen[key.Value] = true
	return true
}

// fieldsOf gives the indices of the fields by their json names, those of embedded structs included.
func fieldsOf(t reflect.Type) map[string][]int {
	fields := make(map[string][]int)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			fields[name] = f.Index
		}
	}
	return fields
}

// unknown names the field that was probably meant, or all that there are.
func (n Node) unknown(key *yaml.Node, fields map[string][]int) {
	for _, field := range sortedKeys(fields) {
		if alike(key.Value, field) {
			n.state.meant = append(n.state.meant, strings.TrimSuffix(n.path, key.Value)+field)
			n.faultAt(n.path, key.Line, fmt.Sprintf("unknown field: did you mean %s?", field))
			return
		}
	}
	n.faultAt(n.path, key.Line, "unknown field: known are "+strings.Join(sortedKeys(fields), ", "))
}

func alike(name, field string) bool {
	return strings.EqualFold(name, field) || strings.TrimSuffix(name, "s") == strings.TrimSuffix(field, "s") || oneOff(name, field)
}

// oneOff says whether one letter was forgotten, added or changed, or two neighbours swapped.
func oneOff(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	j := 0
	for j < len(a)-i && a[len(a)-1-j] == b[len(b)-1-j] {
		j++
	}
	switch len(b) - len(a) {
	case 0:
		rest := len(a) - i - j
		return len(a) > 2 && (rest <= 1 || rest == 2 && a[i] == b[i+1] && a[i+1] == b[i])
	case 1:
		return i+j >= len(a)
	}
	return false
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (n Node) decodeMap(v reflect.Value) {
	if !n.IsMapping() {
		n.Fault("must have fields, not be %s", describe(n.resolved()))
		return
	}
	made := reflect.MakeMap(v.Type())
	seen := make(map[string]bool)
	for key, value := range n.Fields() {
		if !value.goodKey(key, seen) {
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		value.decode(item)
		made.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), item)
	}
	v.Set(made)
}

func (n Node) decodeSlice(v reflect.Value) {
	if !n.IsSequence() {
		n.Fault("must be a list, not %s", describe(n.resolved()))
		return
	}
	made := reflect.MakeSlice(v.Type(), 0, 0)
	for value := range n.Items() {
		item := reflect.New(v.Type().Elem()).Elem()
		value.decode(item)
		made = reflect.Append(made, item)
	}
	v.Set(made)
}

func (n Node) decodeString(v reflect.Value) {
	text, ok := n.text()
	if !ok {
		return
	}
	v.SetString(text)
	enum, ok := v.Interface().(Enum)
	if ok && !slices.Contains(enum.Supported(), text) {
		n.Fault("Unsupported value: %q: supported values: %s", text, quotedList(enum.Supported()))
	}
}

func quotedList(values []string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = strconv.Quote(value)
	}
	return strings.Join(quoted, ", ")
}

// text returns a value that every YAML reader takes as text.
func (n Node) text() (string, bool) {
	y := n.resolved()
	if y.Kind != yaml.ScalarNode {
		n.Fault("must be text, not %s", describe(y))
		return "", false
	}
	switch tag := y.ShortTag(); {
	case tag != "!!str" && tag != "!!timestamp":
		n.Fault("must be text: write %q", y.Value)
		return "", false
	case y.Style == 0 && isOldBool(y.Value):
		n.Fault("must be text: for kubectl this word is a boolean; write %q", y.Value)
		return "", false
	}
	return y.Value, true
}

// isOldBool says whether a word without quotes is a boolean in YAML 1.1, which kubectl reads.
func isOldBool(word string) bool {
	switch strings.ToLower(word) {
	case "y", "yes", "on", "n", "no", "off":
		return true
	}
	return false
}

func (n Node) decodeInt(v reflect.Value) {
	y := n.resolved()
	if y.Kind != yaml.ScalarNode || y.ShortTag() != "!!int" {
		n.Fault("must be a whole number, not %s", describe(y))
		return
	}
	var i int64
	if err := y.Decode(&i); err != nil || v.OverflowInt(i) {
		n.Fault("Invalid value: %s: is out of range", y.Value)
		return
	}
	v.SetInt(i)
}

func (n Node) decodeTime(t *time.Time) {
	text, ok := n.text()
	if !ok {
		return
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		n.Fault("Invalid value: %q: must be a time like 2026-01-31T12:00:00Z", text)
		return
	}
	*t = parsed
}

func describe(y *yaml.Node) string {
	switch y.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if tag := y.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
			return strconv.Quote(y.Value)
		}
		return y.Value
	default: // there is no alias behind resolved, and no document in a document
		return "nothing"
	}
}

// Ignored takes any value.
type Ignored struct{}

// ReadManifest does nothing.
func (*Ignored) ReadManifest(Node) {}
