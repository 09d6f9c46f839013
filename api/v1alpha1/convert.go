package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/weir-dev/weir/internal/policy"
)

// ToPolicy gives the form of a policy that is compiled. The conversion goes by JSON and takes no field that the other
// side does not have, so that the two forms cannot drift apart unseen.
func ToPolicy(p *RateLimitPolicy) (policy.Policy, error) {
	converted := policy.Policy{Metadata: policy.Metadata{
		Namespace:         p.Namespace,
		Name:              p.Name,
		UID:               string(p.UID),
		Generation:        p.Generation,
		CreationTimestamp: p.CreationTimestamp.Time,
	}}
	data, err := json.Marshal(p.Spec)
	if err != nil {
		return policy.Policy{}, fmt.Errorf("converting policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&converted.Spec); err != nil {
		return policy.Policy{}, fmt.Errorf("converting policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return converted, nil
}
