// Package packaging tests what is handed to other people's tools: the kustomize tree, the chart, the rules for Prometheus,
// the dashboard, and how GitOps tools read a status. It is a module of its own, so that nobody who imports Weir depends on
// Helm, Prometheus or a Lua interpreter.
package packaging

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	root      = "../.."
	namespace = "weir-system"
)

type object = map[string]any

// kustomize renders config/default with the lines of an overlay, in which CONFIG stands for the folder config. Other
// folders of the overlay have a kustomization each.
func kustomize(t *testing.T, overlay string, folders map[string]string) []*unstructured.Unstructured {
	t.Helper()
	dir := t.TempDir()
	config, err := filepath.Abs(filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	if folders == nil {
		folders = map[string]string{}
	}
	folders["."] = overlay
	for folder, text := range folders {
		at := filepath.Join(dir, folder)
		relative, err := filepath.Rel(at, config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "CONFIG", relative)
		if err := os.WriteFile(filepath.Join(at, "kustomization.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return documents(t, runIn(t, root, "go", "tool", "-modfile=go.tool.mod", "kustomize", "build", dir))
}

// chart renders the chart as `helm template` does, which checks the values first.
func chart(values object) (string, error) {
	loaded, err := loader.Load(filepath.Join(root, "charts", "weir"))
	if err != nil {
		return "", err
	}
	install := action.NewInstall(action.NewConfiguration())
	install.ReleaseName, install.Namespace = "weir", namespace
	install.DryRunStrategy = action.DryRunClient
	if install.KubeVersion, err = common.ParseKubeVersion("v1.37.2"); err != nil {
		return "", err
	}
	rendered, err := install.RunWithContext(context.Background(), loaded, values)
	if err != nil {
		return "", err
	}
	return rendered.(*release.Release).Manifest, nil
}

func mustChart(t *testing.T, values object) []*unstructured.Unstructured {
	t.Helper()
	text, err := chart(values)
	if err != nil {
		t.Fatal(err)
	}
	return documents(t, text)
}

// documents are the objects of a manifest.
func documents(t *testing.T, manifest string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(manifest, -1) {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(o) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: o})
		}
	}
	return objects
}

func runIn(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = dir
	var out, problem bytes.Buffer
	command.Stdout, command.Stderr = &out, &problem
	if err := command.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, problem.String())
	}
	return out.String()
}

// find is the only object of a kind and, if one is given, of a name.
func find(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == kind && (name == "" || o.GetName() == name)
	})
	if i < 0 {
		t.Fatalf("no %s %s", kind, name)
	}
	return objects[i]
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
