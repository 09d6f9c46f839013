package manifest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-dev/weir/internal/policy"
)

// FuzzPolicies: whatever a file holds, reading it ends, and what is read without a fault is valid.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte(good))
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file := Parse("f.yaml", data)
		for _, p := range file.Policies(DefaultNamespace) {
			if faults := policy.Validate(p.Policy); faults != nil {
				t.Errorf("a policy was read with %v", faults)
			}
		}
		for _, fault := range file.Faults() {
			if fault.Message == "" || fault.File == "" {
				t.Errorf("fault %+v says nothing", fault)
			}
		}
	})
}
