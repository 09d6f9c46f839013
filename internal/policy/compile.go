package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/textproto"
	"slices"
	"strings"
)

// Reason is why a policy is part of its workload's row, or why not. The names are those of the condition Accepted.
type Reason string

// The values of Reason.
const (
	ReasonAccepted     Reason = "Accepted"
	ReasonInvalid      Reason = "Invalid"
	ReasonTooManyRules Reason = "TooManyRules"
	ReasonRowTooLarge  Reason = "RowTooLarge"
)

// Verdict is what Compile says of one policy.
type Verdict struct {
	Name       string
	UID        string
	Generation int64
	Reason     Reason
	// Message is a sentence for the user, empty when the policy is accepted.
	Message string
	// Errors are the defects of an Invalid policy, at least one; nil otherwise.
	Errors []FieldError
}

// Accepted says whether the policy is part of the row.
func (v Verdict) Accepted() bool { return v.Reason == ReasonAccepted }

// Compile makes the row of a workload from the policies that target it; policies that target another workload are left
// out, and get no verdict. The row has no revision and no PolicyList: the writer sets them. Without an accepted policy
// it is a tombstone.
//
// The oldest policies go first, by creationTimestamp, then name, and that is also the order of their rules in the row.
// A policy that does not fit beside the older ones, by MaxRules or MaxRowBytes, is refused whole; a newer one that fits
// is not. An invalid policy takes no room. Verdicts come in the same order.
func Compile(w Workload, owner string, policies []Policy) (Row, []Verdict) {
	row := Row{Version: RowVersion, Workload: w.String(), Owner: owner, Policies: []RowPolicy{}, Rules: []RowRule{}}
	size := sizeOfEmpty(row)
	names := make(map[string]bool)
	var verdicts []Verdict
	for _, p := range oldestFirst(policies) {
		if p.Workload() != w {
			continue
		}
		v := Verdict{Name: p.Metadata.Name, UID: p.Metadata.UID, Generation: p.Metadata.Generation, Reason: ReasonAccepted}
		v.Errors = Validate(p)
		if names[p.Metadata.Name] {
			v.Errors = append(v.Errors, FieldError{Path: "metadata.name", Message: fmt.Sprintf("Duplicate value: %q", p.Metadata.Name)})
		}
		names[p.Metadata.Name] = true
		if len(v.Errors) > 0 {
			v.Reason, v.Message = ReasonInvalid, invalidMessage(v.Errors)
			verdicts = append(verdicts, v)
			continue
		}
		rowPolicy, rules := compilePolicy(w, p)
		grown := size + sizeOf(rowPolicy, rules)
		switch {
		case len(row.Rules)+len(rules) > MaxRules:
			v.Reason = ReasonTooManyRules
			v.Message = fmt.Sprintf("%d rules do not fit beside the %d rules of older policies: a workload has at most %d", len(rules), len(row.Rules), MaxRules)
		case grown > MaxRowBytes:
			v.Reason = ReasonRowTooLarge
			v.Message = fmt.Sprintf("%d bytes do not fit beside the %d bytes of older policies: a workload's row has at most %d", grown-size, size, MaxRowBytes)
		default:
			row.Policies = append(row.Policies, rowPolicy)
			row.Rules = append(row.Rules, rules...)
			size = grown
		}
		verdicts = append(verdicts, v)
	}
	return row, verdicts
}

func oldestFirst(policies []Policy) []Policy {
	sorted := slices.Clone(policies)
	slices.SortStableFunc(sorted, func(a, b Policy) int {
		if c := a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp); c != 0 {
			return c
		}
		return strings.Compare(a.Metadata.Name, b.Metadata.Name)
	})
	return sorted
}

func invalidMessage(errors []FieldError) string {
	if more := len(errors) - 1; more > 0 {
		return fmt.Sprintf("%v (and %d more)", errors[0], more)
	}
	return errors[0].Error()
}

// sizeOfEmpty is the size of the encoded row without policies, with room for any revision and list version that the
// writer may set.
func sizeOfEmpty(row Row) int {
	digits := strings.Repeat("9", maxDecimalDigits)
	row.Revision = Revision{Epoch: digits, N: math.MaxInt64}
	row.PolicyList = digits
	return sizeInJSON(row)
}

// sizeOf is what a policy adds to the encoded row: its parts, each with a comma.
func sizeOf(p RowPolicy, rules []RowRule) int {
	size := sizeInJSON(p) + 1
	for _, r := range rules {
		size += sizeInJSON(r) + 1
	}
	return size
}

// sizeInJSON is never below the size that EncodeRow gives.
func sizeInJSON(v any) int {
	data, err := json.Marshal(v)
	if err != nil {
		return MaxRowBytes + 1 // Strings and numbers always encode.
	}
	return len(data)
}

