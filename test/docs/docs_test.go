// Package docs holds the pages to what they show: programs build, policies compile, scenarios pass, and each command is
// one that a test or continuous integration runs.
package docs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/scenario"
)

const root = "../.."

// covered says for each command that a page shows what runs it.
var covered = map[string]string{
	"make demo": "by hand before each release; its parts by test/e2e",
	"make deploy IMG=registry.example.com/weir:v0.1.0":                 "test/e2e TestMakeDeployInstallsTheImage",
	"kubectl apply -k config/samples":                                  "test/e2e TestMakeDeployInstallsTheImage",
	"redis-cli del 'weir:default:row:{shop/apps/Deployment/checkout}'": "test/controller TestARowOfANewerControllerIsLeftAlone",
	"go mod init hello": "TestLaptop",
	"go mod tidy":       "TestLaptop",
	"go run .":          "TestLaptop",
	"curl -i -H 'X-Api-Key: acme' http://127.0.0.1:8080/hello":                "TestLaptop",
	"go run github.com/weir-dev/weir/cmd/kubectl-weir@latest postgres-schema": "test/kubectl",
}

// isPolicy finds the documents that are policies, and not those that name one.
var isPolicy = regexp.MustCompile(`(?m)^kind: RateLimitPolicy`)

// The fragment that a page shows is the one that is tested.
func TestTheMountOfThePageIsTheComponents(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "snapshots.md"))
	if err != nil {
		t.Fatal(err)
	}
	component, err := os.ReadFile(filepath.Join(root, "config", "components", "snapshot-mount", "mount.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(component)+"```\n") {
		t.Error("docs/snapshots.md does not show config/components/snapshot-mount/mount.yaml as it is")
	}
}

// isScenario finds scenario files, which may begin with a comment.
var isScenario = regexp.MustCompile(`(?m)^scenario:`)

type block struct {
	language, text string
	line           int
}

// howto are pages for a purpose, whose links are followed, too.
const howto = root + "/docs/howto/"

func TestBlocksOfThePages(t *testing.T) {
	for _, page := range pages(t) {
		t.Run(strings.TrimPrefix(page, root+"/"), func(t *testing.T) {
			for _, b := range blocks(t, page) {
				switch {
				case b.language == "sh":
					checkCommands(t, b)
				case b.language == "go" && strings.HasPrefix(b.text, "package main"):
					checkProgram(t, b)
				case b.language == "yaml" && isScenario.MatchString(b.text):
					checkScenario(t, b)
				case strings.HasPrefix(b.text, "healthCheckExprs:"): // test/packaging evaluates them
				case b.language == "yaml" && isPolicy.MatchString(b.text):
					checkPolicies(t, b)
				default:
					checkOther(t, b)
				}
			}
		})
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	found := []string{filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".md") {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// blocks returns the fenced blocks of a page.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	var open *block
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		switch {
		case open == nil && strings.HasPrefix(line, "```"):
			open = &block{language: strings.TrimSpace(strings.TrimPrefix(line, "```")), line: number}
		case open != nil && strings.HasPrefix(line, "```"):
			found, open = append(found, *open), nil
		case open != nil:
			open.text += line
		}
	}
	if open != nil {
		t.Errorf("line %d: the block is never closed", open.line)
	}
	return found
}

func checkCommands(t *testing.T, b block) {
	t.Helper()
	for line := range strings.Lines(b.text) {
		command := strings.TrimSpace(line)
		if command != "" && !strings.HasPrefix(command, "#") && covered[command] == "" {
			t.Errorf("block at line %d: nothing runs %q; add a test and name it here", b.line, command)
		}
	}
}

// checkOther checks what is neither a program nor a policy.
func checkOther(t *testing.T, b block) {
	t.Helper()
	switch b.language {
	case "yaml":
		for document := range strings.SplitSeq(b.text, "\n---\n") {
			if err := yaml.Unmarshal([]byte(document), new(any)); err != nil {
				t.Errorf("the block at line %d: %v", b.line, err)
			}
		}
	case "nginx", "": // what another program reads, or prints
	case "console": // cmd/kubectl-weir parses the calls; of some, test/kubectl holds what they print to the commands
	default:
		t.Errorf("the block at line %d, of %s, is held to nothing: programs begin with package main", b.line, b.language)
	}
}

// TestLinksOfThePages finds links of the first pages and of those for a purpose to files that do not exist.
func TestLinksOfThePages(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, page := range pages(t) {
		if filepath.Dir(page) != root && !strings.HasPrefix(page, howto) {
			continue
		}
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(content), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), found[1])); err != nil {
				t.Errorf("%s: %v", strings.TrimPrefix(page, root+"/"), err)
			}
		}
	}
}

// module is where a program builds: adapters are modules of their own.
func module(b block) string {
	if adapter := regexp.MustCompile(`"github.com/weir-dev/weir/(ratelimit/(?:chi|echo|gin|grpc|mux)limit)"`).FindStringSubmatch(b.text); adapter != nil {
		return filepath.Join(root, adapter[1])
	}
	return root
}

func checkProgram(t *testing.T, b block) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "vet", file) // compiles it, and links nothing
	cmd.Dir = module(b)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the program at line %d does not compile: %v\n%s", b.line, err, out)
	}
}

func checkPolicies(t *testing.T, b block) {
	t.Helper()
	for document := range strings.SplitSeq(b.text, "\n---\n") {
		if !isPolicy.MatchString(document) {
			continue
		}
		var p policy.Policy
		if err := yaml.Unmarshal([]byte(document), &p); err != nil {
			t.Errorf("the policy at line %d: %v", b.line, err)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &v1alpha1.RateLimitPolicy{}); err != nil {
			t.Errorf("the policy at line %d has fields that the resource does not know: %v", b.line, err)
		}
		var problems []error
		for _, problem := range policy.Validate(p) {
			problems = append(problems, problem)
		}
		if err := errors.Join(problems...); err != nil {
			t.Errorf("the policy at line %d: %v", b.line, err)
		}
	}
}

func checkScenario(t *testing.T, b block) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	scenarios, faults, err := scenario.Load(file)
	if err = errors.Join(err, faults.Err()); err != nil {
		t.Errorf("the scenario at line %d: %v", b.line, err)
		return
	}
	for _, s := range scenarios {
		result, err := scenario.Runner{}.Run(t.Context(), s, scenario.Memory)
		if err != nil || !result.Passed() {
			t.Errorf("the scenario at line %d: %v %v", b.line, err, result.Failures)
		}
	}
}
