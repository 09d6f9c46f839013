package main

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// nowhere are flags that lead to no API server.
var nowhere = []string{"--kubeconfig", "/dev/null", "--server", "http://127.0.0.1:1"}

// Whatever is wrong with a call of any command, it ends with one line that says what to do next, and code 2; what could
// not be done ends with 1.
func TestEveryCommandEndsWithOneLine(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "log": "nonsense\n", "not.yaml": "a: [\n"})
	file := func(name string) string { return filepath.Join(dir, name) }
	// What makes a call of each command that gets as far as a cluster, a file or an address.
	good := map[string][]string{
		"test": {file("policy.yaml")}, "lint": {file("policy.yaml")}, "postgres-schema": nil,
		"simulate": {"-f", file("policy.yaml"), "--log", file("log")},
		"status":   nil, "explain": {"checkout", "--path", "/"}, "diff": {"-f", file("policy.yaml")},
		"peek": {"checkout", "--path", "/", "--redis", "127.0.0.1:1"}, "reset": {"checkout", "--path", "/", "--redis", "127.0.0.1:1"},
		"shadow": {"checkout"}, "top": {"checkout"}, "completion": {"bash"}, "help": {"top"},
	}
	refuse := func(t *testing.T, code int, next string, args ...string) {
		t.Helper()
		got, stdout, stderr := call(t, args...)
		if got != code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, next) {
			t.Errorf("kubectl weir %s: exit code %d, want %d, and one line with %q:\n%s%s", strings.Join(args, " "), got, code, next, stdout, stderr)
		}
	}
	for _, cmd := range newRoot(streams{}).Commands() {
		name := cmd.Name()
		t.Run(name, func(t *testing.T) {
			args, ok := good[name]
			if !ok {
				t.Fatal("a new command: say how it is called")
			}
			with := func(more ...string) []string { return slices.Concat([]string{name}, args, more) }
			refuse(t, 2, "--help` says how to call it", with("--bogus")...)
			if cmd.Flags().Lookup("output") != nil {
				refuse(t, 2, ": must be ", with("-o", "xml")...)
				refuse(t, 2, "--help` says how to call it", with("-o")...)
			}
			if cmd.Flags().Lookup("server") != nil {
				next := "is it the right --context?"
				if name == "peek" || name == "reset" { // which look into Redis first
					next = "check --redis"
				}
				refuse(t, 1, next, with(nowhere...)...)
			}
		})
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		next string
	}{
		"an unknown command":            {[]string{"bogus"}, 2, "`kubectl weir --help` lists those that there are"},
		"a command that is nearly one":  {[]string{"stauts"}, 2, "did you mean status?"},
		"help for no command":           {[]string{"help", "bogus"}, 2, "lists those that there are"},
		"test without files":            {[]string{"test"}, 2, "`kubectl weir test policies/...`"},
		"lint without files":            {[]string{"lint"}, 2, "`kubectl weir lint policies/...`"},
		"test of no file":               {[]string{"test", "nope"}, 2, "name a file, a folder, or a tree"},
		"lint of no file":               {[]string{"lint", "nope"}, 2, "name a file, a folder, or a tree"},
		"simulate of no file":           {[]string{"simulate", "-f", "nope", "--log", "x"}, 2, "name a file, a folder, or a tree"},
		"diff of no file":               {slices.Concat([]string{"diff", "-f", "nope"}, nowhere), 2, "name a file, a folder, or a tree"},
		"simulate without policies":     {[]string{"simulate"}, 2, "name the file with the policies"},
		"simulate without a log":        {[]string{"simulate", "-f", file("policy.yaml")}, 2, "name the access log"},
		"simulate of no log":            {[]string{"simulate", "-f", file("policy.yaml"), "--log", "nope"}, 2, "name the access log"},
		"simulate with an argument":     {[]string{"simulate", "x"}, 2, "takes no arguments"},
		"diff without policies":         {slices.Concat([]string{"diff"}, nowhere), 2, "name the file with the policies"},
		"diff with an argument":         {slices.Concat([]string{"diff", "x"}, nowhere), 2, "takes no arguments"},
		"postgres-schema with argument": {[]string{"postgres-schema", "x"}, 2, "takes no arguments"},
		"status of two":                 {[]string{"status", "a", "b"}, 2, "call `kubectl weir status a` first"},
		"status of all and Redis":       {[]string{"status", "--redis", "127.0.0.1:1"}, 2, "for example `kubectl weir status checkout`"},
		"a table of no Redis":           {[]string{"status", "a", "--table", "b"}, 2, "give the address with --redis"},
		"a context that is not there":   {slices.Concat([]string{"status", "--context", "nope"}, nowhere), 1, "`kubectl config get-contexts` lists those that there are"},
		"explain of nothing":            {[]string{"explain"}, 2, "`kubectl weir explain checkout`"},
		"explain of two":                {[]string{"explain", "a", "b"}, 2, "call `kubectl weir explain a` first"},
		"explain of no request":         {[]string{"explain", "a"}, 2, "say which request it is"},
		"peek of nothing":               {[]string{"peek"}, 2, "`kubectl weir peek checkout`"},
		"peek without Redis":            {[]string{"peek", "a", "--path", "/"}, 2, "give its address with --redis"},
		"reset of nothing":              {[]string{"reset"}, 2, "`kubectl weir reset checkout`"},
		"reset without Redis":           {[]string{"reset", "a", "--path", "/"}, 2, "give its address with --redis"},
		"shadow of nothing":             {[]string{"shadow"}, 2, "`kubectl weir shadow checkout`"},
		"top of nothing":                {[]string{"top"}, 2, "`kubectl weir top checkout`"},
		"top of another kind":           {slices.Concat([]string{"top", "pod/x"}, nowhere), 2, "want the name of a Deployment"},
		"top of no identities":          {[]string{"top", "a", "--identities", "0"}, 2, "want at least"},
		"a port that is none":           {[]string{"status", "--redis", "here"}, 2, "want host:port"},
		"a password that is not there":  {slices.Concat([]string{"peek", "a", "--path", "/", "--redis", "127.0.0.1:1", "--redis-password-file", "nope"}, nowhere), 2, "name the file"},
		"completion for no shell":       {[]string{"completion"}, 2, "must be bash, fish, powershell or zsh"},
		"completion for another shell":  {[]string{"completion", "foo"}, 2, "must be bash, fish, powershell or zsh"},
		"completion for two shells":     {[]string{"completion", "bash", "zsh"}, 2, "takes no arguments"},
	} {
		t.Run(name, func(t *testing.T) { refuse(t, tc.code, tc.next, tc.args...) })
	}
	if code, _, stderr := call(t, "simulate", "-f", file("policy.yaml"), "--log", file("log")); code != 1 || !strings.HasSuffix(stderr, "say what it looks like with --format and --field\n") {
		t.Errorf("a log of nonsense: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := call(t, "simulate", "-f", file("not.yaml"), "--log", file("log")); code != 2 || !strings.Contains(stderr, "not.yaml:") {
		t.Errorf("a policy that is none: exit code %d, %s", code, stderr)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// What could not be written is not there: no call ends with 0 then.
func TestNothingWrittenIsNoSuccess(t *testing.T) {
	dir := write(t, map[string]string{"policy.yaml": policyText, "a.yaml": passing, "access.log": accessLog()})
	for _, args := range [][]string{
		{"lint", dir}, {"lint", dir, "-o", "json"}, {"test", dir}, {"postgres-schema"}, {"help"}, {"completion", "bash"},
		{"simulate", "-f", filepath.Join(dir, "policy.yaml"), "--log", filepath.Join(dir, "access.log")},
	} {
		var complaints strings.Builder
		code := execute(t.Context(), args, streams{in: strings.NewReader(""), out: full{}, err: &complaints})
		if code != exitFailed || !strings.HasSuffix(complaints.String(), ": no space left\n") {
			t.Errorf("%v: exit code %d: %s", args, code, &complaints)
		}
	}
}

// The scripts that complete calls are those of all shells, and complete our commands.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "fish", "powershell", "zsh"} {
		code, stdout, stderr := call(t, "completion", shell)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "kubectl-weir") || !strings.Contains(stdout, cobra.ShellCompRequestCmd) {
			t.Errorf("%s: exit code %d, %s%.200s", shell, code, stderr, stdout)
		}
	}
	for args, want := range map[string]string{"": "simulate\t", "t": "top\t", "status -o ": "wide\n", "completion ": "zsh\t"} {
		code, stdout, _ := call(t, append([]string{cobra.ShellCompRequestCmd}, strings.Split(args, " ")...)...)
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, want %q:\n%s", args, code, want, stdout)
		}
	}
}
