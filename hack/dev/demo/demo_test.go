package demo

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-dev/weir/hack/dev/process"
)

// A second demo in the same folder takes nothing away from the first.
func TestOneDemoAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	unlock, err := process.Lock(t.Context(), dir+".lock", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), io.Discard, dir); !errors.Is(err, errRuns) {
		t.Errorf("error %v, want %v", err, errRuns)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the folder of the first: %v", err)
	}
}

// Whoever keeps the demo running is told all that its commands need, which is written nowhere else.
func TestInvitation(t *testing.T) {
	text := invitation("bin/kubectl", "/tmp/demo/kubeconfig", "127.0.0.1:7001", []string{"127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"})
	for _, want := range []string{
		"  export KUBECONFIG=/tmp/demo/kubeconfig\n",
		"  bin/kubectl get rlp -n shop\n",
		" http://127.0.0.1:8001/exports ",
		"kubectl-weir status checkout -n shop --redis 127.0.0.1:7001 --table demo\n",
		" --metrics-url http://127.0.0.1:8001/metrics,http://127.0.0.1:8002/metrics,http://127.0.0.1:8003/metrics\n",
		"127.0.0.1:8001, 127.0.0.1:8002, 127.0.0.1:8003.\n",
		"Ctrl-C",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in it:\n%s", want, text)
		}
	}
}
