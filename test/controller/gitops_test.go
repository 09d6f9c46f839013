package controller

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// Ten syncs of a policy that the controller looks after change nothing and find no difference, by server-side apply and by
// the three-way merge of what was applied last, what is desired and what is there (B55).
func TestTenSyncsFindNoDifference(t *testing.T) {
	i, redis, w := setting(t)
	i.start(redis.Addr, "--resync=1s")
	w.deploy(1)
	w.enforce("checkout-a")
	for name, flags := range map[string][]string{"server": {"--server-side", "--field-manager=gitops"}, "client": nil} {
		text, err := os.ReadFile(filepath.Join(root, "config", "samples", "checkout.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		manifest := strings.NewReplacer("namespace: shop", "namespace: "+w.Namespace, "metadata: {name: checkout", "metadata: {name: "+name).Replace(string(text))
		var desired unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(manifest), &desired.Object); err != nil {
			t.Fatal(err)
		}
		desired.SetName(name)
		desired.SetNamespace(w.Namespace)
		body, err := json.Marshal(desired.Object)
		if err != nil {
			t.Fatal(err)
		}
		apply := func() { kubectl(t, i.cluster, string(body), append([]string{"apply", "-f", "-"}, flags...)...) }
		apply()
		w.waitCondition(name, v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
		first := w.live(name)
		for range 10 {
			live := w.live(name)
			// What is not in the manifest is another writer's.
			patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(body, body, live)
			if err != nil || string(patch) != "{}" {
				t.Fatalf("%s: the difference is %s (%v)", name, patch, err)
			}
			apply()
		}
		if last := w.live(name); versionOf(t, last) != versionOf(t, first) {
			t.Errorf("%s: ten syncs changed the policy\n%s\n%s", name, first, last)
		}
		w.onlyStatusIsOurs(name)
	}
}

func (w *workload) live(name string) []byte {
	w.t.Helper()
	live := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "ratelimit.weir.dev/v1alpha1", "kind": "RateLimitPolicy"}}
	if err := w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: name}, live); err != nil {
		w.t.Fatal(err)
	}
	body, err := live.MarshalJSON()
	if err != nil {
		w.t.Fatal(err)
	}
	return body
}

func versionOf(t *testing.T, body []byte) string {
	t.Helper()
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &object); err != nil {
		t.Fatal(err)
	}
	return object.ResourceVersion
}

// onlyStatusIsOurs reads from managedFields what the controller ever wrote.
func (w *workload) onlyStatusIsOurs(name string) {
	w.t.Helper()
	ours := 0
	for _, entry := range w.policy(name).ManagedFields {
		if entry.Manager != "weir-controller-manager" && entry.Manager != "manager" {
			continue
		}
		ours++
		var fields map[string]any
		if err := json.Unmarshal(entry.FieldsV1.Raw, &fields); err != nil {
			w.t.Fatal(err)
		}
		if _, status := fields["f:status"]; entry.Subresource != "status" || !status || len(fields) != 1 {
			w.t.Errorf("%s: the controller wrote %s of %q", name, entry.FieldsV1.Raw, entry.Subresource)
		}
	}
	if ours != 1 {
		w.t.Errorf("%s: %d entries are the controller's: %v", name, ours, w.policy(name).ManagedFields)
	}
}
