// Package gitops renders the overlays of this folder as Argo CD and Flux do.
package gitops

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// render returns the policy and the number of replicas of an overlay.
func render(t *testing.T, overlay string) (policy.Policy, int64) {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("overlays", overlay))
	if err != nil {
		t.Fatal(err)
	}
	var p policy.Policy
	replicas := int64(-1)
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		switch r.GetKind() {
		case "RateLimitPolicy":
			if err := yaml.UnmarshalStrict(text, new(v1alpha1.RateLimitPolicy)); err != nil {
				t.Error(err)
			}
			if err := yaml.Unmarshal(text, &p); err != nil {
				t.Error(err)
			}
		case "Deployment":
			var d struct {
				Spec struct {
					Replicas int64 `json:"replicas"`
				} `json:"spec"`
			}
			if err := yaml.Unmarshal(text, &d); err != nil {
				t.Error(err)
			}
			replicas = d.Spec.Replicas
		}
	}
	for _, problem := range policy.Validate(p) {
		t.Error(problem)
	}
	return p, replicas
}

func TestOverlays(t *testing.T) {
	staging, replicas := render(t, "staging")
	if staging.Metadata.Namespace != "shop-staging" || staging.Spec.Mode != policy.ModeShadow || replicas != 1 {
		t.Errorf("staging: namespace %s, mode %q, %d replicas", staging.Metadata.Namespace, staging.Spec.Mode, replicas)
	}
	production, replicas := render(t, "production")
	if production.Metadata.Namespace != "shop" || production.Spec.Mode == policy.ModeShadow || replicas != 6 {
		t.Errorf("production: namespace %s, mode %q, %d replicas", production.Metadata.Namespace, production.Spec.Mode, replicas)
	}
	rule := production.Spec.Rules[0]
	if *rule.Limits[0].Requests != 20 || rule.OnStoreFailure != policy.OnStoreFailureFailClosed {
		t.Errorf("production: rule %+v, want 20 requests and FailClosed", rule)
	}
	if *staging.Spec.Rules[0].Limits[0].Requests != 5 {
		t.Errorf("staging has %d requests, want those of the base", *staging.Spec.Rules[0].Limits[0].Requests)
	}
}

// What points at the overlays points at something.
func TestSources(t *testing.T) {
	for file, path := range map[string][]string{
		"argocd/application.yaml": {"spec", "source", "path"}, "flux/kustomization.yaml": {"spec", "path"},
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var at any
		if err := yaml.Unmarshal(data, &at); err != nil {
			t.Fatal(err)
		}
		for _, name := range path {
			at = at.(map[string]any)[name]
		}
		if _, err := os.Stat(filepath.Join(at.(string), "kustomization.yaml")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
