package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goodRow is a row with one rule, as a controller writes it.
const goodRow = `{"v":1,"workload":"shop/apps/Deployment/checkout","owner":"installation","revision":{"epoch":"48213","n":7},` +
	`"policyList":"48301","policies":[{"name":"checkout","uid":"6f1","generation":3,"evaluation":"All"}],` +
	`"rules":[` + goodRule + `]}`

const goodRule = `{"policy":"checkout","name":"exports","mode":"Enforce","match":[{"methods":["POST"],"route":"/exports"}],` +
	`"key":[{"header":"X-Api-Key"}],"whenKeyMissing":"ClientIP",` +
	`"limits":[{"id":"79e488eedf12b993027b48ed","algorithm":"TokenBucket","requests":5,"window":60000000,"burst":5}],` +
	`"onStoreFailure":"LocalShare","rounding":"NeverZero"}`

// otherRule needs something that this library does not know, and could not be read.
const otherRule = `{"policy":"checkout","name":"other","needs":["time-of-day"],"limits":{"monday":null},"mode":7}`

func TestDecodeRowReadsWhatEncodeRowWrites(t *testing.T) {
	row, problems, err := DecodeRow([]byte(goodRow))
	if err != nil || problems != nil {
		t.Fatal(problems, err)
	}
	if diff := cmp.Diff(goodRow, mustEncode(t, row)); diff != "" {
		t.Errorf("encoded again (-want +got):\n%s", diff)
	}
}

func TestTombstone(t *testing.T) {
	row, verdicts := Compile(shopCheckout, "installation", nil)
	if len(verdicts) != 0 {
		t.Errorf("verdicts %v of no policy", verdicts)
	}
	row.Revision = Revision{Epoch: "48213", N: 8}
	const want = `{"v":1,"workload":"shop/apps/Deployment/checkout","owner":"installation","revision":{"epoch":"48213","n":8},"policies":[],"rules":[]}`
	if diff := cmp.Diff(want, mustEncode(t, row)); diff != "" {
		t.Errorf("tombstone (-want +got):\n%s", diff)
	}
	row.Policies, row.Rules = nil, nil
	if diff := cmp.Diff(want, mustEncode(t, row)); diff != "" {
		t.Errorf("tombstone of nil lists (-want +got):\n%s", diff)
	}
	if _, _, err := DecodeRow([]byte(want)); err != nil {
		t.Error(err)
	}
}

