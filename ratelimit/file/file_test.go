package file_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit/file"
)

const exports = `apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - {name: exports, limits: [{requests: 5, window: 1m}]}
`

const workload = "shop/apps/Deployment/checkout"

// files writes a file and returns its folder, and a function that writes it anew.
func files(t *testing.T, text string) (dir string, write func(string)) {
	t.Helper()
	dir = t.TempDir()
	write = func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "checkout.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	return dir, write
}

// read returns the row that the source gives.
func read(t *testing.T, s *file.Source) policy.Row {
	t.Helper()
	data, err := s.ReadRow(context.Background(), workload)
	if err != nil {
		t.Fatal(err)
	}
	row, problems, err := policy.DecodeRow(data)
	if err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	return row
}

func TestARevisionIsNewWhenThePoliciesAre(t *testing.T) {
	dir, write := files(t, exports)
	s, err := file.Files(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	note := func() { got = append(got, read(t, s).Revision.N) }
	note()
	note()
	write(exports + "# a comment\n")
	note()
	write(strings.Replace(exports, "requests: 5", "requests: 6", 1))
	note()
	if rule := read(t, s).Rules[0]; rule.Limits[0].Requests != 6 {
		t.Errorf("limit %+v, want the new one", rule.Limits[0])
	}
	write(exports)
	note()
	if diff := cmp.Diff([]int64{1, 1, 1, 2, 3}, got); diff != "" {
		t.Errorf("revisions (-want +got):\n%s", diff)
	}
}

func TestAMistakeLeavesTheLastGoodPoliciesInForce(t *testing.T) {
	dir, write := files(t, exports)
	name := filepath.Join(dir, "checkout.yaml")
	s, err := file.Files(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, s)
	fails := func(want string) {
		t.Helper()
		for range 2 { // and it is told as long as it is there
			if _, err := s.ReadRow(context.Background(), workload); err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		}
	}
	write(strings.Replace(exports, "window: 1m", "windw: 1m", 1))
	fails("reading policies: " + name + ":7: spec.rules[0].limits[0].windw: unknown field: did you mean window?")
	write("# nothing but a comment\n") // as an editor leaves it for a moment
	fails("reading policies: there is none in " + name)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	fails(`reading policies: no file matches "` + filepath.Join(dir, "*.yaml") + `"`)
	write(exports)
	if diff := cmp.Diff(before, read(t, s)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestMistakesAreFoundBeforeTheStart(t *testing.T) {
	many := strings.Replace(exports, "  rules:\n", "  rules:\n"+strings.Repeat("    - {name: xNAME, limits: [{requests: 1, window: 1s}]}\n", 40), 1)
	for i := range 40 {
		many = strings.Replace(many, "xNAME", "x"+strings.Repeat("y", i), 1)
	}
	tests := map[string]struct{ text, want string }{
		"a syntax error":         {"spec: {", "reading policies: policies:1: not YAML"},
		"a policy that is wrong": {strings.Replace(exports, "1m", "1d", 1), "reading policies: policies:7: spec.rules[0].limits[0].window: "},
		"policies that do not fit together": {
			many + "---\n" + strings.Replace(many, "name: checkout, namespace", "name: second, namespace", 1),
			"reading policies: policy shop/second: TooManyRules: ",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := file.Text(tc.text); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("error %v, want %s…", err, tc.want)
			}
		})
	}
	if _, err := file.Files(); err == nil {
		t.Error("no files are accepted")
	}
}

func TestAWorkloadWithoutPoliciesHasNoLimits(t *testing.T) {
	s, err := file.Text("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n---\n" + exports)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{workload}, s.Workloads()); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	data, err := s.ReadRow(context.Background(), "shop/cart")
	if err != nil {
		t.Fatal(err)
	}
	row, _, err := policy.DecodeRow(data)
	if err != nil || len(row.Rules) != 0 {
		t.Errorf("row %+v, error %v, want one without rules", row, err)
	}
}
