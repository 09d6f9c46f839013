package policy_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
)

// names are the rules that apply to a request, as the enforcer asks for them.
func names(row policy.Row, r policy.Request, skip ...string) (rules []string, exempt bool) {
	walk := policy.NewMatcher(row).Walk(&r)
	for i, ok := walk.Next(); ok; i, ok = walk.Next() {
		rules = append(rules, row.Rules[i].Policy+"/"+row.Rules[i].Name)
		for _, s := range skip {
			if row.Rules[i].Name == s {
				walk.Pass(i)
			}
		}
	}
	return rules, walk.Exempt()
}

func oneRule(match ...policy.Match) policy.Row {
	return policy.Row{
		Policies: []policy.RowPolicy{{Name: "p", Evaluation: policy.EvaluationAll}},
		Rules:    []policy.RowRule{{Policy: "p", Name: "r", Mode: policy.ModeEnforce, Match: match}},
	}
}

func TestMatch(t *testing.T) {
	route := func(route string) []policy.Match { return []policy.Match{{Route: route}} }
	prefix := func(prefix string) []policy.Match { return []policy.Match{{PathPrefix: prefix}} }
	tests := map[string]struct {
		match   []policy.Match
		request policy.Request
		want    bool
	}{
		"no match means every request": {nil, policy.Request{Method: "PATCH", Path: "/x"}, true},

		"GET holds for GET":           {[]policy.Match{{Methods: []string{"GET"}}}, policy.Request{Method: "GET", Path: "/"}, true},
		"GET holds for HEAD":          {[]policy.Match{{Methods: []string{"GET"}}}, policy.Request{Method: "HEAD", Path: "/"}, true},
		"HEAD does not hold for GET":  {[]policy.Match{{Methods: []string{"HEAD"}}}, policy.Request{Method: "GET", Path: "/"}, false},
		"a method is compared whole":  {[]policy.Match{{Methods: []string{"POST"}}}, policy.Request{Method: "POS", Path: "/"}, false},
		"any of several methods will": {[]policy.Match{{Methods: []string{"PUT", "POST"}}}, policy.Request{Method: "POST", Path: "/"}, true},

		"all fields of one item must hold": {
			[]policy.Match{{Methods: []string{"POST"}, PathPrefix: "/api"}}, policy.Request{Method: "GET", Path: "/api"}, false,
		},
		"and all by the same reading of the path": {
			[]policy.Match{{Route: "/a/{x}", PathPrefix: "/b"}}, policy.Request{Path: "/a/..%2F..%2Fb"}, false,
		},
		"each item by a reading of its own": {
			[]policy.Match{{Route: "/c"}, {PathPrefix: "/b"}}, policy.Request{Path: "/a/..%2F..%2Fb"}, true,
		},
		"one of several items is enough": {
			[]policy.Match{{Methods: []string{"POST"}}, {PathPrefix: "/api"}}, policy.Request{Method: "GET", Path: "/api"}, true,
		},

		"a prefix holds for itself":                 {prefix("/api"), policy.Request{Path: "/api"}, true},
		"a prefix holds for what is below it":       {prefix("/api"), policy.Request{Path: "/api/x/y"}, true},
		"a prefix is whole segments":                {prefix("/api"), policy.Request{Path: "/apix"}, false},
		"a slash at its end does not matter":        {prefix("/api/"), policy.Request{Path: "/api"}, true},
		"the prefix / holds for everything":         {prefix("/"), policy.Request{Path: "/x"}, true},
		"a prefix longer than the path":             {prefix("/api/v1"), policy.Request{Path: "/api"}, false},
		"a prefix sees through doubled slashes":     {prefix("/api"), policy.Request{Path: "//api//x"}, true},
		"a prefix sees through dot segments":        {prefix("/api"), policy.Request{Path: "/x/../api/./y"}, true},
		"a prefix sees through escaped dots":        {prefix("/api"), policy.Request{Path: "/x/%2e%2E/api"}, true},
		"dot segments may lead out of a prefix":     {prefix("/x"), policy.Request{Path: "/api/../x"}, true},
		"or be left in by who serves it":            {prefix("/api"), policy.Request{Path: "/api/../x"}, true},
		"two dots lead out of one segment":          {prefix("/api/x"), policy.Request{Path: "/api/../x"}, false},
		"a prefix sees through escaped letters":     {prefix("/api"), policy.Request{Path: "/%61pi/x"}, true},
		"an escaped slash may end a segment":        {prefix("/api"), policy.Request{Path: "/api%2Fx"}, true},
		"an escaped slash may be data":              {prefix("/api%2Fx"), policy.Request{Path: "/api%2fx/y"}, true},
		"a plain slash is no data":                  {prefix("/api%2Fx"), policy.Request{Path: "/api/x"}, false},
		"escaped slashes and letters":               {prefix("/api/login"), policy.Request{Path: "/%61pi%2flo%67in"}, true},
		"escaped slashes and dots":                  {prefix("/api"), policy.Request{Path: "/x/..%2fapi%2fy"}, true},
		"doubled slashes, one of them escaped":      {prefix("/api/x"), policy.Request{Path: "/api/%2Fx"}, true},
		"what is escaped twice is decoded once":     {prefix("/api"), policy.Request{Path: "/api%252Fx"}, false},
		"escaped slashes make no end inside a name": {prefix("/api"), policy.Request{Path: "/apix%2Fy"}, false},
		"without a path the route is the path":      {prefix("/api"), policy.Request{Route: "GET /api/{id}"}, true},
		"the path of OPTIONS * is no path":          {prefix("/"), policy.Request{Method: "OPTIONS", Path: "*"}, false},
		"the authority of CONNECT is no path":       {prefix("/"), policy.Request{Method: "CONNECT", Path: "h:1"}, false},
		"an empty path is the root":                 {prefix("/"), policy.Request{}, true},
		"three dots are a name":                     {prefix("/..."), policy.Request{Path: "/.../x"}, true},
		"a broken escape is compared as it stands":  {prefix("/a%zz"), policy.Request{Path: "/a%zz/x"}, true},
		"more dots than segments end at the root":   {prefix("/api"), policy.Request{Path: "/../../api"}, true},
		"a trailing dot segment leaves a directory": {prefix("/api"), policy.Request{Path: "/api/x/.."}, true},

		"the router's template is the rule's":          {route("/users/{id}"), policy.Request{Route: "/users/{id}", Path: "/users/1"}, true},
		"names of parameters do not matter":            {route("/users/{id}"), policy.Request{Route: "/users/{user}", Path: "/users/1"}, true},
		"method and host of the pattern do not matter": {route("/users/{id}"), policy.Request{Route: "GET example.com/users/{id}"}, true},
		"the router's template decides, not the path":  {route("/users/{id}"), policy.Request{Route: "/users/me", Path: "/users/me"}, false},
		"a parameter is not a literal":                 {route("/users/me"), policy.Request{Route: "/users/{id}", Path: "/users/me"}, false},
		"a longer template is another":                 {route("/users/{id}"), policy.Request{Route: "/users/{id}/x"}, false},
		"a shorter template is another":                {route("/users/{id}/x"), policy.Request{Route: "/users/{id}"}, false},
		"a rest is not a parameter":                    {route("/files/{name}"), policy.Request{Route: "/files/{name...}"}, false},
		"a subtree is a rest without a name":           {route("/files/"), policy.Request{Route: "/files/{path...}"}, true},
		"a subtree with chi's star":                    {route("/files/"), policy.Request{Route: "/files/*"}, true},
		"{$} is only the slash":                        {route("/files/{$}"), policy.Request{Route: "/files/{$}"}, true},
		"{$} is not the subtree":                       {route("/files/{$}"), policy.Request{Route: "/files/", Path: "/files/a"}, false},
		"a route that the router refused":              {route("/users/{id}"), policy.Request{Route: policy.NoRoute, Path: "/users/1"}, false},
		"literals of templates may be escaped":         {route("/a%2Fb"), policy.Request{Route: "/a%2fb"}, true},

		"a subtree of an outer router is not the last word": {route("/v1/exports"), policy.Request{Route: "/v1/", Path: "/v1/exports"}, true},
		"nor is a star":                               {route("/v1/exports"), policy.Request{Route: "/v1/*", Path: "/v1/exports"}, true},
		"but the path must still hold":                {route("/v1/exports"), policy.Request{Route: "/v1/", Path: "/v1/other"}, false},
		"without a template the path is compared":     {route("/users/{id}/validate"), policy.Request{Path: "/users/42/validate"}, true},
		"a parameter takes one segment":               {route("/users/{id}"), policy.Request{Path: "/users/42/validate"}, false},
		"a parameter takes no empty segment":          {route("/users/{id}"), policy.Request{Path: "/users/"}, false},
		"an escaped slash stays one segment":          {route("/files/{name}"), policy.Request{Path: "/files/a%2Fb"}, true},
		"and may be the end of one":                   {route("/files/{dir}/{name}"), policy.Request{Path: "/files/a%2Fb"}, true},
		"but not where the router has spoken":         {route("/files/{dir}/{name}"), policy.Request{Route: "/files/{name}", Path: "/files/a%2Fb"}, false},
		"nor where it has none":                       {route("/login"), policy.Request{Route: policy.NoRoute, Path: "/%2Flogin"}, false},
		"an outer router's subtree leaves it open":    {route("/login"), policy.Request{Route: "/", Path: "/x%2F..%2flogin"}, true},
		"dots may be the value of a parameter":        {route("/files/{name}"), policy.Request{Path: "/files/.."}, true},
		"a rest takes many segments":                  {route("/static/{path...}"), policy.Request{Path: "/static/a/b"}, true},
		"a rest takes none":                           {route("/static/{path...}"), policy.Request{Path: "/static"}, true},
		"the route / without a template is all paths": {route("/"), policy.Request{Path: "/x"}, true},
		"the route /{$} is the root only":             {route("/{$}"), policy.Request{Path: "/x"}, false},
		"the route /{$} is the root":                  {route("/{$}"), policy.Request{Path: "/"}, true},

		"any line of a header will do": {
			[]policy.Match{{Headers: []policy.HeaderMatch{{Name: "x-tier", Value: "free"}}}},
			policy.Request{Header: http.Header{"X-Tier": {"paid", "free"}}}, true,
		},
		"a header's value is compared whole": {
			[]policy.Match{{Headers: []policy.HeaderMatch{{Name: "X-Tier", Value: "free"}}}},
			policy.Request{Header: http.Header{"X-Tier": {"free, paid"}}}, false,
		},
		"all headers of an item must hold": {
			[]policy.Match{{Headers: []policy.HeaderMatch{{Name: "A", Value: "1"}, {Name: "B", Value: "1"}}}},
			policy.Request{Header: http.Header{"A": {"1"}}}, false,
		},
		"Host is found although Go keeps it apart": {
			[]policy.Match{{Headers: []policy.HeaderMatch{{Name: "host", Value: "shop.example"}}}},
			policy.Request{Host: "Shop.example"}, true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := names(oneRule(tc.match...), tc.request)
			if (len(got) == 1) != tc.want {
				t.Errorf("the rule applies: %t, want %t", len(got) == 1, tc.want)
			}
		})
	}
}