// A bad row never replaces a good one: it is an error, whatever is wrong with it, and never a row with fewer limits.
func TestB61BadRowsAreRefusedWhole(t *testing.T) {
	replace := func(good, bad string) string {
		if !strings.Contains(goodRow, good) {
			panic("the good row has no " + good)
		}
		return strings.Replace(goodRow, good, bad, 1)
	}
	cases := map[string]struct{ data, want string }{
		"nothing":                    {``, "unexpected end"},
		"null":                       {`null`, "version 0"},
		"a list":                     {`[]`, "cannot unmarshal"},
		"broken JSON":                {goodRow[:len(goodRow)-1], "unexpected end"},
		"two rows":                   {goodRow + goodRow, "after top-level value"},
		"10 MB":                      {replace(`"uid":"6f1"`, `"uid":"`+strings.Repeat("x", 10<<20)+`"`), "more than 1048576"},
		"no version":                 {replace(`"v":1,`, ``), "version 0"},
		"rules null":                 {replace(`"rules":[`+goodRule+`]`, `"rules":null`), "must be lists"},
		"no rules":                   {replace(`,"rules":[`+goodRule+`]`, ``), "must be lists"},
		"policies null":              {replace(`[{"name":"checkout","uid":"6f1","generation":3,"evaluation":"All"}]`, `null`), "must be lists"},
		"a policy without rules":     {replace(goodRule, ``), "policies[0]"},
		"a null policy":              {replace(`{"name":"checkout","uid":"6f1","generation":3,"evaluation":"All"}`, `null`), "policies[0].name"},
		"a null rule":                {replace(goodRule, `null`), "rules[0].name"},
		"a rule of no policy":        {replace(`{"policy":"checkout"`, `{"policy":"other"`), "rules[0].policy"},
		"a rule twice":               {replace(goodRule, goodRule+","+goodRule), "rules[1]"},
		"65 rules":                   {replace(goodRule, strings.Repeat(goodRule+",", 64)+goodRule), "65 rules"},
		"a blank workload":           {replace(`shop/apps/Deployment/checkout`, ``), "workload"},
		"a short workload":           {replace(`shop/apps/Deployment/checkout`, `shop/checkout`), "workload"},
		"an epoch that is no number": {replace(`"48213"`, `"zzz"`), "revision.epoch"},
		"an epoch without end":       {replace(`"48213"`, `"`+strings.Repeat("9", 1000)+`"`), "revision.epoch"},
		"an epoch with a zero first": {replace(`"48213"`, `"048213"`), "revision.epoch"},
		"a negative revision":        {replace(`"n":7`, `"n":-7`), "revision.n"},
		"a list that is no number":   {replace(`"48301"`, `"latest"`), "policyList"},
		"a blank evaluation":         {replace(`"All"`, `""`), "policies[0].evaluation"},
		"an empty exemption":         {replace(`"evaluation":"All"`, `"evaluation":"All","exempt":[{}]`), "policies[0].exempt[0]"},
		"an empty match":             {replace(`{"methods":["POST"],"route":"/exports"}`, `{}`), "rules[0].match[0]"},
		"a match of nothing":         {replace(`[{"methods":["POST"],"route":"/exports"}]`, `[]`), "rules[0].match"},
		"an empty part of a key":     {replace(`{"header":"X-Api-Key"}`, `{}`), "rules[0].key[0]"},
		"a blank name":               {replace(`"exports"`, `""`), "rules[0].name"},
		"an unknown mode":            {replace(`"Enforce"`, `"Observe"`), "rules[0].mode"},
		"a blank store failure":      {replace(`"LocalShare"`, `""`), "rules[0].onStoreFailure"},
		"no rounding":                {replace(`,"rounding":"NeverZero"`, ``), "rules[0].rounding"},
		"an unknown missing key":     {replace(`"ClientIP"`, `"Allow"`), "rules[0].whenKeyMissing"},
		"limits null":                {replace(`"limits":[{`, `"limits":null,"x":[{`), "rules[0].limits"},
		"no limits":                  {replace(`"limits":[{`, `"limits":[],"x":[{`), "rules[0].limits"},
		"a null limit":               {replace(`"limits":[`, `"limits":[null,`), "no requests"},
		"a window that is blank":     {replace(`"window":60000000`, `"window":""`), "window"},
		"a window that is missing":   {replace(`"window":60000000,`, ``), "rules[0].limits[0].window"},
		"a window of 0":              {replace(`60000000`, `0`), "rules[0].limits[0].window"},
		"a negative window":          {replace(`60000000`, `-60000000`), "rules[0].limits[0].window"},
		"a window above 31 days":     {replace(`60000000`, `2678400000001`), "rules[0].limits[0].window"},
		"an unknown algorithm":       {replace(`"TokenBucket"`, `"foo"`), "rules[0].limits[0].algorithm"},
		"requests that are missing":  {replace(`"requests":5,`, ``), "no requests"},
		"requests that are null":     {replace(`"requests":5`, `"requests":null`), "no requests"},
		"negative requests":          {replace(`"requests":5`, `"requests":-1`), "rules[0].limits[0].requests"},
		"half a request":             {replace(`"requests":5`, `"requests":0.5`), "cannot unmarshal"},
		"more requests than int64":   {replace(`"requests":5`, `"requests":99999999999999999999`), "cannot unmarshal"},
		"a burst of 0":               {replace(`"burst":5`, `"burst":0`), "rules[0].limits[0].burst"},
		"no burst":                   {replace(`,"burst":5`, ``), "rules[0].limits[0].burst"},
		"a log that is too large":    {replace(`"TokenBucket","requests":5,"window":60000000,"burst":5`, `"SlidingWindowLog","requests":10001,"window":60000000`), "rules[0].limits[0].requests"},
		"a limit without id":         {replace(`"79e488eedf12b993027b48ed"`, `""`), "rules[0].limits[0].id"},
		"an id that breaks a key":    {replace(`"79e488eedf12b993027b48ed"`, `"a}{b"`), "rules[0].limits[0].id"},
		"a cost of 0":                {replace(`"onStoreFailure"`, `"cost":{"attribute":"rows","max":0},"onStoreFailure"`), "rules[0].cost.max"},
		"a lease of one":             {replace(`"onStoreFailure"`, `"lease":1,"onStoreFailure"`), "rules[0].lease"},
		"a lease of a log":           {replace(`"TokenBucket","requests":5,"window":60000000,"burst":5}]`, `"SlidingWindowLog","requests":5,"window":60000000}],"lease":9`), "rules[0].lease"},
		"a negative prefilter":       {replace(`"onStoreFailure"`, `"prefilter":-1,"onStoreFailure"`), "rules[0].prefilter"},
		"an override of everybody":   {replace(`"onStoreFailure"`, `"overrides":[{"when":{"attribute":"","values":[]},"unlimited":true}],"onStoreFailure"`), "rules[0].overrides[0].when"},
		"an override of no effect":   {replace(`"onStoreFailure"`, `"overrides":[{"when":{"attribute":"plan","values":["a"]}}],"onStoreFailure"`), "rules[0].overrides[0]"},
		"an override's own counter": {
			replace(`"onStoreFailure"`, `"overrides":[{"when":{"attribute":"plan","values":["a"]},"limits":[{"id":"other","algorithm":"FixedWindow","requests":5,"window":60000000}]}],"onStoreFailure"`),
			"rules[0].overrides[0].limits",
		},
		"needs that are no list": {replace(goodRule, `{"policy":"checkout","name":"exports","needs":"x"}`), "rules[0]"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			row, problems, err := DecodeRow([]byte(tc.data))
			if err == nil {
				t.Fatalf("decoded %+v, problems %v", row, problems)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "decoding row: ") {
				t.Errorf("error is %q, want it to say %q", err, tc.want)
			}
			if errors.Is(err, ErrNewerVersion) {
				t.Errorf("error is %q, which says that the row is newer", err)
			}
			if diff := cmp.Diff(Row{}, row); diff != "" || problems != nil {
				t.Errorf("a row beside the error: %s %v", diff, problems)
			}
		})
	}
}

