package enforcer

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// snapshot is a row made ready for decisions. It does not change: readers load it from an atomic pointer.
type snapshot struct {
	revision policy.Revision
	source   RowSource
	// skipped counts the rules that need features which this library does not know.
	skipped int
	matcher *policy.Matcher
	rules   []rule
	keys    int // different keys among the rules
	reads   reads
}

// rule is one rule made ready.
type rule struct {
	policy, name string
	shadow       bool
	key          keyer
	limits       []limit
	overrides    []override
	cost         *policy.Cost
	onFailure    policy.OnStoreFailure
	rounding     policy.Rounding
	ahead        ahead
	serial       uint64 // of the snapshot: no two of an enforcer have the same
	tally        *tally
	match        []policy.Match
	sight        *sight
}

// limit is one limit made ready.
type limit struct {
	row   policy.RowLimit
	exact algorithm.Limit
}

type override struct {
	attribute string
	values    []string
	limits    []limit
	unlimited bool
}

// compileRow makes a snapshot of a row that policy.DecodeRow has accepted.
func compileRow(row policy.Row, skipped int, tallies *tallies) (*snapshot, error) {
	serial := tallies.next()
	s := &snapshot{revision: row.Revision, skipped: skipped, matcher: policy.NewMatcher(row)}
	for i := range row.Rules {
		r, err := compileRule(&row.Rules[i])
		if err != nil {
			return nil, fmt.Errorf("rule %s/%s: %w", row.Rules[i].Policy, row.Rules[i].Name, err)
		}
		r.key.index = s.keys
		for j := range i {
			if sameKey(&row.Rules[i], &row.Rules[j]) {
				r.key.index = s.rules[j].key.index
				break
			}
		}
		if r.key.index == s.keys {
			s.keys++
		}
		r.serial = serial
		r.tally = tallies.of(r.policy, r.name)
		r.match = row.Rules[i].Match
		s.reads.add(&r)
		s.rules = append(s.rules, r)
	}
	return s, nil
}

func sameKey(a, b *policy.RowRule) bool {
	return a.WhenKeyMissing == b.WhenKeyMissing && reflect.DeepEqual(a.Key, b.Key)
}

func compileRule(row *policy.RowRule) (rule, error) {
	r := rule{
		policy:    row.Policy,
		name:      row.Name,
		shadow:    row.Mode == policy.ModeShadow,
		key:       compileKey(row.Key, row.WhenKeyMissing),
		cost:      row.Cost,
		onFailure: row.OnStoreFailure,
		rounding:  row.Rounding,
		ahead:     ahead{lease: row.Lease, multiple: row.Prefilter},
	}
	var err error
	if r.limits, err = compileLimits(row.Limits); err != nil {
		return rule{}, err
	}
	for _, o := range row.Overrides {
		limits, err := compileLimits(o.Limits)
		if err != nil {
			return rule{}, err
		}
		r.overrides = append(r.overrides, override{
			attribute: o.When.Attribute, values: o.When.Values, limits: limits, unlimited: o.Unlimited,
		})
	}
	return r, nil
}

func compileLimits(rows []policy.RowLimit) ([]limit, error) {
	var limits []limit
	for _, row := range rows {
		exact, err := exactLimit(row)
		if err != nil {
			return nil, err
		}
		limits = append(limits, limit{row: row, exact: exact})
	}
	return limits, nil
}

func exactLimit(row policy.RowLimit) (algorithm.Limit, error) {
	kind, err := algorithm.Parse(string(row.Algorithm))
	if err != nil {
		return algorithm.Limit{}, err
	}
	return algorithm.Limit{Algorithm: kind, Requests: row.Requests, Window: row.Window, Burst: row.Burst}, nil
}

// limitsFor returns the limits for a request with these attributes; none when it is unlimited.
func (r *rule) limitsFor(attributes map[string]string) []limit {
	if i := r.overrideFor(attributes); i >= 0 {
		return r.overrides[i].limits
	}
	return r.limits
}

// overrideFor returns the place of the first override that holds for a request with these attributes, -1 if none does.
func (r *rule) overrideFor(attributes map[string]string) int {
	for i := range r.overrides {
		o := &r.overrides[i]
		if value, ok := attributes[o.attribute]; ok && slices.Contains(o.values, value) {
			return i
		}
	}
	return -1
}

// costOf reads the price of a request: 1 where the attribute says nothing sensible, and never more than the maximum.
func (r *rule) costOf(attributes map[string]string) int64 {
	if r.cost == nil {
		return 1
	}
	value := attributes[r.cost.Attribute]
	cost, err := strconv.ParseInt(value, 10, 64)
	switch {
	case err != nil && cost == 1<<63-1: // a whole number that no int64 holds
		return r.cost.Max
	case err != nil || cost < 1:
		return 1
	}
	return min(cost, r.cost.Max)
}

func (r *rule) maxCost() int64 {
	if r.cost == nil {
		return 1
	}
	return r.cost.Max
}