// Every spelling of a path reaches the rule where the middleware knows no template (B45).
func TestMatchSeesThroughSpellings(t *testing.T) {
	row := oneRule(policy.Match{Route: "/users/{id}/validate"})
	for path, want := range map[string]bool{
		"/users/42/validate":            true,
		"//users/42/validate":           true,
		"/users//42/validate":           true,
		"/users/42/validate/":           true,
		"/users/./42/validate":          true,
		"/users/42/x/../validate":       true,
		"/users/%34%32/validate":        true,
		"/users/42/%76alidate":          true,
		"/users/42/%2e/validate":        true,
		"/Users/42/validate":            false, // another path to every router that keeps to the standard
		"/users/42/validate/more":       false,
		"/users/42%2Fvalidate":          true,
		"/users%2F42%2fvalid%61te":      true,
		"/x/..%2Fusers/42/validate":     true,
		"/users%2Fx%2F..%2f42/validate": true,
		"/users/a%2Fb/validate":         true,  // one segment, as ServeMux, chi and echo read it
		"/users/a%2Fb/validate%2Fx":     false, // neither that nor two
		"/users%252F42/validate":        false,
		"/users/../users/42/validate/":  true,
	} {
		if got, _ := names(row, policy.Request{Method: "POST", Path: path}); (len(got) == 1) != want {
			t.Errorf("%s: the rule applies: %t, want %t", path, len(got) == 1, want)
		}
	}
}