// Damage to any one value is an error, or the limit is still there.
func TestNoDamageLosesALimit(t *testing.T) {
	var row any
	if err := json.Unmarshal([]byte(goodRow), &row); err != nil {
		t.Fatal(err)
	}
	tried := 0
	damage := func(path string, set func(any), old any) {
		for _, value := range []any{nil, "", "x", 0, -1, 1e300, true, []any{}, map[string]any{}} {
			set(value)
			data, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			decoded, problems, err := DecodeRow(data)
			if err == nil && problems == nil && (len(decoded.Rules) != 1 || len(decoded.Rules[0].Limits) != 1) {
				t.Errorf("%s = %v: decoded %+v", path, value, decoded)
			}
			tried++
		}
		set(old)
	}
	var walk func(path string, node any)
	walk = func(path string, node any) {
		switch node := node.(type) {
		case map[string]any:
			for name, child := range node {
				walk(path+"."+name, child)
				damage(path+"."+name, func(v any) { node[name] = v }, child)
			}
		case []any:
			for i, child := range node {
				walk(index(path, i), child)
				damage(index(path, i), func(v any) { node[i] = v }, child)
			}
		}
	}
	walk("", row)
	if tried < 300 {
		t.Errorf("only %d kinds of damage", tried)
	}
}

func TestNewerRows(t *testing.T) {
	t.Run("a newer version is told apart, whatever it looks like", func(t *testing.T) {
		for _, data := range []string{`{"v":2}`, `{"v":3,"rules":"none","revision":7}`} {
			if _, _, err := DecodeRow([]byte(data)); !errors.Is(err, ErrNewerVersion) {
				t.Errorf("DecodeRow(%s): %v, want ErrNewerVersion", data, err)
			}
			if _, err := DecodeReplicas([]byte(data)); !errors.Is(err, ErrNewerVersion) {
				t.Errorf("DecodeReplicas(%s): %v, want ErrNewerVersion", data, err)
			}
		}
	})
	t.Run("a rule with unknown needs is skipped unread, and the others are kept", func(t *testing.T) {
		row, problems, err := DecodeRow([]byte(strings.Replace(goodRow, goodRule, otherRule+","+goodRule, 1)))
		if err != nil {
			t.Fatal(err)
		}
		want := []Problem{{Policy: "checkout", Rule: "other", Needs: []string{"time-of-day"}}}
		if diff := cmp.Diff(want, problems); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(goodRow, mustEncode(t, row)); diff != "" {
			t.Errorf("what was kept (-want +got):\n%s", diff)
		}
	})
	t.Run("unknown fields are ignored at every level", func(t *testing.T) {
		data := goodRow
		for _, old := range []string{`{"v":1,`, `{"epoch"`, `{"name":"checkout"`, `{"policy"`, `{"methods"`, `{"header"`, `{"id"`} {
			data = strings.Replace(data, old, `{"newer":{"a":[1]},`+old[1:], 1)
		}
		row, problems, err := DecodeRow([]byte(data))
		if err != nil || problems != nil {
			t.Fatal(problems, err)
		}
		if diff := cmp.Diff(goodRow, mustEncode(t, row)); diff != "" {
			t.Errorf("encoded again (-want +got):\n%s", diff)
		}
	})
}