func compilePolicy(w Workload, p Policy) (RowPolicy, []RowRule) {
	rowPolicy := RowPolicy{
		Name:       p.Metadata.Name,
		UID:        p.Metadata.UID,
		Generation: p.Metadata.Generation,
		Evaluation: orElse(p.Spec.Evaluation, EvaluationAll),
	}
	for _, e := range p.Spec.Exempt {
		e.Methods, e.PathPrefix = slices.Clone(e.Methods), rowPathPrefix(e.PathPrefix)
		rowPolicy.Exempt = append(rowPolicy.Exempt, e)
	}
	rules := make([]RowRule, len(p.Spec.Rules))
	for i, r := range p.Spec.Rules {
		rules[i] = compileRule(w, p, r)
	}
	return rowPolicy, rules
}

func compileRule(w Workload, p Policy, r Rule) RowRule {
	id := func(c counter) string { return LimitID(w, p.Metadata.Name, r.Name, c.algorithm, c.window) }
	rule := RowRule{
		Policy:         p.Metadata.Name,
		Name:           r.Name,
		Mode:           orElse(r.Mode, orElse(p.Spec.Mode, ModeEnforce)),
		Match:          rowMatch(r.Match),
		Key:            rowKey(r.Key),
		WhenKeyMissing: orElse(r.WhenKeyMissing, WhenKeyMissingClientIP),
		Limits:         rowLimits(r.Limits, id),
		OnStoreFailure: orElse(r.OnStoreFailure, orElse(p.Spec.OnStoreFailure, OnStoreFailureLocalShare)),
	}
	for _, o := range r.Overrides {
		rule.Overrides = append(rule.Overrides, RowOverride{
			When:      AttributeMatch{Attribute: o.When.Attribute, Values: slices.Clone(o.When.Values)},
			Limits:    rowLimits(o.Limits, id),
			Unlimited: o.Unlimited,
		})
	}
	if r.Cost != nil {
		rule.Cost = &Cost{Attribute: r.Cost.Attribute, Max: r.Cost.Max}
	}
	if r.Lease != nil {
		rule.Lease = r.Lease.Tokens
	}
	if r.Prefilter != nil {
		rule.Prefilter = r.Prefilter.Multiple
	}
	if rule.OnStoreFailure == OnStoreFailureLocalShare {
		rule.Rounding = RoundingNeverZero
		if r.LocalShare != nil {
			rule.Rounding = orElse(r.LocalShare.Rounding, RoundingNeverZero)
		}
	}
	return rule
}

func rowLimits(limits []Limit, id func(counter) string) []RowLimit {
	var compiled []RowLimit
	for _, l := range limits {
		c, _ := l.counter() // Validated before.
		rowLimit := RowLimit{ID: id(c), Algorithm: c.algorithm, Requests: *l.Requests, Window: c.window}
		if c.algorithm == TokenBucket {
			rowLimit.Burst = *l.Requests
			if l.Burst != nil {
				rowLimit.Burst = *l.Burst
			}
		}
		compiled = append(compiled, rowLimit)
	}
	return compiled
}

func rowMatch(match []Match) []Match {
	var compiled []Match
	for _, m := range match {
		m.Methods, m.PathPrefix = slices.Clone(m.Methods), rowPathPrefix(m.PathPrefix)
		m.Headers = slices.Clone(m.Headers)
		for i := range m.Headers {
			m.Headers[i].Name = textproto.CanonicalMIMEHeaderKey(m.Headers[i].Name)
		}
		compiled = append(compiled, m)
	}
	return compiled
}

// rowPathPrefix drops a slash at the end: /api/ holds for what /api holds for.
func rowPathPrefix(prefix string) string {
	if prefix == "/" {
		return prefix
	}
	return strings.TrimSuffix(prefix, "/")
}

// rowKey writes header names in the form that net/http keeps them in, so that another spelling of a name is the
// same identity, and fills in prefix lengths.
func rowKey(key []KeyPart) []KeyPart {
	var compiled []KeyPart
	for _, part := range key {
		part.Header = textproto.CanonicalMIMEHeaderKey(part.Header)
		if part.ClientIP != nil {
			ipv4, ipv6 := int32(32), int32(64)
			if part.ClientIP.IPv4PrefixLength != nil {
				ipv4 = *part.ClientIP.IPv4PrefixLength
			}
			if part.ClientIP.IPv6PrefixLength != nil {
				ipv6 = *part.ClientIP.IPv6PrefixLength
			}
			part.ClientIP = &ClientIP{IPv4PrefixLength: &ipv4, IPv6PrefixLength: &ipv6}
		}
		part.FirstOf = rowKey(part.FirstOf)
		compiled = append(compiled, part)
	}
	return compiled
}

// stateFormat is the version of the counters' stored state. It is part of every limit's ID, so that counters of two
// formats never meet.
const stateFormat = 1

// LimitID names the counters of a limit: 24 hexadecimal digits of SHA-256 over the parts, each with its length before
// it. The window is in µs. Requests and burst are no part of it: a changed number keeps its counters.
func LimitID(w Workload, policy, rule string, algorithm Algorithm, window int64) string {
	h := sha256.New()
	for _, part := range []string{w.Namespace, w.Group, w.Kind, w.Name, policy, rule, string(algorithm)} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(window)))
	h.Write(binary.BigEndian.AppendUint32(nil, stateFormat))
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func orElse[T ~string](value, otherwise T) T {
	if value == "" {
		return otherwise
	}
	return value
}
