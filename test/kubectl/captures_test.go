package kubectl

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what commands say into docs/captures")

// changing is what differs from one run to the next: who answered more often than whom, waits, installations, names of
// pods, hashes, and numbers.
var changing = regexp.MustCompile(`(Store|DenyCache) [0-9]+%(, (Store|DenyCache) [0-9]+%)*` +
	`|in ([0-9]+h)?([0-9]+m)?[0-9.]+s|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|checkout-[0-9a-z]+-[0-9a-z]{5}\b` +
	`|[0-9a-f]{12}|[0-9][0-9,]*(\.[0-9]+)?`)

// captured holds what a command says to what the documentation shows of it, but for numbers.
func captured(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(root, "docs", "captures", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want, got := shape(string(kept)), shape(text); want != got {
		t.Errorf("docs/captures/%s shows\n%s\nand the command says\n%s\nrun the test with -update, and make docs", name, kept, text)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "kubectl-weir.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```console\n"+string(kept)+"```\n") {
		t.Errorf("docs/kubectl-weir.md does not show docs/captures/%s as it is", name)
	}
}

// shown runs a command, and holds it to what the page shows of it. Texts without a picture are in a folder of their own.
// FILE in the call stands for a path, which the page calls checkout.yaml.
func (w *world) shown(t *testing.T, name, user string, code int, call, file string) {
	t.Helper()
	got, stdout, stderr := w.weir(user, strings.Fields(strings.ReplaceAll(call, "FILE", file))...)
	if got != code {
		t.Fatalf("%s: exit code %d, want %d: %s", call, got, code, stderr)
	}
	call = strings.NewReplacer("FILE", "checkout.yaml", "REDIS", "--redis localhost:6379").Replace(call)
	captured(t, name, "$ kubectl weir "+call+"\n"+stdout+stderr)
}

// shape is a text without its numbers, and without the blanks that make columns of them.
func shape(text string) string {
	return regexp.MustCompile(` {2,}`).ReplaceAllString(changing.ReplaceAllString(text, "0"), "  ")
}
