package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// FieldError is one defect of a policy. Path and Message are written as the API server writes them, so that the schema
// and Validate say the same of the same file: "spec.rules[0].limits[0].window", "Required value".
type FieldError struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (e FieldError) Error() string { return e.Path + ": " + e.Message }

// Bounds on lists and strings; the schema has the same.
const (
	maxExempt      = 16
	maxMatch       = 16
	maxMethods     = 16
	maxHeaders     = 4
	maxKey         = 8
	maxFirstOf     = 4
	maxLimits      = 4
	maxOverrides   = 32
	maxValues      = 64
	maxName        = 253
	maxRuleName    = 63
	maxPath        = 512
	maxMethod      = 32
	maxHeaderName  = 256
	maxHeaderValue = 256
	maxAttribute   = 64
	maxValue       = 128
)

// The patterns of names; the schema has the same, byte for byte.
const (
	namePattern      = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	labelPattern     = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	attributePattern = `^[A-Za-z_][A-Za-z0-9_.-]*$`
)

var (
	nameRegexp      = regexp.MustCompile(namePattern)
	labelRegexp     = regexp.MustCompile(labelPattern)
	attributeRegexp = regexp.MustCompile(attributePattern)
)

// Validate says what is wrong with a policy, nil when nothing is. It refuses what the schema refuses, with the same
// paths, so that policies from files and scenarios meet the same bounds as those from the API server.
func Validate(p Policy) []FieldError {
	var f faults
	f.name("metadata.namespace", p.Metadata.Namespace, labelRegexp, labelPattern, maxRuleName)
	f.name("metadata.name", p.Metadata.Name, nameRegexp, namePattern, maxName)
	f.spec("spec", p.Spec)
	return f
}

// faults collects defects. Its methods check one kind of value each; path says where the value stands.
type faults []FieldError

// maxMessage bounds a message, which may quote a value of any length.
const maxMessage = 512

func (f *faults) add(path, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	*f = append(*f, FieldError{Path: path, Message: message})
}

func (f *faults) spec(path string, s Spec) {
	f.targetRef(path+".targetRef", s.TargetRef)
	oneOf(f, path+".evaluation", s.Evaluation, optional, EvaluationAll, EvaluationFirstMatch)
	oneOf(f, path+".mode", s.Mode, optional, ModeEnforce, ModeShadow)
	f.onStoreFailure(path+".onStoreFailure", s.OnStoreFailure, optional)
	oneOf(f, path+".snapshot", s.Snapshot, optional, SnapshotNone, SnapshotConfigMap)
	f.exempt(path+".exempt", s.Exempt)
	f.rules(path+".rules", s.Rules, s.Evaluation)
}

func (f *faults) targetRef(path string, t TargetRef) {
	if t == (TargetRef{}) {
		f.add(path, "Required value")
		return
	}
	oneOf(f, path+".group", t.Group, required, "apps")
	oneOf(f, path+".kind", t.Kind, required, "Deployment")
	f.name(path+".name", t.Name, nameRegexp, namePattern, maxName)
}

func (f *faults) rules(path string, rules []Rule, evaluation Evaluation) {
	f.items(path, len(rules), rules == nil, required, MaxRules)
	seen := make(map[string]bool, len(rules))
	for i, r := range rules {
		f.rule(index(path, i), r)
		if r.Name != "" && seen[r.Name] {
			f.add(index(path, i), "Duplicate value: {\"name\":%q}", r.Name)
		}
		seen[r.Name] = true
	}
	if evaluation != EvaluationFirstMatch {
		return
	}
	unreached := func(r Rule) bool { return r.Match == nil && r.Name != rules[len(rules)-1].Name }
	if slices.ContainsFunc(rules, unreached) {
		f.add(path, "under FirstMatch only the last rule may be without match: rules behind it would never be reached")
	}
}

