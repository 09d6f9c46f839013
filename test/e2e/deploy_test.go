package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-dev/weir/test/kube"
)

// TestMakeDeployInstallsTheImage runs what the README says, against the local cluster.
func TestMakeDeployInstallsTheImage(t *testing.T) {
	c := kube.Cluster(t)
	const image = "registry.example.com/weir:v0.1.0"
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("make", "deploy", "IMG="+image)
	run(c.Kubectl, "apply", "-k", "config/samples")
	got := run(c.Kubectl, "get", "deployment", "weir-controller-manager", "-n", "weir-system",
		"-o", "jsonpath={.spec.template.spec.containers[*].image}")
	if got != image {
		t.Errorf("the controller's image is %q, want %q", got, image)
	}

	cmd := exec.CommandContext(t.Context(), "make", "deploy")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make deploy IMG=") {
		t.Errorf("without IMG: %v, %q; want a line that says what to name", err, out)
	}
}