// An exemption is exact: no spelling makes another path exempt (B47).
func TestExempt(t *testing.T) {
	row := oneRule()
	row.Policies[0].Exempt = []policy.Exemption{
		{PathPrefix: "/healthz"}, {Methods: []string{"GET"}, Route: "/status"}, {Route: "/internal/{id}"},
	}
	tests := map[string]struct {
		request policy.Request
		want    bool
	}{
		"the prefix itself":                 {policy.Request{Method: "GET", Path: "/healthz"}, true},
		"below the prefix":                  {policy.Request{Method: "GET", Path: "/healthz/ready"}, true},
		"a name that starts alike":          {policy.Request{Method: "GET", Path: "/healthzX"}, false},
		"dots that lead out":                {policy.Request{Method: "GET", Path: "/healthz/../api/x"}, false},
		"dots that lead in":                 {policy.Request{Method: "GET", Path: "/api/../healthz"}, false},
		"escaped dots that lead out":        {policy.Request{Method: "GET", Path: "/healthz/%2e%2e/api"}, false},
		"doubled slashes":                   {policy.Request{Method: "GET", Path: "//healthz"}, false},
		"escaped slashes that lead out":     {policy.Request{Method: "GET", Path: "/healthz%2F..%2Fapi"}, false},
		"dots behind an escaped slash":      {policy.Request{Method: "GET", Path: "/healthz/..%2fdownloads/big"}, false},
		"an escaped slash for the prefix's": {policy.Request{Method: "GET", Path: "/healthz%2Fready"}, false},
		"an escaped slash below the prefix": {policy.Request{Method: "GET", Path: "/healthz/a%2Fb"}, true},
		"slashes doubled by an escape":      {policy.Request{Method: "GET", Path: "/healthz/%2Fx"}, false},
		"two readings of a template":        {policy.Request{Method: "GET", Path: "/internal/a%2Fb"}, false},
		"which the router has decided":      {policy.Request{Method: "GET", Route: "/internal/{x}", Path: "/internal/a%2Fb"}, true},
		"a method and a path":               {policy.Request{Method: "HEAD", Path: "/status"}, true},
		"another method":                    {policy.Request{Method: "POST", Path: "/status"}, false},
		"a slash at the end":                {policy.Request{Method: "GET", Path: "/status/"}, false},
		"a template that the router gave":   {policy.Request{Method: "GET", Route: "/internal/{x}", Path: "/internal//1"}, true},
		"another template with such a path": {policy.Request{Method: "GET", Route: "/{a}/{b}", Path: "/internal/1"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules, exempt := names(row, tc.request)
			if exempt != tc.want || (len(rules) == 0) != tc.want {
				t.Errorf("exempt %t with rules %v, want exempt %t", exempt, rules, tc.want)
			}
		})
	}
}

