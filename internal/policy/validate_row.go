package policy

import (
	"regexp"
	"slices"
)

var (
	decimalRegexp = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	idRegexp      = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`)
)

// row checks a decoded row as Validate checks a policy, so that whatever reaches an enforcer is in the ranges that its
// arithmetic is exact for. Paths start at the row.
func (f *faults) row(row Row) {
	if w, err := ParseWorkload(row.Workload); err != nil || w.String() != row.Workload {
		f.add("workload", "Invalid value: %q: must be namespace/group/kind/name", row.Workload)
	}
	f.revision("revision", row.Revision)
	if row.PolicyList != "" {
		f.decimal("policyList", row.PolicyList)
	}
	names := make([]string, len(row.Policies))
	for i, p := range row.Policies {
		at := index("policies", i)
		f.name(at+".name", p.Name, nameRegexp, namePattern, maxName)
		oneOf(f, at+".evaluation", p.Evaluation, required, EvaluationAll, EvaluationFirstMatch)
		f.exempt(at+".exempt", p.Exempt)
		names[i] = p.Name
	}
	f.unique("policies", names)
	f.rowRules(row.Rules, names)
}

// rowRules demands that the rules of a policy stand together and the policies in their order, because FirstMatch goes
// by the order.
func (f *faults) rowRules(rules []RowRule, policies []string) {
	type name struct{ policy, rule string }
	seen := make(map[name]bool, len(rules))
	last := 0
	for i, r := range rules {
		at := index("rules", i)
		f.rowRule(at, r)
		switch position := slices.Index(policies, r.Policy); {
		case position < 0:
			f.add(at+".policy", "Invalid value: %q: is not among the policies", r.Policy)
		case position < last:
			f.add(at+".policy", "Invalid value: %q: rules must stand in the order of the policies", r.Policy)
		default:
			last = position
		}
		if n := (name{r.Policy, r.Name}); seen[n] {
			f.add(at, "Duplicate value: %q", r.Policy+"/"+r.Name)
		} else {
			seen[n] = true
		}
	}
}

func (f *faults) rowRule(at string, r RowRule) {
	f.name(at+".name", r.Name, labelRegexp, labelPattern, maxRuleName)
	oneOf(f, at+".mode", r.Mode, required, ModeEnforce, ModeShadow)
	f.match(at+".match", r.Match)
	f.key(at+".key", r.Key)
	f.whenKeyMissing(at+".whenKeyMissing", r.WhenKeyMissing, required)
	f.items(at+".limits", len(r.Limits), r.Limits == nil, required, maxLimits)
	counters := f.rowLimits(at+".limits", r.Limits)
	f.items(at+".overrides", len(r.Overrides), r.Overrides == nil, optional, maxOverrides)
	for i, o := range r.Overrides {
		f.rowOverride(index(at+".overrides", i), o, counters)
	}
	f.cost(at+".cost", r.Cost)
	f.onStoreFailure(at+".onStoreFailure", r.OnStoreFailure, required)
	oneOf(f, at+".rounding", r.Rounding, presence(r.OnStoreFailure == OnStoreFailureLocalShare), RoundingNeverZero, RoundingNeverExceed)
	f.rowAhead(at, r)
}

// rowAhead checks what a replica decides before it asks the store.
func (f *faults) rowAhead(at string, r RowRule) {
	if r.Lease != 0 {
		f.number(at+".lease", r.Lease, 2, MaxLease)
	}
	if r.Prefilter != 0 {
		f.number(at+".prefilter", r.Prefilter, 1, MaxMultiple)
	}
	if r.Lease != 0 && slices.ContainsFunc(r.Limits, func(l RowLimit) bool { return l.Algorithm == SlidingWindowLog }) {
		f.add(at+".lease", "not with algorithm SlidingWindowLog")
	}
}

func (f *faults) rowOverride(at string, o RowOverride, counters map[string]counter) {
	f.attributeMatch(at+".when", o.When)
	if (o.Limits != nil) == o.Unlimited {
		f.add(at, "exactly one of limits and unlimited: true must be set")
	}
	f.items(at+".limits", len(o.Limits), o.Limits == nil, optional, maxLimits)
	for id, c := range f.rowLimits(at+".limits", o.Limits) {
		if counters[id] != c {
			f.add(at+".limits", "the counter %q is none of the rule's", id)
		}
	}
}

// rowLimits returns what each ID counts.
func (f *faults) rowLimits(path string, limits []RowLimit) map[string]counter {
	counters := make(map[string]counter, len(limits))
	for i, l := range limits {
		at := index(path, i)
		if !idRegexp.MatchString(l.ID) {
			f.add(at+".id", "Invalid value: %q: should match '%s'", l.ID, idRegexp)
		}
		oneOf(f, at+".algorithm", l.Algorithm, required, TokenBucket, FixedWindow, SlidingWindowCounter, SlidingWindowLog)
		most := int64(MaxRequests)
		if l.Algorithm == SlidingWindowLog {
			most = MaxLogRequests
		}
		f.number(at+".requests", l.Requests, 0, most)
		f.number(at+".window", l.Window, MinWindow, MaxWindow)
		switch {
		case l.Algorithm != TokenBucket && l.Burst != 0:
			f.add(at+".burst", "only with algorithm TokenBucket")
		case l.Algorithm == TokenBucket && (l.Burst != 0 || l.Requests != 0):
			f.number(at+".burst", l.Burst, 1, MaxRequests)
		}
		counters[l.ID] = counter{l.Algorithm, l.Window}
	}
	if len(counters) < len(limits) {
		f.add(path, "two limits have the same id")
	}
	return counters
}

// revision is decimal, since revisions are compared as decimal strings; empty is a row that no controller wrote.
func (f *faults) revision(path string, r Revision) {
	if r.Epoch != "" {
		f.decimal(path+".epoch", r.Epoch)
	}
	if r.N < 0 {
		f.number(path+".n", r.N, 0, r.N)
	}
}

func (f *faults) decimal(path, s string) {
	if len(s) > maxDecimalDigits || !decimalRegexp.MatchString(s) {
		f.add(path, "Invalid value: %q: must be a decimal number", s)
	}
}
