package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var shopCheckout = Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}

// created is a time of creation, in minutes after ten.
func created(minutes int) time.Time { return time.Date(2026, 11, 1, 10, minutes, 0, 0, time.UTC) }

// testPolicy targets checkout and has these rules, each with a limit where it has none.
func testPolicy(name string, minutes int, rules ...Rule) Policy {
	for i := range rules {
		if rules[i].Limits == nil {
			rules[i].Limits = []Limit{{Requests: new(int64(5)), Window: "1m"}}
		}
	}
	return Policy{
		Metadata: Metadata{Namespace: "shop", Name: name, UID: "uid-" + name, Generation: 1, CreationTimestamp: created(minutes)},
		Spec:     Spec{TargetRef: TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"}, Rules: rules},
	}
}

func manyRules(n int) []Rule {
	rules := make([]Rule, n)
	for i := range rules {
		rules[i].Name = fmt.Sprintf("rule-%d", i)
	}
	return rules
}

func reasons(verdicts []Verdict) string {
	var b strings.Builder
	for _, v := range verdicts {
		fmt.Fprintf(&b, "%s=%s ", v.Name, v.Reason)
	}
	return strings.TrimSpace(b.String())
}

// mustEncode demands that whatever Compile makes can be encoded.
func mustEncode(t testing.TB, row Row) string {
	t.Helper()
	data, err := EncodeRow(row)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCompileAppliesDefaults(t *testing.T) {
	p := testPolicy("checkout", 0,
		Rule{
			Name:  "exports",
			Match: []Match{{Methods: []string{"POST"}, Route: "/exports"}, {PathPrefix: "/api/", Headers: []HeaderMatch{{Name: "x-plan", Value: "free"}}}},
			Key:   []KeyPart{{Header: "x-api-key"}, {FirstOf: []KeyPart{{Attribute: "user"}, {ClientIP: &ClientIP{IPv6PrefixLength: new(int32(56))}}}}},
			Limits: []Limit{
				{Requests: new(int64(5)), Window: "60s"},
				{Requests: new(int64(5)), Window: "1h", Burst: new(int64(20))},
				{Requests: new(int64(50)), Window: "24h", Algorithm: FixedWindow},
			},
			Overrides: []Override{
				{When: AttributeMatch{Attribute: "plan", Values: []string{"scale"}}, Limits: []Limit{{Requests: new(int64(500)), Window: "1440m", Algorithm: FixedWindow}}},
				{When: AttributeMatch{Attribute: "plan", Values: []string{"internal"}}, Unlimited: true},
			},
			Cost: &Cost{Attribute: "rows", Max: 10},
		},
		Rule{Name: "blocked", Mode: ModeShadow, OnStoreFailure: OnStoreFailureFailClosed, Limits: []Limit{{Requests: new(int64(0)), Window: "1s"}}},
	)
	p.Spec.Exempt = []Exemption{{PathPrefix: "/healthz"}}
	row, verdicts := Compile(shopCheckout, "installation", []Policy{p})
	if got := reasons(verdicts); got != "checkout=Accepted" {
		t.Fatalf("verdicts are %s: %v", got, verdicts[0].Errors)
	}
	id := func(rule string, a Algorithm, window time.Duration) string {
		return LimitID(shopCheckout, "checkout", rule, a, window.Microseconds())
	}
	want := Row{
		Version:  1,
		Workload: "shop/apps/Deployment/checkout",
		Owner:    "installation",
		Policies: []RowPolicy{{
			Name: "checkout", UID: "uid-checkout", Generation: 1, Evaluation: EvaluationAll,
			Exempt: []Exemption{{PathPrefix: "/healthz"}},
		}},
		Rules: []RowRule{
			{
				Policy: "checkout", Name: "exports", Mode: ModeEnforce,
				Match: []Match{{Methods: []string{"POST"}, Route: "/exports"}, {PathPrefix: "/api", Headers: []HeaderMatch{{Name: "X-Plan", Value: "free"}}}},
				Key: []KeyPart{{Header: "X-Api-Key"}, {FirstOf: []KeyPart{
					{Attribute: "user"},
					{ClientIP: &ClientIP{IPv4PrefixLength: new(int32(32)), IPv6PrefixLength: new(int32(56))}},
				}}},
				WhenKeyMissing: WhenKeyMissingClientIP,
				Limits: []RowLimit{
					{ID: id("exports", TokenBucket, time.Minute), Algorithm: TokenBucket, Requests: 5, Window: 60_000_000, Burst: 5},
					{ID: id("exports", TokenBucket, time.Hour), Algorithm: TokenBucket, Requests: 5, Window: 3_600_000_000, Burst: 20},
					{ID: id("exports", FixedWindow, 24*time.Hour), Algorithm: FixedWindow, Requests: 50, Window: 86_400_000_000},
				},
				Overrides: []RowOverride{
					{
						When:   AttributeMatch{Attribute: "plan", Values: []string{"scale"}},
						Limits: []RowLimit{{ID: id("exports", FixedWindow, 24*time.Hour), Algorithm: FixedWindow, Requests: 500, Window: 86_400_000_000}},
					},
					{When: AttributeMatch{Attribute: "plan", Values: []string{"internal"}}, Unlimited: true},
				},
				Cost: &Cost{Attribute: "rows", Max: 10}, OnStoreFailure: OnStoreFailureLocalShare, Rounding: RoundingNeverZero,
			},
			{
				Policy: "checkout", Name: "blocked", Mode: ModeShadow, WhenKeyMissing: WhenKeyMissingClientIP,
				Limits:         []RowLimit{{ID: id("blocked", TokenBucket, time.Second), Algorithm: TokenBucket, Window: 1_000_000}},
				OnStoreFailure: OnStoreFailureFailClosed,
			},
		},
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	mustEncode(t, row)
}

func TestRulesInheritFromThePolicy(t *testing.T) {
	p := testPolicy("checkout", 0,
		Rule{Name: "inherits", LocalShare: &LocalShare{Rounding: RoundingNeverExceed}},
		Rule{Name: "differs", Mode: ModeEnforce, OnStoreFailure: OnStoreFailureLocalShare, LocalShare: &LocalShare{Rounding: RoundingNeverExceed}},
	)
	p.Spec.Evaluation, p.Spec.Mode, p.Spec.OnStoreFailure = EvaluationFirstMatch, ModeShadow, OnStoreFailureFailOpen
	p.Spec.Rules[0].Match = []Match{{Route: "/"}}
	row, verdicts := Compile(shopCheckout, "", []Policy{p})
	if !verdicts[0].Accepted() {
		t.Fatal(verdicts[0].Message)
	}
	if got := row.Policies[0].Evaluation; got != EvaluationFirstMatch {
		t.Errorf("evaluation is %s", got)
	}
	if r := row.Rules[0]; r.Mode != ModeShadow || r.OnStoreFailure != OnStoreFailureFailOpen || r.Rounding != "" {
		t.Errorf("the rule that sets nothing is %s, %s, rounding %q", r.Mode, r.OnStoreFailure, r.Rounding)
	}
	if r := row.Rules[1]; r.Mode != ModeEnforce || r.OnStoreFailure != OnStoreFailureLocalShare || r.Rounding != RoundingNeverExceed {
		t.Errorf("the rule that sets its own is %s, %s, rounding %q", r.Mode, r.OnStoreFailure, r.Rounding)
	}
}

func TestCompileOrdersAndRefuses(t *testing.T) {
	large := func(name string, minutes int) Policy { // about 290 KB
		values := make([]string, maxValues)
		for i := range values {
			values[i] = fmt.Sprintf("%0128d", i)
		}
		rule := Rule{Name: "large"}
		for range maxOverrides {
			rule.Overrides = append(rule.Overrides, Override{When: AttributeMatch{Attribute: "plan", Values: values}, Unlimited: true})
		}
		return testPolicy(name, minutes, rule)
	}
	elsewhere := testPolicy("elsewhere", 0, Rule{Name: "a"})
	elsewhere.Spec.TargetRef.Name = "billing"
	invalid := testPolicy("invalid", 0, manyRules(64)...)
	invalid.Spec.Rules[63].Limits[0].Window = "1d"

	cases := map[string]struct {
		policies []Policy
		verdicts string
		rules    string
	}{
		"the oldest goes first": {
			policies: []Policy{testPolicy("a", 5, Rule{Name: "x"}), testPolicy("b", 0, Rule{Name: "x"}, Rule{Name: "y"})},
			verdicts: "b=Accepted a=Accepted",
			rules:    "b/x b/y a/x",
		},
		"of one age, the name decides": {
			policies: []Policy{testPolicy("b", 0, Rule{Name: "x"}), testPolicy("a", 0, Rule{Name: "x"})},
			verdicts: "a=Accepted b=Accepted",
			rules:    "a/x b/x",
		},
		"no policy at all": {},
		"a policy of another workload has no part in it": {
			policies: []Policy{elsewhere, testPolicy("a", 1, Rule{Name: "x"})},
			verdicts: "a=Accepted",
			rules:    "a/x",
		},
		"an invalid policy takes no room": {
			policies: []Policy{invalid, testPolicy("a", 1, Rule{Name: "x"})},
			verdicts: "invalid=Invalid a=Accepted",
			rules:    "a/x",
		},
		"a second policy of one name is invalid": {
			policies: []Policy{testPolicy("a", 0, Rule{Name: "x"}), testPolicy("a", 1, Rule{Name: "y"})},
			verdicts: "a=Accepted a=Invalid",
			rules:    "a/x",
		},
		"the newest is refused where rules are too many, and a newer one that fits is not": {
			policies: []Policy{testPolicy("third", 2, Rule{Name: "x"}), testPolicy("second", 1, manyRules(64)...), testPolicy("first", 0, Rule{Name: "x"})},
			verdicts: "first=Accepted second=TooManyRules third=Accepted",
			rules:    "first/x third/x",
		},
		"the newest is refused where the row is too large": {
			policies: []Policy{large("second", 1), large("first", 0), testPolicy("third", 2, Rule{Name: "x"})},
			verdicts: "first=Accepted second=RowTooLarge third=Accepted",
			rules:    "first/large third/x",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			row, verdicts := Compile(shopCheckout, "", tc.policies)
			if got := reasons(verdicts); got != tc.verdicts {
				t.Errorf("verdicts are %q, want %q", got, tc.verdicts)
			}
			var rules []string
			for _, r := range row.Rules {
				rules = append(rules, r.Policy+"/"+r.Name)
			}
			if got := strings.Join(rules, " "); got != tc.rules {
				t.Errorf("rules are %q, want %q", got, tc.rules)
			}
			for _, v := range verdicts {
				if (v.Message == "") != v.Accepted() || (v.Errors != nil) != (v.Reason == ReasonInvalid) {
					t.Errorf("%s is %s with message %q and errors %v", v.Name, v.Reason, v.Message, v.Errors)
				}
			}
			mustEncode(t, row)
		})
	}
}

// The writer adds a revision and the version of the list: a row that Compile found to fit must fit with them too.
func TestRowAtItsBoundStillEncodes(t *testing.T) {
	policies := []Policy{testPolicy("first", 0, Rule{Name: "x"})}
	fill := func(n int) Policy {
		values := make([]string, 0, maxValues*maxOverrides)
		for i := 0; n > 0; i++ {
			size := min(n, maxValue)
			values = append(values, fmt.Sprintf("%0*d", size, i))
			n -= size
		}
		rule := Rule{Name: "x"}
		for chunk := range slices.Chunk(values, maxValues) {
			rule.Overrides = append(rule.Overrides, Override{When: AttributeMatch{Attribute: "plan", Values: chunk}, Unlimited: true})
		}
		return testPolicy("filled", 1, rule, Rule{Name: "y", Overrides: slices.Clone(rule.Overrides)})
	}
	// Find the largest that fits; every one below it must.
	low, high := 1, maxValues*maxOverrides*maxValue
	for low < high-1 {
		middle := (low + high) / 2
		if _, verdicts := Compile(shopCheckout, "", append(policies, fill(middle))); verdicts[1].Accepted() {
			low = middle
		} else if verdicts[1].Reason == ReasonRowTooLarge {
			high = middle
		} else {
			t.Fatal(verdicts[1].Message)
		}
	}
	row, _ := Compile(shopCheckout, "", append(policies, fill(low)))
	row.Revision = Revision{Epoch: strings.Repeat("9", maxDecimalDigits), N: math.MaxInt64}
	row.PolicyList = strings.Repeat("9", maxDecimalDigits)
	size := len(mustEncode(t, row))
	if size < MaxRowBytes-1024 {
		t.Errorf("the largest row that fits has %d bytes, want about %d", size, MaxRowBytes)
	}
}

func TestRowDoesNotDependOnTheOrderOfPolicies(t *testing.T) {
	policies := []Policy{testPolicy("a", 1, Rule{Name: "x"}), testPolicy("b", 0, manyRules(9)...), testPolicy("c", 1, Rule{Name: "x"})}
	row, _ := Compile(shopCheckout, "", policies)
	want := mustEncode(t, row)
	for range len(policies) {
		policies = append(policies[1:], policies[0])
		row, _ := Compile(shopCheckout, "", policies)
		if diff := cmp.Diff(want, mustEncode(t, row)); diff != "" {
			t.Errorf("row (-want +got):\n%s", diff)
		}
	}
}

// What the user may spell in another way, or change, without losing the counters.
func TestCountersBelongToNameAlgorithmAndWindow(t *testing.T) {
	base := func() Policy {
		return testPolicy("checkout", 0, Rule{
			Name: "exports", Key: []KeyPart{{Header: "X-Api-Key"}}, Match: []Match{{PathPrefix: "/api"}},
			Limits: []Limit{{Requests: new(int64(5)), Window: "60s"}},
		})
	}
	row, _ := Compile(shopCheckout, "", []Policy{base()})
	const sameRow, sameCounters, otherCounters = "the same row", "the same counters", "other counters"
	cases := map[string]struct {
		change func(*Policy)
		want   string
	}{
		"60s written 1m":                 {func(p *Policy) { p.Spec.Rules[0].Limits[0].Window = "1m" }, sameRow},
		"60s written 1m0s":               {func(p *Policy) { p.Spec.Rules[0].Limits[0].Window = "1m0s" }, sameRow},
		"the default algorithm written":  {func(p *Policy) { p.Spec.Rules[0].Limits[0].Algorithm = TokenBucket }, sameRow},
		"the default burst written":      {func(p *Policy) { p.Spec.Rules[0].Limits[0].Burst = new(int64(5)) }, sameRow},
		"a header's name in lower case":  {func(p *Policy) { p.Spec.Rules[0].Key[0].Header = "x-api-key" }, sameRow},
		"a prefix with a slash":          {func(p *Policy) { p.Spec.Rules[0].Match[0].PathPrefix = "/api/" }, sameRow},
		"other requests":                 {func(p *Policy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(6)) }, sameCounters},
		"another burst":                  {func(p *Policy) { p.Spec.Rules[0].Limits[0].Burst = new(int64(6)) }, sameCounters},
		"deleted and created again":      {func(p *Policy) { p.Metadata.UID = "another" }, sameCounters},
		"another window":                 {func(p *Policy) { p.Spec.Rules[0].Limits[0].Window = "61s" }, otherCounters},
		"another algorithm":              {func(p *Policy) { p.Spec.Rules[0].Limits[0].Algorithm = FixedWindow }, otherCounters},
		"a renamed rule":                 {func(p *Policy) { p.Spec.Rules[0].Name = "export" }, otherCounters},
		"a renamed policy":               {func(p *Policy) { p.Metadata.Name = "checkouts" }, otherCounters},
		"a policy of another deployment": {func(p *Policy) { p.Spec.TargetRef.Name = "billing" }, otherCounters},
		"a policy of another namespace":  {func(p *Policy) { p.Metadata.Namespace = "shop2" }, otherCounters},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := base()
			tc.change(&p)
			changed, verdicts := Compile(p.Workload(), "", []Policy{p})
			if !verdicts[0].Accepted() {
				t.Fatal(verdicts[0].Message)
			}
			got := otherCounters
			switch {
			case mustEncode(t, changed) == mustEncode(t, row):
				got = sameRow
			case changed.Rules[0].Limits[0].ID == row.Rules[0].Limits[0].ID:
				got = sameCounters
			}
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// IDs are part of keys that outlive every process: they must not change from one version to the next.
func TestLimitIDIsPinned(t *testing.T) {
	const want = "79e488eedf12b993027b48ed"
	if got := LimitID(shopCheckout, "checkout", "exports", TokenBucket, 60_000_000); got != want {
		t.Errorf("LimitID is %s, want %s", got, want)
	}
	joined := LimitID(Workload{"shop", "apps", "Deployment", "a"}, "bc", "d", TokenBucket, 1)
	split := LimitID(Workload{"shop", "apps", "Deployment", "ab"}, "c", "d", TokenBucket, 1)
	if joined == split {
		t.Error("parts that join to the same bytes have the same ID")
	}
}

func TestCompileKeepsItsInput(t *testing.T) {
	policies := []Policy{
		testPolicy("b", 1, Rule{Name: "x", Match: []Match{{Headers: []HeaderMatch{{Name: "x-a", Value: "1"}}, PathPrefix: "/a/"}}, Key: []KeyPart{{FirstOf: []KeyPart{{Header: "x-a"}}}, {ClientIP: &ClientIP{}}}}),
		testPolicy("a", 0, Rule{Name: "x"}),
	}
	before, err := json.Marshal(policies)
	if err != nil {
		t.Fatal(err)
	}
	Compile(shopCheckout, "", policies)
	after, err := json.Marshal(policies)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("Compile changed its input (-before +after):\n%s", diff)
	}
}

// Whatever a policy file holds, Compile gives each policy of the workload a verdict and a row that can be written.
func FuzzCompile(f *testing.F) {
	seed, err := json.Marshal(testPolicy("checkout", 0, Rule{
		Name: "exports", Match: []Match{{Route: "/users/{id}", Methods: []string{"GET"}}}, Key: []KeyPart{{ClientIP: &ClientIP{}}, {Request: RequestKeyRoute}},
		Overrides: []Override{{When: AttributeMatch{Attribute: "plan", Values: []string{"<&>"}}, Limits: []Limit{{Requests: new(int64(7)), Window: "60s"}}}},
		Cost:      &Cost{Attribute: "rows", Max: 3}, LocalShare: &LocalShare{Rounding: RoundingNeverExceed},
	}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(seed))
	f.Add(`{"spec":{"rules":[null,{"limits":[null],"key":[{"firstOf":[null]}],"match":[{}],"overrides":[{}]}]}}`)
	f.Fuzz(func(t *testing.T, data string) {
		var p Policy
		if json.Unmarshal([]byte(data), &p) != nil {
			return
		}
		row, verdicts := Compile(p.Workload(), "installation", []Policy{p, p})
		if len(verdicts) != 2 || verdicts[1].Accepted() {
			t.Fatalf("verdicts of a policy and its double are %+v", verdicts)
		}
		if verdicts[0].Accepted() != (len(row.Rules) > 0) {
			t.Errorf("%+v, but %d rules", verdicts[0], len(row.Rules))
		}
		if verdicts[0].Accepted() {
			mustEncode(t, row)
		}
	})
}

// A row says nothing of what a rule does not have, so that older libraries read the same row as before.
func TestCompileOfLeaseAndPrefilter(t *testing.T) {
	plain, both := Rule{Name: "plain"}, Rule{Name: "both", Lease: &Lease{Tokens: 50}, Prefilter: &Prefilter{Multiple: 3}}
	row, _ := Compile(shopCheckout, "owner", []Policy{testPolicy("checkout", 0, plain, both)})
	text := mustEncode(t, row)
	if !strings.Contains(text, `"lease":50,"prefilter":3`) || strings.Count(text, `"lease"`) != 1 || strings.Contains(text, "needs") {
		t.Errorf("the row is %s", text)
	}
}