func TestEvaluation(t *testing.T) {
	rule := func(p, name string, mode policy.Mode) policy.RowRule {
		return policy.RowRule{Policy: p, Name: name, Mode: mode}
	}
	row := policy.Row{
		Policies: []policy.RowPolicy{
			{Name: "first", Evaluation: policy.EvaluationFirstMatch, Exempt: []policy.Exemption{{PathPrefix: "/probe"}}},
			{Name: "all", Evaluation: policy.EvaluationAll, Exempt: []policy.Exemption{{PathPrefix: "/free"}}},
			{Name: "last", Evaluation: policy.EvaluationFirstMatch},
		},
		Rules: []policy.RowRule{
			rule("first", "shadow", policy.ModeShadow), rule("first", "a", policy.ModeEnforce), rule("first", "b", policy.ModeEnforce),
			rule("all", "a", policy.ModeEnforce), rule("all", "b", policy.ModeShadow), rule("all", "c", policy.ModeEnforce),
			rule("last", "a", policy.ModeEnforce), rule("last", "b", policy.ModeEnforce),
		},
	}
	tests := map[string]struct {
		path   string
		skip   []string
		want   []string
		exempt bool
	}{
		"the first enforced match decides, and policies add up": {
			path: "/x", want: []string{"first/shadow", "first/a", "all/a", "all/b", "all/c", "last/a"},
		},
		"a skipped rule is passed over": {
			path: "/x", skip: []string{"a"},
			want: []string{"first/shadow", "first/a", "first/b", "all/a", "all/b", "all/c", "last/a", "last/b"},
		},
		"skipping all leaves none behind": {
			path: "/x", skip: []string{"a", "b", "c", "shadow"},
			want: []string{"first/shadow", "first/a", "first/b", "all/a", "all/b", "all/c", "last/a", "last/b"},
		},
		"an exemption is the policy's own": {
			path: "/free", want: []string{"first/shadow", "first/a", "last/a"}, exempt: true,
		},
		"an exemption of the first policy": {
			path: "/probe", want: []string{"all/a", "all/b", "all/c", "last/a"}, exempt: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, exempt := names(row, policy.Request{Path: tc.path}, tc.skip...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if exempt != tc.exempt {
				t.Errorf("exempt %t, want %t", exempt, tc.exempt)
			}
		})
	}
}

