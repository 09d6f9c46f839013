package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-dev/weir/hack/dev/tool"
)

// Assets are the folders with the programs of a local Kubernetes.
type Assets struct {
	// ControlPlane holds etcd, kube-apiserver and kubectl, and for a whole cluster also kube-controller-manager and
	// kube-scheduler.
	ControlPlane string
	// Kwok holds kwok; empty if only an API server was asked for.
	Kwok string
}

var (
	apiServerPrograms = []string{"etcd", "kube-apiserver", "kubectl"}
	controllers       = []string{"kube-controller-manager", "kube-scheduler"}
)

// FindAssets returns the programs: those of the folder KUBEBUILDER_ASSETS if it has all that are needed, else an
// earlier build, else it builds them. The log hears about anything that takes more than a moment.
func FindAssets(ctx context.Context, apiServerOnly bool, log io.Writer) (Assets, error) {
	root, err := tool.Root()
	if err != nil {
		return Assets{}, err
	}
	var assets Assets
	if dir, given := os.LookupEnv("KUBEBUILDER_ASSETS"); given {
		needed := apiServerPrograms
		if !apiServerOnly {
			needed = slices.Concat(controllers, needed)
		}
		missing := missingPrograms(dir, needed)
		if len(missing) == 0 {
			assets.ControlPlane = dir
		} else {
			fmt.Fprintf(log, "KUBEBUILDER_ASSETS=%s lacks %s: using our own build\n", dir, strings.Join(missing, ", "))
		}
	}
	if assets.ControlPlane == "" {
		program, err := controlPlane(root)
		if err != nil {
			return Assets{}, err
		}
		if assets.ControlPlane, err = program.Ensure(ctx, root, log); err != nil {
			return Assets{}, err
		}
	}
	if !apiServerOnly {
		if assets.Kwok, err = kwok().Ensure(ctx, root, log); err != nil {
			return Assets{}, err
		}
	}
	return assets, nil
}

func missingPrograms(dir string, needed []string) []string {
	var missing []string
	for _, name := range needed {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// controlPlane is Kubernetes and etcd in one program. Its version must be set at link time, or kubectl cannot read
// the server's.
func controlPlane(root string) (tool.Program, error) {
	const module = "hack/controlplane"
	version, err := tool.ModuleVersion(filepath.Join(root, module), "k8s.io/kubernetes")
	if err != nil {
		return tool.Program{}, err
	}
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(numbers) != 3 {
		return tool.Program{}, fmt.Errorf("k8s.io/kubernetes has version %q, which is not of the form v1.2.3", version)
	}
	var flags []string
	for _, set := range []struct{ name, value string }{
		{"k8s.io/component-base/version.gitVersion", version},
		{"k8s.io/component-base/version.gitMajor", numbers[0]},
		{"k8s.io/component-base/version.gitMinor", numbers[1]},
		{"k8s.io/client-go/pkg/version.gitVersion", version},
	} {
		flags = append(flags, fmt.Sprintf("-X %s=%s", set.name, set.value))
	}
	return tool.Program{
		Name:    "controlplane",
		Module:  module,
		Package: ".",
		LDFlags: strings.Join(flags, " "),
		Links:   slices.Concat(controllers, apiServerPrograms),
		Cost:    "about 12 minutes on two cores, 7 GB of disk for Go's caches and 3 GB of memory",
		Disk:    8 << 30,
	}, nil
}

// kwok plays the kubelet: it makes fake nodes ready and runs their pods without containers.
func kwok() tool.Program {
	return tool.Program{
		Name:    "kwok",
		Module:  "hack/kwok",
		Package: "sigs.k8s.io/kwok/cmd/kwok",
		Links:   []string{"kwok"},
		Cost:    "about 3 minutes on two cores, 2 GB of disk for Go's caches and 2 GB of memory",
		Disk:    3 << 30,
	}
}
