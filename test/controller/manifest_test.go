package controller

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// What `kubectl apply -k` sends is admitted, its pods keep to the restricted profile, and the manager understands the
// arguments: with every component and with none.
func TestTheRenderedInstallationIsAdmitted(t *testing.T) {
	c := kube.APIServer(t)
	cases := map[string]string{
		"alone":               "",
		"with all components": "components: [CONFIG/components/redis-password, CONFIG/components/redis-tls, CONFIG/components/network-policy, CONFIG/components/snapshot]",
		"without Redis":       "components: [CONFIG/components/no-redis, CONFIG/components/snapshot]",
		"in some namespaces":  "components: [CONFIG/components/namespaced]",
		"and with snapshots":  "components: [CONFIG/components/snapshot, CONFIG/components/namespaced]",
	}
	for name, components := range cases {
		t.Run(name, func(t *testing.T) {
			manifest := render(t, c, "resources: [CONFIG/default]", components)
			kubectl(t, c, manifest, "apply", "--server-side", "-f", "-")
			d := deploymentIn(t, manifest)

			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, GenerateName: "manager-"},
				Spec:       d.Spec.Template.Spec,
			}
			if err := administrator(t, c).Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Errorf("a pod of the Deployment is not admitted: %v", err)
			}

			expand := strings.NewReplacer("$(REDIS_ADDRESS)", "redis:6379", "$(TABLE)", "default", "$(REDIS_USERNAME)", "weir", "$(NAMESPACES)", "shop")
			var args []string
			for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
				args = append(args, expand.Replace(arg))
			}
			// Of all that is validated the resync comes last: who complains about it has no other complaint.
			args = append(args, "--leader-election-namespace="+d.Namespace, "--resync=1ms")
			out, err := exec.Command(env.Build(t, "cmd/manager", buildFlags...), args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || string(out) != "manager: --resync: want at least 1s, got 1ms\n" {
				t.Errorf("the manager says of %q: %v, %s", args, err, out)
			}
		})
	}
}

func deploymentIn(t *testing.T, manifest string) appsv1.Deployment {
	t.Helper()
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind == "Deployment" {
			return d
		}
	}
	t.Fatal("there is no Deployment")
	return appsv1.Deployment{}
}