// Under FirstMatch nobody comes to a laxer rule by a spelling that the router reads differently: each reading of the
// path has its own first match.
func TestFirstMatchByEachReading(t *testing.T) {
	rule := func(name string, mode policy.Mode, match ...policy.Match) policy.RowRule {
		return policy.RowRule{Policy: "p", Name: name, Mode: mode, Match: match}
	}
	row := policy.Row{
		Policies: []policy.RowPolicy{{Name: "p", Evaluation: policy.EvaluationFirstMatch, Exempt: []policy.Exemption{{PathPrefix: "/healthz"}}}},
		Rules: []policy.RowRule{
			rule("lax", policy.ModeEnforce, policy.Match{PathPrefix: "/lax"}),
			rule("login", policy.ModeEnforce, policy.Match{Route: "/login"}),
			rule("watched", policy.ModeShadow, policy.Match{PathPrefix: "/login"}),
			rule("rest", policy.ModeEnforce),
		},
	}
	tests := map[string]struct {
		request policy.Request
		skip    []string
		want    []string
	}{
		"a path that is read in one way":       {policy.Request{Path: "/lax/x"}, nil, []string{"p/lax"}},
		"also with escapes":                    {policy.Request{Path: "/la%78/x%2Fy"}, nil, []string{"p/lax"}},
		"dots behind an escaped slash":         {policy.Request{Path: "/lax/..%2Flogin"}, nil, []string{"p/lax", "p/login"}},
		"all slashes escaped":                  {policy.Request{Path: "/lax%2F..%2Flogin"}, nil, []string{"p/lax", "p/login", "p/rest"}},
		"dots that the router may leave in":    {policy.Request{Path: "/lax/../login"}, nil, []string{"p/lax", "p/login"}},
		"exempt by one reading":                {policy.Request{Path: "/healthz/..%2Flogin"}, nil, []string{"p/login", "p/rest"}},
		"a skipped rule ends no reading":       {policy.Request{Path: "/lax/..%2Flogin"}, []string{"lax"}, []string{"p/lax", "p/login", "p/rest"}},
		"the last of two rules is skipped":     {policy.Request{Path: "/lax/..%2Flogin"}, []string{"login"}, []string{"p/lax", "p/login", "p/watched", "p/rest"}},
		"a template that the router gave":      {policy.Request{Route: "/login", Path: "/login"}, nil, []string{"p/login"}},
		"a template of a path with a prefix's": {policy.Request{Route: "/login", Path: "/lax/..%2Flogin"}, nil, []string{"p/lax", "p/login"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, exempt := names(row, tc.request, tc.skip...)
			if diff := cmp.Diff(tc.want, got); diff != "" || exempt {
				t.Errorf("exempt %t, rules (-want +got):\n%s", exempt, diff)
			}
		})
	}
}

