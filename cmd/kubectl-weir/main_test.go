package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// call runs one call as a shell would, and returns its exit code and what it said.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = execute(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &err})
	return code, out.String(), err.String()
}

// write writes files into a new folder and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const policyText = `apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules: [{name: all, limits: [{requests: 2, window: 1m}]}]
`

const passing = `scenario: two per minute
policies: [policy.yaml]
steps:
  - {at: 0s, send: {count: 3}, expect: {decisions: AAD}}
`

const failing = `scenario: three per minute
policies: [policy.yaml]
stores: [memory, redis]
steps:
  - at: 0s
    send: {count: 3}
    expect: {decisions: AAA, last: {remaining: 1}}
  - {at: 1m, send: {}, expect: {admitted: 1}}
`

func TestTestTellsWhatPassedAndWhatFailed(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "a.yaml": passing, "b.yaml": failing})
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"a scenario that passes": {[]string{"a.yaml"}, 0, "ok    memory    DIR/a.yaml: two per minute\n1 passed, 0 failed\n"},
		"one that fails, on a store that is there": {
			[]string{"b.yaml"}, 1,
			"FAIL  memory    DIR/b.yaml: three per minute: line 7: steps[0] at 0s: decisions: expected AAA, got AAD\n" +
				"      line 7: steps[0] at 0s: last.remaining: expected 1, got 0\n" +
				"0 passed, 1 failed, 1 skipped without --redis\n",
		},
		"both, by the folder": {
			[]string{""}, 1,
			"ok    memory    DIR/a.yaml: two per minute\n" +
				"FAIL  memory    DIR/b.yaml: three per minute: line 7: steps[0] at 0s: decisions: expected AAA, got AAD\n" +
				"      line 7: steps[0] at 0s: last.remaining: expected 1, got 0\n" +
				"1 passed, 1 failed, 1 skipped without --redis\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := []string{"test"}
			for _, arg := range tc.args {
				args = append(args, filepath.Join(dir, arg))
			}
			code, stdout, stderr := call(t, args...)
			if code != tc.code || stderr != "" {
				t.Errorf("exit code %d, want %d; %s", code, tc.code, stderr)
			}
			if diff := cmp.Diff(tc.want, strings.ReplaceAll(stdout, dir, "DIR")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTestRunsNothingWhenAFileIsNotValid(t *testing.T) {
	dir := write(t, map[string]string{
		"policy.yaml": policyText, "a.yaml": passing, "b.yaml": strings.Replace(passing, "expect:", "expekt:", 1),
	})
	code, stdout, stderr := call(t, "test", dir)
	if code != 2 || stdout != "" {
		t.Errorf("exit code %d, output %q, want 2 and none", code, stdout)
	}
	want := "DIR/b.yaml:4: steps[0].expekt: unknown field: did you mean expect?\n"
	if diff := cmp.Diff(want, strings.ReplaceAll(stderr, dir, "DIR")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCallsThatCannotBe(t *testing.T) {
	dir := write(t, map[string]string{
		"policy.yaml":     policyText,
		"only/redis.yaml": strings.NewReplacer("[memory, redis]", "[redis]", "policy.yaml", "p/p.yaml").Replace(failing),
		"only/p/p.yaml":   policyText,
		"empty/x.txt":     "",
		"none.yaml":       strings.Replace(passing, "scenario:", "scenari:", 1),
	})
	dir += "/"
	tests := map[string]struct {
		args []string
		code int
		want string // in what it says
	}{
		"no file":                      {[]string{"test"}, 2, "name a file, a folder or a tree"},
		"no file to lint":              {[]string{"lint"}, 2, "name a file, a folder or a tree"},
		"a file that there is not":     {[]string{"test", dir + "gone.yaml"}, 2, "gone.yaml: no such file"},
		"a folder without files":       {[]string{"test", dir + "empty"}, 2, "there are no YAML files in " + dir + "empty"},
		"an unknown output":            {[]string{"test", dir, "-o", "yaml"}, 2, `unknown output "yaml"`},
		"an unknown output of lint":    {[]string{"lint", dir, "-o", "junit"}, 2, `unknown output "junit"`},
		"an unknown flag":              {[]string{"lint", "--what", dir}, 2, "unknown flag: --what"},
		"an unknown command":           {[]string{"tset", dir}, 2, `unknown command "tset"`},
		"a file that is no scenario":   {[]string{"test", dir + "none.yaml"}, 2, "none.yaml:1: scenari: unknown field"},
		"policies and no scenario":     {[]string{"test", dir + "policy.yaml"}, 2, "policy.yaml: `kubectl weir lint` checks policies"},
		"a scenario through a pipe":    {[]string{"test", "-"}, 2, "name its file"},
		"nothing through a pipe":       {[]string{"lint", "-"}, 2, "-: holds neither a policy nor a scenario"},
		"nothing that could be run":    {[]string{"test", dir + "only"}, 1, "no scenario was run"},
		"a Redis that does not answer": {[]string{"test", dir + "only/...", "--redis", "127.0.0.1:1"}, 1, "connection refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.args...)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("exit code %d, want %d, with %q:\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}

// What other tools write can be piped into those that read policies.
func TestPoliciesThroughAPipe(t *testing.T) {
	dir := write(t, map[string]string{"access.log": accessLog()})
	pipe := func(text string, args ...string) (code int, said string) {
		var out bytes.Buffer
		code = execute(t.Context(), args, streams{in: strings.NewReader(text), out: &out, err: &out})
		return code, out.String()
	}
	const other = "apiVersion: v1\nkind: Service\nmetadata: {name: checkout}\n---\n"
	for name, tc := range map[string]struct {
		text string
		args []string
		code int
		want string
	}{
		"lint":           {other + policyText, []string{"lint", "-"}, 0, "1 file: nothing to complain about"},
		"lint of a typo": {other + strings.Replace(policyText, "requests", "reqests", 1), []string{"lint", "-"}, 2, "-:10: spec.rules[0].limits[0].reqests: unknown field"},
		"lint of a test": {passing, []string{"lint", "-"}, 2, "name its file"},
		"simulate":       {policyText, []string{"simulate", "-f", "-", "--log", filepath.Join(dir, "access.log")}, 0, "checkout/all   15 "},
		"two pipes":      {policyText, []string{"simulate", "-f", "-", "--log", "-"}, 2, "both the standard input"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, said := pipe(tc.text, tc.args...); code != tc.code || !strings.Contains(said, tc.want) {
				t.Errorf("exit code %d, want %d, with %q:\n%s", code, tc.code, tc.want, said)
			}
		})
	}
}

// A pattern of the shell names scenarios and the policies that they are about.
func TestTestPassesOverPolicies(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "a.yaml": passing})
	code, stdout, stderr := call(t, "test", filepath.Join(dir, "a.yaml"), filepath.Join(dir, "policy.yaml"))
	if code != 0 || !strings.Contains(stdout, "1 passed, 0 failed") || stderr != "" {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

func TestTestTellsMachines(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "a.yaml": passing, "b.yaml": failing})
	code, stdout, _ := call(t, "test", dir, "-o", "json")
	var results []struct {
		File, Scenario, Store, Result string
		Failures                      []struct {
			Step, Line              int
			At, Path, Expected, Got string
		}
	}
	if err := json.Unmarshal([]byte(stdout), &results); err != nil || code != 1 {
		t.Fatalf("exit code %d, %v:\n%s", code, err, stdout)
	}
	var got []string
	for _, r := range results {
		got = append(got, filepath.Base(r.File)+" "+r.Store+" "+r.Result)
	}
	if diff := cmp.Diff([]string{"a.yaml memory ok", "b.yaml memory FAIL", "b.yaml redis skip"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if f := results[1].Failures[0]; f.Path != "expect.decisions" || f.At != "0s" || f.Line != 7 || f.Expected != "AAA" || f.Got != "AAD" {
		t.Errorf("failure %+v", f)
	}

	code, stdout, _ = call(t, "test", dir, "-o", "junit")
	var suites junitSuites
	if err := xml.Unmarshal([]byte(stdout), &suites); err != nil || code != 1 {
		t.Fatalf("exit code %d, %v:\n%s", code, err, stdout)
	}
	if len(suites.Suites) != 2 || suites.Suites[1].Tests != 2 || suites.Suites[1].Failures != 1 || suites.Suites[1].Skipped != 1 {
		t.Errorf("suites %+v", suites.Suites)
	}
}

// Each invalid sample says in its first two lines what is wrong with it.
func TestLintSaysWhatTheAPIServerSays(t *testing.T) {
	files, err := filepath.Glob("../../config/testdata/invalid/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no invalid samples (%v)", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head := regexp.MustCompile(`^# path: (.*)\n# message: (.*)\n`).FindStringSubmatch(string(data))
			if head == nil {
				t.Fatal("the sample does not say what is wrong with it")
			}
			code, stdout, _ := call(t, "lint", file)
			want := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(file) + `:[1-9][0-9]*: ` + regexp.QuoteMeta(head[1]) + `: .*` + regexp.QuoteMeta(head[2]))
			if code != 2 || !want.MatchString(stdout) {
				t.Errorf("exit code %d, want 2 and %s:\n%s", code, want, stdout)
			}
		})
	}
}

