package policy

import (
	"fmt"
	"strings"
)

// Workload names what policies are attached to and what one row of the table belongs to.
type Workload struct {
	Namespace string
	Group     string
	Kind      string
	Name      string
}

// String gives the form that keys of the table use: {namespace}/{group}/{kind}/{name}, for example
// "shop/apps/Deployment/checkout". The parts are DNS names and kinds, so it is safe inside the braces of a Redis key.
func (w Workload) String() string {
	return w.Namespace + "/" + w.Group + "/" + w.Kind + "/" + w.Name
}

// ParseWorkload reads the form that String gives. The short form "namespace/name" means a Deployment.
func ParseWorkload(s string) (Workload, error) {
	parts := strings.Split(s, "/")
	var w Workload
	switch len(parts) {
	case 2:
		w = Workload{Namespace: parts[0], Group: "apps", Kind: "Deployment", Name: parts[1]}
	case 4:
		w = Workload{Namespace: parts[0], Group: parts[1], Kind: parts[2], Name: parts[3]}
	default:
		return Workload{}, fmt.Errorf("workload %q: want namespace/group/kind/name or namespace/name", s)
	}
	if w.Namespace == "" || w.Kind == "" || w.Name == "" {
		return Workload{}, fmt.Errorf("workload %q: namespace, kind and name must not be empty", s)
	}
	return w, nil
}
