package v1alpha1

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/internal/policy"
)

// fill sets every field of a value, to the given depth of nesting of one type in itself, so that none is left out of
// its JSON form.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth)
		}
	case reflect.Slice:
		if v.Type().Elem() == reflect.TypeFor[policy.KeyPart]() {
			if depth == 0 {
				return
			}
			depth--
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth)
	case reflect.String:
		v.SetString("x")
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic("no value for " + v.Type().String())
	}
}

// same decodes the JSON form of from strictly into to and demands that to has the same JSON form.
func same(t *testing.T, from, to any) {
	t.Helper()
	want, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	strict := json.NewDecoder(bytes.NewReader(want))
	strict.DisallowUnknownFields()
	if err := strict.Decode(to); err != nil {
		t.Fatalf("decoding %s: %v", want, err)
	}
	got, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(canonical(t, want), canonical(t, got)); diff != "" {
		t.Errorf("a field was lost (-want +got):\n%s", diff)
	}
}

func canonical(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestEveryFieldOfTheSpecConverts(t *testing.T) {
	t.Run("from the resource", func(t *testing.T) {
		var spec RateLimitPolicySpec
		fill(reflect.ValueOf(&spec).Elem(), 0)
		same(t, spec, new(policy.Spec))
	})
	t.Run("to the resource", func(t *testing.T) {
		var spec policy.Spec
		fill(reflect.ValueOf(&spec).Elem(), 2) // a key and its firstOf
		same(t, spec, new(RateLimitPolicySpec))
	})
}

func TestToPolicy(t *testing.T) {
	created := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
	got, err := ToPolicy(&RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "checkout", UID: "6f1", Generation: 3, CreationTimestamp: metav1.NewTime(created),
			Labels: map[string]string{"team": "shop"},
		},
		Spec: RateLimitPolicySpec{
			TargetRef: TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules: []Rule{{
				Name:   "all",
				Key:    []KeyPart{{ClientIP: &ClientIP{}}},
				Limits: []Limit{{Requests: new(int64), Window: "60s"}},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Policy{
		Metadata: policy.Metadata{Namespace: "shop", Name: "checkout", UID: "6f1", Generation: 3, CreationTimestamp: created},
		Spec: policy.Spec{
			TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"},
			Rules: []policy.Rule{{
				Name:   "all",
				Key:    []policy.KeyPart{{ClientIP: &policy.ClientIP{}}},
				Limits: []policy.Limit{{Requests: new(int64), Window: "60s"}},
			}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ToPolicy (-want +got):\n%s", diff)
	}
}
