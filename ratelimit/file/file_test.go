package file_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit/file"
)

const good = `# one of ours
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop, labels: {team: checkout}}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules: [{name: all, limits: [{requests: 5, window: 1m}]}]
`

const workload = "shop/apps/Deployment/checkout"

func read(t *testing.T, s *file.Source, workload string) policy.Row {
	t.Helper()
	data, err := s.ReadRow(t.Context(), workload)
	if err != nil {
		t.Fatal(err)
	}
	row, problems, err := policy.DecodeRow(data)
	if err != nil || problems != nil {
		t.Fatalf("row: %v, %v", problems, err)
	}
	return row
}

func TestText(t *testing.T) {
	tests := map[string]struct {
		text  string
		rules int
		err   string
	}{
		"one policy":                    {good, 1, ""},
		"nothing":                       {"", 0, ""},
		"only comments":                 {"# nothing\n---\n# here\n", 0, ""},
		"another kind is passed over":   {"kind: Service\napiVersion: v1\nspec: {unknown: 1}\n---\n" + good, 1, ""},
		"several documents":             {good + "---\n" + strings.Replace(good, "name: checkout, namespace", "name: second, namespace", 1), 2, ""},
		"another workload's":            {strings.Replace(good, "Deployment, name: checkout", "Deployment, name: other", 1), 0, ""},
		"no namespace is default":       {strings.Replace(good, ", namespace: shop", "", 1), 0, ""},
		"a field that does not exist":   {strings.Replace(good, "requests", "reqests", 1), 0, `document 1: spec: json: unknown field "reqests"`},
		"a field that is there twice":   {strings.Replace(good, "window: 1m", "window: 1m, window: 2m", 1), 0, "already set"},
		"a version that does not exist": {strings.Replace(good, "v1alpha1", "v9", 1), 0, "v9"},
		"a policy that is refused":      {strings.Replace(good, "1m", "1d", 1), 0, "spec.rules[0].limits[0].window"},
		"no YAML":                       {"a: b: c", 0, "document 1"},
		"the second document":           {good + "---\na: b: c", 0, "document 2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := file.Text(tc.text)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if row := read(t, s, workload); len(row.Rules) != tc.rules {
				t.Errorf("%d rules, want %d", len(row.Rules), tc.rules)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := file.Files(filepath.Join(dir, "*.yaml")); err == nil {
		t.Error("no file at all is no error")
	}
	write("a.yaml", good)
	s, err := file.Files(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first := read(t, s, workload)
	if again := read(t, s, workload); again.Revision != first.Revision {
		t.Errorf("revision %v after %v although nothing changed", again.Revision, first.Revision)
	}
	write("a.yaml", strings.Replace(good, "requests: 5", "requests: 6", 1))
	changed := read(t, s, workload)
	if changed.Revision.Compare(first.Revision) <= 0 || changed.Rules[0].Limits[0].Requests != 6 {
		t.Errorf("revision %v with %d requests after a change of %v to 6", changed.Revision, changed.Rules[0].Limits[0].Requests, first.Revision)
	}
	write("a.yaml", strings.Replace(good, "requests", "reqests", 1))
	if _, err := s.ReadRow(t.Context(), workload); err == nil || !strings.Contains(err.Error(), "a.yaml") {
		t.Errorf("error %v, want one that names the file", err)
	}
	write("a.yaml", "# gone\n")
	if gone := read(t, s, workload); len(gone.Rules) != 0 || gone.Revision.Compare(changed.Revision) <= 0 {
		t.Errorf("after the policy went: %d rules, revision %v", len(gone.Rules), gone.Revision)
	}
}

// Windows line ends are line ends.
func TestLineEnds(t *testing.T) {
	text := strings.ReplaceAll(good+"---\n"+strings.Replace(good, "name: checkout, namespace", "name: second, namespace", 1), "\n", "\r\n")
	s, err := file.Text(text)
	if err != nil {
		t.Fatal(err)
	}
	if row := read(t, s, workload); len(row.Rules) != 2 {
		t.Errorf("%d rules, want 2", len(row.Rules))
	}
}

func FuzzText(f *testing.F) {
	f.Add(good)
	f.Add("---\n--- # x\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := file.Text(text)
		if err != nil {
			return
		}
		a, errA := s.ReadRow(t.Context(), workload)
		b, errB := s.ReadRow(t.Context(), workload)
		if !bytes.Equal(a, b) || (errA == nil) != (errB == nil) {
			t.Errorf("two reads of one text differ: %v, %v", errA, errB)
		}
	})
}