func (f *faults) rule(path string, r Rule) {
	f.name(path+".name", r.Name, labelRegexp, labelPattern, maxRuleName)
	f.match(path+".match", r.Match)
	f.key(path+".key", r.Key)
	f.whenKeyMissing(path+".whenKeyMissing", r.WhenKeyMissing, optional)
	if r.WhenKeyMissing != "" && r.Key == nil {
		f.add(path+".whenKeyMissing", "needs a key: a rule without key counts the whole workload as one")
	}
	f.items(path+".limits", len(r.Limits), r.Limits == nil, required, maxLimits)
	f.limits(path+".limits", r.Limits)
	f.overrides(path+".overrides", r.Overrides, r.Limits)
	f.cost(path+".cost", r.Cost)
	f.localShare(path+".localShare", r.LocalShare, r.OnStoreFailure)
	f.lease(path+".lease", r.Lease, r.Limits)
	f.prefilter(path+".prefilter", r.Prefilter)
	oneOf(f, path+".mode", r.Mode, optional, ModeEnforce, ModeShadow)
	f.onStoreFailure(path+".onStoreFailure", r.OnStoreFailure, optional)
}

// localShare is refused where the rule itself says that it has no effect. Where the policy says so, it stays: switching
// a policy to FailOpen in an incident must not need an edit of each rule.
func (f *faults) localShare(path string, s *LocalShare, onStoreFailure OnStoreFailure) {
	if s == nil {
		return
	}
	if *s == (LocalShare{}) {
		f.add(path, "should have at least 1 properties")
	}
	oneOf(f, path+".rounding", s.Rounding, optional, RoundingNeverZero, RoundingNeverExceed)
	if onStoreFailure != "" && onStoreFailure != OnStoreFailureLocalShare {
		f.add(path, "only with onStoreFailure: LocalShare")
	}
}

func (f *faults) onStoreFailure(path string, o OnStoreFailure, p presence) {
	oneOf(f, path, o, p, OnStoreFailureLocalShare, OnStoreFailureFailOpen, OnStoreFailureFailClosed)
}

func (f *faults) whenKeyMissing(path string, w WhenKeyMissing, p presence) {
	oneOf(f, path, w, p, WhenKeyMissingClientIP, WhenKeyMissingAnonymous, WhenKeyMissingDeny, WhenKeyMissingSkip)
}

// presence says whether a value may be absent.
type presence bool

const (
	optional presence = false
	required presence = true
)

// items checks the length of a list: at least one item where it is given, and given where it is required.
func (f *faults) items(path string, n int, absent bool, p presence, most int) {
	switch {
	case absent:
		if p == required {
			f.add(path, "Required value")
		}
	case n == 0:
		f.add(path, "should have at least 1 items")
	case n > most:
		f.add(path, "Too many: %d: must have at most %d items", n, most)
	}
}

// name checks a required string against its pattern.
func (f *faults) name(path, value string, re *regexp.Regexp, pattern string, most int) {
	if value == "" {
		f.add(path, "Required value")
		return
	}
	f.text(path, value, re, pattern, most)
}

// text checks a string that is there against its pattern.
func (f *faults) text(path, value string, re *regexp.Regexp, pattern string, most int) {
	if utf8.RuneCountInString(value) > most {
		f.add(path, "Too long: may not be more than %d bytes", most)
	} else if !re.MatchString(value) {
		f.add(path, "Invalid value: %q: should match '%s'", value, pattern)
	}
}

// number checks that a number is in a range.
func (f *faults) number(path string, value, least, most int64) {
	switch {
	case value < least:
		f.add(path, "Invalid value: %d: should be greater than or equal to %d", value, least)
	case value > most:
		f.add(path, "Invalid value: %d: should be less than or equal to %d", value, most)
	}
}

// unique checks a list of strings that is a set.
func (f *faults) unique(path string, values []string) {
	seen := make(map[string]bool, len(values))
	for i, v := range values {
		if seen[v] {
			f.add(index(path, i), "Duplicate value: %q", v)
		}
		seen[v] = true
	}
}

// oneOf checks a value against the values that its field may have.
func oneOf[T ~string](f *faults, path string, value T, p presence, supported ...T) {
	if value == "" {
		if p == required {
			f.add(path, "Required value")
		}
		return
	}
	if slices.Contains(supported, value) {
		return
	}
	quoted := make([]string, len(supported))
	for i, s := range supported {
		quoted[i] = strconv.Quote(string(s))
	}
	f.add(path, "Unsupported value: %q: supported values: %s", value, strings.Join(quoted, ", "))
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
