package api

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// list makes n items.
func list(n int, item func(i int) any) []any {
	items := make([]any, n)
	for i := range items {
		items[i] = item(i)
	}
	return items
}

// long makes a string of length n that is like no other of its index.
func long(i, n int) string {
	return fmt.Sprintf("A%d", i) + strings.Repeat("a", n-1-len(fmt.Sprint(i)))
}

// largestPolicy has as many of everything as fits into what etcd takes: lists are full, but for the alternatives of
// match, whose strings alone would be too many bytes.
func largestPolicy() *unstructured.Unstructured {
	limits := func(requests int64) []any {
		return []any{
			map[string]any{"requests": requests, "window": "00001h00000m00000s00000ms", "algorithm": "SlidingWindowCounter"},
			map[string]any{"requests": requests, "window": "00002h00000m00000s00000ms", "algorithm": "SlidingWindowCounter"},
			map[string]any{"requests": requests, "window": "00001h00000m00000s00000ms", "algorithm": "FixedWindow"},
			map[string]any{"requests": requests, "window": "00001h00000m00000s00000ms", "burst": requests},
		}
	}
	part := func(i int) any { return map[string]any{"header": long(i, 16)} }
	rules := list(64, func(i int) any {
		return map[string]any{
			"name": fmt.Sprintf("rule-%d", i),
			"match": list(16, func(j int) any {
				return map[string]any{
					"methods":    list(16, func(k int) any { return fmt.Sprintf("M%d", k) }),
					"route":      strings.Repeat("/{id}", 16) + "/{rest...}",
					"pathPrefix": strings.Repeat("/api", 20),
					"headers":    list(4, func(k int) any { return map[string]any{"name": long(k, 24), "value": "a"} }),
				}
			}),
			"key":    append(list(7, part), map[string]any{"firstOf": list(4, part)}),
			"limits": limits(1000),
			"overrides": list(32, func(j int) any {
				return map[string]any{
					"when":   map[string]any{"attribute": "plan", "values": list(4, func(k int) any { return long(k, 8) })},
					"limits": limits(2000),
				}
			}),
		}
	})
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ratelimit.weir.dev/v1alpha1",
		"kind":       "RateLimitPolicy",
		"metadata":   map[string]any{"name": "largest"},
		"spec": map[string]any{
			"targetRef":  map[string]any{"group": "apps", "kind": "Deployment", "name": "checkout"},
			"evaluation": "FirstMatch",
			"exempt":     list(16, func(i int) any { return map[string]any{"route": "/" + long(i, 500)} }),
			"rules":      rules,
		},
	}}
}
