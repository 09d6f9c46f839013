package policy

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// DeniedReport is whom one enforcer denied most of late. It is kept apart from the enforcer's Report, and only for as
// long as somebody is denied.
type DeniedReport struct {
	Version int    `json:"v"`
	Pod     string `json:"pod"`
	// From and To are the time that was counted, in µs on the store's clock.
	From  int64        `json:"from"`
	To    int64        `json:"to"`
	Rules []DeniedRule `json:"rules"`
}

// DeniedRule is whom one rule denied. Requests that failed closed, lacked a key or met a shadow rule are not counted.
type DeniedRule struct {
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	// Total is how many requests were denied, of all identities.
	Total int64 `json:"total"`
	// Floor is how many requests were denied at most of an identity that is not listed.
	Floor      int64            `json:"floor,omitempty"`
	Identities []DeniedIdentity `json:"identities"` // most first
}

// DeniedIdentity is one identity that was denied.
type DeniedIdentity struct {
	// ID is the identity's hash in hexadecimal form; Name what the application calls it, empty unless it does.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Denied is never too low; it is too high by at most Over.
	Denied int64 `json:"denied"`
	Over   int64 `json:"over,omitempty"`
}

// Bounds of a DeniedReport: 128 identities with names are 20 KB.
const (
	MaxDeniedIdentities = 128
	MaxDeniedOfRule     = 32
	MaxDeniedName       = 64 // bytes
	maxDeniedBytes      = 64 << 10
	maxDeniedCount      = 1e15 // so that no sum of them overflows
	identityBytes       = 16
)

// EncodeDenied gives the form of the table.
func EncodeDenied(r DeniedReport) ([]byte, error) {
	r.Version = RowVersion
	data, err := encode(r)
	if err == nil {
		_, err = DecodeDenied(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding denied identities: %w", err)
	}
	return data, nil
}

// DecodeDenied reads what EncodeDenied wrote. It comes from applications, which may write anything in its place.
func DecodeDenied(data []byte) (DeniedReport, error) {
	r, err := decodeDenied(data)
	if err != nil {
		return DeniedReport{}, fmt.Errorf("decoding denied identities: %w", err)
	}
	return r, nil
}

func decodeDenied(data []byte) (DeniedReport, error) {
	var r DeniedReport
	if err := checkVersion(data, maxDeniedBytes); err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	var f faults
	f.name("pod", r.Pod, reportedRegexp, reportedRegexp.String(), maxName)
	if r.From < 0 || r.To < r.From {
		f.add("to", "must not be before from")
	}
	f.items("rules", len(r.Rules), len(r.Rules) == 0, optional, MaxRules)
	identities := 0
	for i, rule := range r.Rules {
		f.deniedRule(index("rules", i), rule)
		identities += len(rule.Identities)
	}
	if identities > MaxDeniedIdentities {
		f.add("rules", "%d identities are more than %d", identities, MaxDeniedIdentities)
	}
	if len(f) > 0 {
		return r, f[0]
	}
	return r, nil
}

func (f *faults) deniedRule(path string, r DeniedRule) {
	f.name(path+".policy", r.Policy, nameRegexp, namePattern, maxName)
	f.name(path+".rule", r.Rule, labelRegexp, labelPattern, maxRuleName)
	if r.Total < 0 || r.Floor < 0 || max(r.Total, r.Floor) > maxDeniedCount {
		f.add(path+".total", "no count is negative, or above 1e15")
	}
	for i, id := range r.Identities {
		if err := id.check(); err != nil {
			f.add(index(path+".identities", i), "%v", err)
		}
	}
}

func (d *DeniedIdentity) check() error {
	if raw, err := hex.DecodeString(d.ID); err != nil || len(raw) != identityBytes {
		return errors.New("the id is no identity")
	}
	if len(d.Name) > MaxDeniedName {
		return fmt.Errorf("the name is longer than %d bytes", MaxDeniedName)
	}
	if d.Over < 0 || d.Denied < d.Over || d.Denied > maxDeniedCount {
		return errors.New("no count is negative, below its error, or above 1e15")
	}
	return nil
}

// MergeDenied adds up what was counted apart, by several enforcers or at several times, and keeps most identities of
// each rule. Rules that denied most come first. As in each of the parts, no count is too low: an identity that a part
// does not list may have been denied as often there as the part's Floor.
//
// It is the merge of Agarwal and others, "Mergeable Summaries" (2012): the errors add up.
func MergeDenied(parts [][]DeniedRule, most int) []DeniedRule {
	byRule := map[RuleName][]DeniedRule{}
	for _, part := range parts {
		for _, r := range part {
			name := RuleName{r.Policy, r.Rule}
			byRule[name] = append(byRule[name], r)
		}
	}
	merged := make([]DeniedRule, 0, len(byRule))
	for _, same := range byRule {
		merged = append(merged, mergeRule(same, most))
	}
	slices.SortFunc(merged, func(a, b DeniedRule) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Policy, b.Policy), strings.Compare(a.Rule, b.Rule))
	})
	return merged
}

func mergeRule(parts []DeniedRule, most int) DeniedRule {
	sum := DeniedRule{Policy: parts[0].Policy, Rule: parts[0].Rule}
	byID := map[string]*DeniedIdentity{}
	floors := map[string]int64{} // of the parts that list an identity
	for _, part := range parts {
		sum.Total += part.Total
		sum.Floor += part.Floor
		for _, id := range part.Identities {
			known := byID[id.ID]
			if known == nil {
				known = &DeniedIdentity{ID: id.ID}
				byID[id.ID] = known
			}
			known.Name = cmp.Or(id.Name, known.Name)
			known.Denied += id.Denied
			known.Over += id.Over
			floors[id.ID] += part.Floor
		}
	}
	for id, known := range byID {
		unlisted := sum.Floor - floors[id]
		known.Denied, known.Over = known.Denied+unlisted, known.Over+unlisted
		sum.Identities = append(sum.Identities, *known)
	}
	slices.SortFunc(sum.Identities, func(a, b DeniedIdentity) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Over, b.Over), strings.Compare(a.ID, b.ID))
	})
	if len(sum.Identities) > most {
		sum.Floor = max(sum.Floor, sum.Identities[most].Denied)
		sum.Identities = sum.Identities[:most]
	}
	return sum
}
