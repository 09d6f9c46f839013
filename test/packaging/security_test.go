package packaging

import (
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Every pod that we render keeps to the restricted profile of Pod Security.
func TestPodsKeepToTheRestrictedProfile(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	everything := object{
		"redis": object{
			"existingSecret": "redis", "tls": object{"enabled": true, "clientCertificate": true},
			"sentinel": object{"master": "main", "existingSecret": "sentinel"},
		},
		"metrics": object{"existingSecret": "metrics"},
	}
	cases := map[string][]*unstructured.Unstructured{
		"config/default": kustomize(t, "resources: [CONFIG/default]", nil),
		"config/default with components": kustomize(t, `
resources: [CONFIG/default]
components: [CONFIG/components/redis-password, CONFIG/components/redis-tls]`, nil),
		"config/samples":        documents(t, readFile(t, filepath.Join("config", "samples", "00-shop.yaml"))),
		"the chart":             mustChart(t, nil),
		"the chart, everything": mustChart(t, everything),
	}
	for name, objects := range cases {
		t.Run(name, func(t *testing.T) {
			var d appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(find(t, objects, "Deployment", "").Object, &d); err != nil {
				t.Fatal(err)
			}
			restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
			for _, result := range evaluator.EvaluatePod(restricted, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec) {
				if !result.Allowed {
					t.Errorf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
				}
			}
		})
	}
}