func TestEncodeRowRefusesWhatADecoderRefuses(t *testing.T) {
	cases := map[string]func(*Row){
		"no version":       func(r *Row) { r.Version = 0 },
		"no workload":      func(r *Row) { r.Workload = "" },
		"a blank window":   func(r *Row) { r.Rules[0].Limits[0].Window = 0 },
		"no limits":        func(r *Row) { r.Rules[0].Limits = nil },
		"no policy":        func(r *Row) { r.Policies = nil },
		"a bad epoch":      func(r *Row) { r.Revision.Epoch = "x" },
		"more than it may": func(r *Row) { r.Policies[0].UID = strings.Repeat("x", MaxRowBytes) },
	}
	for name, breakIt := range cases {
		t.Run(name, func(t *testing.T) {
			row, _, err := DecodeRow([]byte(goodRow))
			if err != nil {
				t.Fatal(err)
			}
			breakIt(&row)
			if data, err := EncodeRow(row); err == nil {
				t.Errorf("encoded %s", data)
			}
		})
	}
}

func TestReplicas(t *testing.T) {
	good := Replicas{Version: RowVersion, N: 5, Ready: 3, Desired: 5, Terminating: 1, At: 17, MembersVersion: 4, RaisedTo: 5, RaisedAt: 16, Wanted: 5, UID: "6f1"}
	data, err := EncodeReplicas(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeReplicas(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(good, got); diff != "" {
		t.Errorf("replicas (-want +got):\n%s", diff)
	}
	for name, data := range map[string]string{
		"nothing": ``, "null": `null`, "no version": `{"n":1}`, "no n": `{"v":1}`, "n of 0": `{"v":1,"n":0}`,
		"a negative count": `{"v":1,"n":1,"ready":-1}`, "a huge count": `{"v":1,"n":9999999999}`, "a text": `{"v":1,"n":"3"}`,
		"broken": `{"v":1,"n":3`, "too large": `{"v":1,"n":3,"x":"` + strings.Repeat("x", 8<<10) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := DecodeReplicas([]byte(data)); err == nil {
				t.Errorf("decoded %+v", r)
			}
		})
	}
	if _, err := EncodeReplicas(Replicas{Version: RowVersion}); err == nil {
		t.Error("encoded replicas without n")
	}
}

func TestReports(t *testing.T) {
	good := Report{
		Member: "checkout-7d4b9-x2x8v/1f3a9c20", Pod: "checkout-7d4b9-x2x8v", Revision: Revision{Epoch: "48213", N: 7},
		Library: "v0.1.0", Features: []string{"time-of-day"}, Skipped: 1, Started: 17,
	}
	data, err := EncodeReport(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeReport(good.Member, data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(good, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	many := strings.TrimSuffix(strings.Repeat(`"a",`, 65), ",")
	for name, tc := range map[string]struct{ member, data string }{
		"no member":                  {``, string(data)},
		"a member without end":       {strings.Repeat("a", 1000), string(data)},
		"nothing":                    {`m`, ``},
		"null":                       {`m`, `null`},
		"no pod":                     {`m`, `{}`},
		"a pod with a line break":    {`m`, `{"pod":"a\nb"}`},
		"an epoch that is no number": {`m`, `{"pod":"a","revision":{"epoch":"latest"}}`},
		"a library without end":      {`m`, `{"pod":"a","library":"` + strings.Repeat("x", 1000) + `"}`},
		"too many features":          {`m`, `{"pod":"a","features":[` + many + `]}`},
		"a blank feature":            {`m`, `{"pod":"a","features":[""]}`},
		"skipped below 0":            {`m`, `{"pod":"a","skipped":-1}`},
		"too large":                  {`m`, fmt.Sprintf(`{"pod":"a","x":%q}`, strings.Repeat("x", 64<<10))},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := DecodeReport(tc.member, []byte(tc.data)); err == nil {
				t.Errorf("decoded %+v", r)
			}
		})
	}
}

// Whatever stands in the table: no panic, and what is taken can be written and means the same.
func FuzzDecodeRow(f *testing.F) {
	for _, seed := range []string{goodRow, strings.Replace(goodRow, goodRule, otherRule, 1), `{"v":1,"policies":[],"rules":[]}`, `null`, `{"v":2}`, `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		row, skipped, err := DecodeRow(data)
		if err != nil {
			if diff := cmp.Diff(Row{}, row); diff != "" {
				t.Errorf("a row beside an error: %s", diff)
			}
			return
		}
		if skipped != nil {
			return // what is left of it may be no whole row
		}
		again, err := EncodeRow(row)
		if err != nil {
			if len(data) > MaxRowBytes/2 {
				return // may be larger than what a writer may write
			}
			t.Fatal(err)
		}
		decoded, problems, err := DecodeRow(again)
		if err != nil || problems != nil {
			t.Fatal(problems, err)
		}
		if diff := cmp.Diff(row, decoded); diff != "" {
			t.Errorf("encoded and decoded again (-want +got):\n%s", diff)
		}
	})
}
