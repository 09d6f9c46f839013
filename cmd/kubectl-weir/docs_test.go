package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/yaml"
)

// kubectlCall is a call of kubectl itself, with flags of its own.
var kubectlCall = regexp.MustCompile(`(?m)^kubectl patch .*$`)

const reference = "../../docs/kubectl-weir.md"

var flagPattern = regexp.MustCompile("(?:^|[^-a-z0-9])--([a-z][-a-z0-9]*)")

// sections are the parts of the reference under headings of the second level, by heading.
func sections(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for part := range strings.SplitSeq(string(data), "\n## ") {
		heading, text, _ := strings.Cut(part, "\n")
		all[heading] = text
	}
	return all
}

// The reference names every command and every flag, and none that does not exist.
func TestTheReferenceNamesWhatThereIs(t *testing.T) {
	kubectl := pflag.NewFlagSet("", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).AddFlags(kubectl)
	sections := sections(t)
	common := flagsIn(sections["All commands"])
	for _, cmd := range newRoot(streams{}).Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		text, ok := sections[cmd.Name()]
		if !ok {
			t.Errorf("%s has no section", cmd.Name())
			continue
		}
		named := flagsIn(text)
		if cmd.Name() == "peek" || cmd.Name() == "reset" { // they refer to others
			named = append(named, flagsIn(sections["explain"])...)
			named = append(named, flagsIn(sections["peek"])...)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if kubectl.Lookup(f.Name) == nil && f.Name != "help" && f.Name != "output" && !slices.Contains(named, f.Name) && !slices.Contains(common, f.Name) {
				t.Errorf("%s: --%s is not described", cmd.Name(), f.Name)
			}
		})
		for _, name := range flagsIn(text) {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("%s: the reference has --%s, which does not exist", cmd.Name(), name)
			}
		}
	}
	for _, name := range common {
		if !slices.ContainsFunc(newRoot(streams{}).Commands(), func(c *cobra.Command) bool { return c.Flags().Lookup(name) != nil }) {
			t.Errorf("the reference has --%s, which no command has", name)
		}
	}
}

func flagsIn(text string) []string {
	var names []string
	text = kubectlCall.ReplaceAllString(text, "")
	for _, found := range flagPattern.FindAllStringSubmatch(text, -1) {
		names = append(names, found[1])
	}
	return names
}

// What is shown of commands in the reference can be called like that: it is parsed, and not run.
func TestTheReferencesCallsAreCalls(t *testing.T) {
	calls := 0
	for _, text := range sections(t) {
		for line := range strings.Lines(text) {
			call, found := strings.CutPrefix(strings.TrimSpace(line), "$ kubectl weir ")
			if !found {
				continue
			}
			calls++
			call, _, _ = strings.Cut(call, " | ")
			cmd, args, err := newRoot(streams{}).Find(strings.Fields(call))
			if err == nil {
				err = cmd.ParseFlags(args)
			}
			if err == nil {
				err = cmd.Args(cmd, cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("kubectl weir %s: %v", call, err)
			}
		}
	}
	if calls < 8 {
		t.Errorf("found %d calls", calls)
	}
}

// The manifest for Krew, filled in as at a release, has what Krew demands of one.
func TestKrewManifest(t *testing.T) {
	data, err := os.ReadFile("../../config/krew/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	functions := template.FuncMap{
		"addURIAndSha": func(uri, tag string) string {
			return "uri: " + strings.ReplaceAll(uri, "{{ .TagName }}", tag) + "\nsha256: " + strings.Repeat("0a", 32)
		},
		"indent": func(n int, text string) string {
			return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", n))
		},
	}
	parsed, err := template.New("krew").Funcs(functions).Parse(string(data))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := parsed.Execute(&out, struct{ TagName string }{"v1.2.3"}); err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description string
			Platforms                                        []struct {
				Selector    struct{ MatchLabels map[string]string }
				URI, SHA256 string
				Bin         string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(out.String()), &plugin); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if plugin.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || plugin.Kind != "Plugin" || plugin.Metadata.Name != "weir" {
		t.Errorf("%+v", plugin)
	}
	if s := plugin.Spec; s.Version != "v1.2.3" || s.Homepage == "" || s.Description == "" || len(s.ShortDescription) > 50 || s.ShortDescription == "" {
		t.Errorf("%+v", s)
	}
	seen := map[string]bool{}
	for _, p := range plugin.Spec.Platforms {
		os, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		seen[os+"/"+arch] = true
		want := "https://github.com/weir-dev/weir/releases/download/v1.2.3/kubectl-weir_v1.2.3_" + os + "_" + arch + ".tar.gz"
		if p.URI != want || len(p.SHA256) != 64 || p.Bin != "kubectl-weir" {
			t.Errorf("%+v, want %s", p, want)
		}
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"} {
		if !seen[platform] {
			t.Errorf("no %s", platform)
		}
	}
}
