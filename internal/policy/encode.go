package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// maxReadBytes bounds what a decoder looks at. It is above MaxRowBytes, which a writer keeps to, so that a later
// version may write more.
const maxReadBytes = 1 << 20

// maxDecimalDigits bounds an epoch and a resourceVersion, which are unsigned numbers of 64 bits, with room for what is
// added to an epoch.
const maxDecimalDigits = 24

// ErrNewerVersion is wrapped by the error of a decoder that met a version of the encoding above RowVersion.
var ErrNewerVersion = errors.New("the version of the encoding is newer than this library")

// features are the needs of rules that this code knows.
var features []string

// Features lists what rules may need beyond version 1 of the encoding and this code knows, sorted; none yet.
func Features() []string { return slices.Clone(features) }

// Problem is a rule that was skipped: it needs features that this code does not know. The other rules are enforced.
type Problem struct {
	Policy string
	Rule   string
	// Needs are the unknown features.
	Needs []string
}

func (p Problem) String() string {
	return fmt.Sprintf("rule %s/%s needs %q, which this library does not know", p.Policy, p.Rule, p.Needs)
}

// EncodeRow gives the form of the table. Equal rows give equal bytes. It refuses a row that DecodeRow would refuse and
// one above MaxRowBytes: a bad row must not reach a pod.
func EncodeRow(row Row) ([]byte, error) {
	if row.Policies == nil {
		row.Policies = []RowPolicy{}
	}
	if row.Rules == nil {
		row.Rules = []RowRule{}
	}
	data, err := encode(row)
	if err != nil {
		return nil, fmt.Errorf("encoding row: %w", err)
	}
	if len(data) > MaxRowBytes {
		return nil, fmt.Errorf("encoding row: %d bytes are more than %d", len(data), MaxRowBytes)
	}
	if _, _, err := DecodeRow(data); err != nil {
		return nil, fmt.Errorf("encoding row: %w", err)
	}
	return data, nil
}

// encode writes JSON without the escapes that are for HTML, so that a header's value stays readable.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// DecodeRow reads what EncodeRow, or that of another version, wrote. The reader must keep the last good row on an error:
// a row is taken whole or not at all, since a missing rule would be a missing limit.
//
// Only a rule that needs unknown features is left out, unread, and named by a Problem. Any other defect of any part,
// such as a null limit or an unknown algorithm, is an error. Unknown fields are ignored: what must not be ignored
// carries needs. An error wraps ErrNewerVersion where the row's version is above RowVersion.
func DecodeRow(data []byte) (Row, []Problem, error) {
	row, problems, err := decodeRow(data)
	if err != nil {
		return Row{}, nil, fmt.Errorf("decoding row: %w", err)
	}
	return row, problems, nil
}

func decodeRow(data []byte) (Row, []Problem, error) {
	if err := checkVersion(data, maxReadBytes); err != nil {
		return Row{}, nil, err
	}
	var wire struct {
		Row
		Rules []json.RawMessage `json:"rules"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return Row{}, nil, err
	}
	row := wire.Row
	// A list that is not there is not an empty one: a row that lost its rules must not lift all limits.
	if wire.Rules == nil || row.Policies == nil {
		return Row{}, nil, errors.New("rules and policies must be lists")
	}
	if len(wire.Rules) > MaxRules {
		return Row{}, nil, fmt.Errorf("%d rules are more than %d", len(wire.Rules), MaxRules)
	}
	row.Rules = make([]RowRule, 0, len(wire.Rules))
	var problems []Problem
	ruled := make(map[string]bool, len(row.Policies))
	for i, data := range wire.Rules {
		rule, problem, err := decodeRule(data)
		if err != nil {
			return Row{}, nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		if problem != nil {
			problems = append(problems, *problem)
			ruled[problem.Policy] = true
			continue
		}
		row.Rules = append(row.Rules, rule)
		ruled[rule.Policy] = true
	}
	var f faults
	f.row(row)
	for i, p := range row.Policies {
		if !ruled[p.Name] {
			f.add(index("policies", i), "%q has no rules", p.Name)
		}
	}
	if len(f) > 0 {
		return Row{}, nil, f[0]
	}
	return row, problems, nil
}

// decodeRule reads the needs first and nothing else of a rule whose needs are unknown.
func decodeRule(data []byte) (RowRule, *Problem, error) {
	var head struct {
		Policy string   `json:"policy"`
		Name   string   `json:"name"`
		Needs  []string `json:"needs"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return RowRule{}, nil, err
	}
	var unknown []string
	for _, need := range head.Needs {
		if !slices.Contains(features, need) {
			unknown = append(unknown, need)
		}
	}
	if unknown != nil {
		return RowRule{}, &Problem{Policy: head.Policy, Rule: head.Name, Needs: unknown}, nil
	}
	var rule RowRule
	if err := json.Unmarshal(data, &rule); err != nil {
		return RowRule{}, nil, err
	}
	if len(rule.Needs) == 0 {
		rule.Needs = nil // one form for none
	}
	return rule, nil, nil
}

// checkVersion looks at the size and the version before anything else is read.
func checkVersion(data []byte, most int) error {
	if len(data) > most {
		return fmt.Errorf("%d bytes are more than %d", len(data), most)
	}
	var head struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return err
	}
	if head.Version > RowVersion {
		return fmt.Errorf("version %d: %w", head.Version, ErrNewerVersion)
	}
	if head.Version < 1 {
		return fmt.Errorf("version %d is no version", head.Version)
	}
	return nil
}

// UnmarshalJSON refuses a limit without requests: a number that was lost must not deny everything.
func (l *RowLimit) UnmarshalJSON(data []byte) error {
	type plain RowLimit
	wire := struct {
		*plain
		Requests *int64 `json:"requests"`
	}{plain: (*plain)(l)}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	if wire.Requests == nil {
		return errors.New("a limit has no requests")
	}
	l.Requests = *wire.Requests
	return nil
}
