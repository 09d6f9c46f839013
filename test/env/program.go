package env

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-dev/weir/hack/dev/process"
)

// programs are those of this repository that the test binary has built.
var programs struct {
	sync.Mutex
	dir   string
	built map[string]string // path by command
}

// Build builds a program of this repository, once for the test binary, and returns its path. Package is relative to the
// root, as "cmd/manager" is; flags are those of go build.
func Build(t testing.TB, pkg string, flags ...string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	command := strings.Join(append(flags, pkg), " ")
	if built := programs.built[command]; built != "" {
		return built
	}
	dir, err := programsFolder()
	if err != nil {
		t.Fatal(err)
	}
	// A folder for each, since the name is what the controller signs its fields with.
	binary := filepath.Join(dir, strconv.Itoa(len(programs.built)), path.Base(pkg))
	args := append([]string{"build"}, flags...)
	args = append(args, "-o", binary, "github.com/weir-dev/weir/"+pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	programs.built[command] = binary
	return binary
}

// programsFolder is gone when the test binary has ended.
func programsFolder() (string, error) {
	if programs.dir != "" {
		return programs.dir, nil
	}
	dir, err := os.MkdirTemp("", "weir-programs-")
	if err != nil {
		return "", err
	}
	if err := process.RemoveAtExit(dir); err != nil {
		return "", err
	}
	programs.dir, programs.built = dir, map[string]string{}
	return dir, nil
}
