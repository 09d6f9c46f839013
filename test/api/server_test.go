package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/kube"
)

var (
	crdResource       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	policyResource    = schema.GroupVersionResource{Group: "ratelimit.weir.dev", Version: "v1alpha1", Resource: "ratelimitpolicies"}
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

var install struct {
	once sync.Once
	err  error
}

// server returns a client of an API server that knows the resource, and a namespace of the test's own.
func server(t *testing.T) (client dynamic.Interface, namespace string) {
	t.Helper()
	config := kube.APIServer(t).RESTConfig()
	config.QPS, config.Burst = 1000, 1000
	config.WarningHandler = rest.NoWarnings{} // fields that the server drops are part of some samples
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	install.once.Do(func() { install.err = installCRD(t.Context(), client, readObjects(t, crdFile)[0]) })
	if install.err != nil {
		t.Fatalf("installing the CRD: %v", install.err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"generateName": "test-"},
	}}
	created, err := client.Resource(namespaceResource).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return client, created.GetName()
}

func installCRD(ctx context.Context, client dynamic.Interface, crd *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := client.Resource(crdResource).Create(ctx, crd, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		return err
	}
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		installed, err := client.Resource(crdResource).Get(ctx, crd.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		conditions := conditionsOf(installed)
		if conditions["NonStructuralSchema"] == "True" {
			return false, errors.New("the schema is not structural")
		}
		return conditions["Established"] == "True", nil
	})
	if err != nil {
		return err
	}
	// An established CRD is served a moment later.
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.Resource(policyResource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func conditionsOf(object *unstructured.Unstructured) map[string]string {
	conditions := make(map[string]string)
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, item := range list {
		c, _ := item.(map[string]any)
		conditions[fmt.Sprint(c["type"])] = fmt.Sprint(c["status"])
	}
	return conditions
}

// refusals are the causes of an API server's refusal, in the form that Compile gives. An error without causes is no
// refusal of the policy.
func refusals(t *testing.T, err error) []policy.FieldError {
	t.Helper()
	var status *apierrors.StatusError
	if err == nil {
		return nil
	}
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.ErrStatus.Details == nil {
		t.Fatalf("the API server fails: %v", err)
	}
	var found []policy.FieldError
	for _, cause := range status.ErrStatus.Details.Causes {
		if cause.Field == "<nil>" { // "some validation rules were not checked": about no field
			continue
		}
		found = append(found, policy.FieldError{Path: cause.Field, Message: cause.Message})
	}
	return found
}

// try creates a policy without keeping it.
func try(t *testing.T, client dynamic.Interface, namespace string, object *unstructured.Unstructured) []policy.FieldError {
	t.Helper()
	object = object.DeepCopy()
	object.SetNamespace(namespace)
	_, err := client.Resource(policyResource).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return refusals(t, err)
}

func TestServerRefusesInvalidSamples(t *testing.T) {
	client, namespace := server(t)
	for _, s := range invalidSamples(t) {
		t.Run(s.name, func(t *testing.T) {
			s.refusedFor(t, try(t, client, namespace, s.object))
		})
	}
}

// What users wrote stays as they wrote it: a GitOps tool that compares finds no difference.
func TestServerKeepsSamplesByteForByte(t *testing.T) {
	client, namespace := server(t)
	for _, s := range validSamples(t) {
		t.Run(s.name, func(t *testing.T) {
			want := s.object.DeepCopy()
			want.SetNamespace(namespace)
			policies := client.Resource(policyResource).Namespace(namespace)
			strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
			if _, err := policies.Create(t.Context(), want, strict); err != nil {
				t.Fatal(err)
			}
			got, err := policies.Get(t.Context(), want.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(specJSON(t, want), specJSON(t, got)); diff != "" {
				t.Errorf("the spec changed (-sent +read):\n%s", diff)
			}
			if generation, _, _ := unstructured.NestedInt64(got.Object, "status", "observedGeneration"); generation != -1 {
				t.Errorf("status.observedGeneration of a new policy is %d, want -1", generation)
			}
		})
	}
}

// Spellings of a window stay, and applying the same file again changes nothing.
func TestB55SpellingsStay(t *testing.T) {
	client, namespace := server(t)
	var rules []any
	for i, window := range []string{"60s", "1m", "1m0s", "90s"} {
		rules = append(rules, map[string]any{
			"name": fmt.Sprintf("rule-%d", i), "limits": []any{limitWith(map[string]any{"window": window})},
		})
	}
	object := policyWith(nil)
	object.SetNamespace(namespace)
	if err := unstructured.SetNestedSlice(object.Object, rules, "spec", "rules"); err != nil {
		t.Fatal(err)
	}
	policies := client.Resource(policyResource).Namespace(namespace)
	apply := func() *unstructured.Unstructured {
		applied, err := policies.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return applied
	}
	first := apply()
	if diff := cmp.Diff(specJSON(t, object), specJSON(t, first)); diff != "" {
		t.Errorf("the spec changed (-sent +read):\n%s", diff)
	}
	second := apply() // may store the default of status, which a create drops
	if second.GetGeneration() != first.GetGeneration() {
		t.Errorf("applying the same again made generation %d of %d", second.GetGeneration(), first.GetGeneration())
	}
	if third := apply(); third.GetResourceVersion() != second.GetResourceVersion() {
		t.Errorf("applying the same again wrote version %s after %s", third.GetResourceVersion(), second.GetResourceVersion())
	}
}

func specJSON(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	data, err := json.MarshalIndent(object.Object["spec"], "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The largest policy that the bounds allow must not run out of the budget that the API server has for validating it.
func TestServerValidatesTheLargestPolicy(t *testing.T) {
	client, namespace := server(t)
	largest := largestPolicy()
	data, err := json.Marshal(largest.Object)
	if err != nil {
		t.Fatal(err)
	}
	if errors := try(t, client, namespace, largest); len(errors) > 0 {
		t.Errorf("a policy of %d bytes: %v", len(data), errors)
	}
}

func TestColumns(t *testing.T) {
	client, namespace := server(t)
	object := validSamples(t)[0].object
	object.SetNamespace(namespace)
	if _, err := client.Resource(policyResource).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := `{"status":{"observedGeneration":1,"revision":"48213.7","replicas":{"counted":3},"enforcers":{"summary":"3/3"},
		"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"3 of 3 pods enforce it","lastTransitionTime":"2026-11-01T10:00:00Z"}]}}`
	if _, err := client.Resource(policyResource).Namespace(namespace).Patch(t.Context(), object.GetName(), "application/merge-patch+json", []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	config := kube.APIServer(t).RESTConfig()
	config.GroupVersion = &schema.GroupVersion{Group: policyResource.Group, Version: policyResource.Version}
	config.APIPath = "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	rest, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	data, err := rest.Get().Namespace(namespace).Resource(policyResource.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]any)
	for i, column := range table.ColumnDefinitions {
		name := column.Name
		if column.Priority > 0 {
			name += " (wide)"
		}
		got[name] = table.Rows[0].Cells[i]
	}
	delete(got, "Age")
	want := map[string]any{
		"Name": "checkout", "Target": "checkout", "Replicas": float64(3), "Enforced": "3/3", "Ready": "True",
		"Revision (wide)": "48213.7", "Message (wide)": "3 of 3 pods enforce it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