func TestRouteOfARequest(t *testing.T) {
	tests := map[string]struct {
		match   []policy.Match
		request policy.Request
		want    string
	}{
		"the router's template without names": {nil, policy.Request{Route: "GET h/users/{id}/files/{p...}"}, "/users/{}/files/{...}"},
		"a subtree":                           {nil, policy.Request{Route: "/static/"}, "/static/{...}"},
		"the rule's template where the router gave none": {
			[]policy.Match{{Route: "/users/{id}"}}, policy.Request{Path: "/users/7"}, "/users/{}",
		},
		"the rule's template where an outer router gave less": {
			[]policy.Match{{Route: "/v1/users/{id}"}}, policy.Request{Route: "/v1/", Path: "/v1/users/7"}, "/v1/users/{}",
		},
		"nothing where nobody knows":     {nil, policy.Request{Path: "/users/7"}, ""},
		"nothing where there is none":    {nil, policy.Request{Route: policy.NoRoute, Path: "/users/7"}, ""},
		"a route without a slash at all": {nil, policy.Request{Route: "users"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			walk := policy.NewMatcher(oneRule(tc.match...)).Walk(&tc.request)
			if _, ok := walk.Next(); !ok {
				t.Fatal("the rule does not apply")
			}
			if got := string(walk.AppendRoute(nil)); got != tc.want {
				t.Errorf("route %q, want %q", got, tc.want)
			}
		})
	}
}

func TestMatchingAllocatesNothing(t *testing.T) {
	row := oneRule(
		policy.Match{Methods: []string{"POST"}, Route: "/users/{id}/validate"},
		policy.Match{PathPrefix: "/api", Headers: []policy.HeaderMatch{{Name: "X-Tier", Value: "free"}}},
	)
	row.Policies[0].Exempt = []policy.Exemption{{PathPrefix: "/healthz"}}
	m := policy.NewMatcher(row)
	requests := []policy.Request{
		{Method: "POST", Route: "POST /users/{id}/validate", Path: "/users/42/validate"},
		{Method: "POST", Path: "/users/42/validate"},
		{Method: "GET", Path: "/api/x", Header: http.Header{"X-Tier": {"free"}}},
		{Method: "POST", Path: "/users/4%32/validate"},
	}
	route := make([]byte, 0, 64)
	if allocs := testing.AllocsPerRun(100, func() {
		for i := range requests {
			walk := m.Walk(&requests[i])
			if _, ok := walk.Next(); !ok {
				t.Fatal("the rule does not apply")
			}
			route = walk.AppendRoute(route[:0])
		}
	}); allocs != 0 {
		t.Errorf("%g allocations, want 0", allocs)
	}
}

func BenchmarkMatch(b *testing.B) {
	benchmarkMatch(b, policy.Request{Method: "POST", Route: "POST /users/{id}/validate", Path: "/users/42/validate"})
}

// What middleware in front of a router that it does not know costs.
func BenchmarkMatchByPath(b *testing.B) {
	for _, path := range []string{"/users/42/validate", "/users/4%32/validate", "/users/4%2F2/validate", "/x/../users/42/validate"} {
		b.Run(path, func(b *testing.B) { benchmarkMatch(b, policy.Request{Method: "POST", Path: path}) })
	}
}

func benchmarkMatch(b *testing.B, request policy.Request) {
	row := policy.Row{Policies: []policy.RowPolicy{{Name: "p", Exempt: []policy.Exemption{{PathPrefix: "/healthz"}}}}}
	for _, route := range []string{"/a", "/b/{id}", "/c/{id}/x", "/users/{id}/validate"} {
		row.Rules = append(row.Rules, policy.RowRule{Policy: "p", Name: route, Match: []policy.Match{{Route: route}}})
	}
	m := policy.NewMatcher(row)
	b.ReportAllocs()
	for b.Loop() {
		walk := m.Walk(&request)
		for _, ok := walk.Next(); ok; _, ok = walk.Next() {
		}
	}
}