func TestLintWarns(t *testing.T) {
	dir := write(t, map[string]string{
		"p.yaml":       strings.Replace(policyText, "requests: 2", "requests: 0", 1),
		"p/values.yml": "{{ template }}: [\n",
		"p/s.yaml":     passing,
		"p/o.yaml":     "apiVersion: v1\nkind: Service\n",
	})
	code, stdout, stderr := call(t, "lint", filepath.Join(dir, "p.yaml"))
	want := "DIR/p.yaml:6: spec.rules[0].limits[0].requests: warning: 0 denies every request that the rule matches\n1 file: 0 errors, 1 warning\n"
	if diff := cmp.Diff(want, strings.ReplaceAll(stdout, dir, "DIR")); diff != "" || code != 0 {
		t.Errorf("exit code %d, %s (-want +got):\n%s", code, stderr, diff)
	}
	if code, _, _ := call(t, "lint", "--strict", filepath.Join(dir, "p.yaml")); code != 1 {
		t.Errorf("exit code %d with --strict, want 1", code)
	}
	code, stdout, _ = call(t, "lint", filepath.Join(dir, "p", "..."), "-o", "json")
	var found findings
	if err := json.Unmarshal([]byte(stdout), &found); err != nil {
		t.Fatal(err)
	}
	// Of the folder, only the scenario is ours; its policy file is not there.
	if code != 2 || found.Files != 1 || len(found.Errors) != 1 || found.Errors[0].Path != "policies[0]" {
		t.Errorf("exit code %d, findings %+v", code, found)
	}
}

func TestSamplesAndScenariosAreClean(t *testing.T) {
	for _, dir := range []string{"../../config/samples", "../../test/scenarios"} {
		if code, stdout, stderr := call(t, "lint", "--strict", dir); code != 0 {
			t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
		}
	}
}

func TestScenariosPassInMemory(t *testing.T) {
	if code, stdout, stderr := call(t, "test", "../../test/scenarios"); code != 0 {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}
