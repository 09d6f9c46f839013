package manifest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// The resource as files name it; api/v1alpha1 declares it for the API server.
const (
	PolicyGroup      = "ratelimit.weir.dev"
	PolicyAPIVersion = PolicyGroup + "/v1alpha1"
	PolicyKind       = "RateLimitPolicy"
)

// DefaultNamespace is the namespace of a policy whose file names none, as it is kubectl's.
const DefaultNamespace = "default"

// Policy is a policy that was read from a file, and where it stands there.
type Policy struct {
	policy.Policy
	File string
	// Source is where the object stands.
	Source Node
}

// Fault returns a defect of the policy at a path such as "spec.rules[0]", without noting it.
func (p Policy) Fault(path, format string, args ...any) Fault {
	return Fault{
		File:    p.File,
		Line:    p.Source.Find(path).Line(),
		Path:    join(p.Source.path, path),
		Message: fmt.Sprintf(format, args...),
	}
}

// Policies reads the policies of a file and passes over objects of other kinds. What is wrong with one, by its shape or
// by policy.Validate, becomes a fault of the file.
func (f *File) Policies(namespace string) []Policy {
	var policies []Policy
	for _, document := range f.Documents {
		policies = append(policies, document.policies(namespace)...)
	}
	return policies
}

func (n Node) policies(namespace string) []Policy {
	if kind := n.Text("kind"); kind == "List" || kind == PolicyKind+"List" {
		var policies []Policy
		if items, ok := n.Get("items"); ok {
			for item := range items.Items() {
				policies = append(policies, item.policies(namespace)...)
			}
		}
		return policies
	}
	if !n.IsObject() {
		return nil
	}
	if group, _, _ := strings.Cut(n.Text("apiVersion"), "/"); group != PolicyGroup {
		return nil
	}
	if p, ok := n.Policy(namespace); ok {
		return []Policy{p}
	}
	return nil
}

// IsObject says whether the value is a Kubernetes object of any kind, and notes a fault if it is not.
func (n Node) IsObject() bool {
	if !n.IsMapping() {
		n.Fault("must be an object with apiVersion and kind, not %s", describe(n.resolved()))
		return false
	}
	good := true
	for _, name := range []string{"apiVersion", "kind"} {
		if n.Text(name) == "" {
			n.FaultAt(name, "Required value")
			good = false
		}
	}
	return good
}

// object is the resource as it stands in a file.
type object struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   metadata    `json:"metadata"`
	Spec       policy.Spec `json:"spec"`
	Status     Ignored     `json:"status"`
}

// metadata is what the API server takes as metadata.
type metadata struct {
	Name              string    `json:"name"`
	Namespace         string    `json:"namespace"`
	UID               string    `json:"uid"`
	Generation        int64     `json:"generation"`
	CreationTimestamp timestamp `json:"creationTimestamp"`

	Annotations                Ignored `json:"annotations"`
	DeletionGracePeriodSeconds Ignored `json:"deletionGracePeriodSeconds"`
	DeletionTimestamp          Ignored `json:"deletionTimestamp"`
	Finalizers                 Ignored `json:"finalizers"`
	GenerateName               Ignored `json:"generateName"`
	Labels                     Ignored `json:"labels"`
	ManagedFields              Ignored `json:"managedFields"`
	OwnerReferences            Ignored `json:"ownerReferences"`
	ResourceVersion            Ignored `json:"resourceVersion"`
	SelfLink                   Ignored `json:"selfLink"`
}

// timestamp is a time that generators write as null.
type timestamp struct{ time.Time }

// ReadManifest reads a time.
func (t *timestamp) ReadManifest(n Node) { n.decodeTime(&t.Time) }

// Policy reads a RateLimitPolicy, one without a namespace as one of the namespace given. It is not ok when something is
// wrong with it.
func (n Node) Policy(namespace string) (Policy, bool) {
	before, told := n.state.noted, len(n.state.faults)
	var o object
	n.Decode(&o)
	if o.Metadata.Namespace == "" {
		o.Metadata.Namespace = namespace
	}
	p := policy.Policy{
		Metadata: policy.Metadata{
			Namespace:         o.Metadata.Namespace,
			Name:              o.Metadata.Name,
			UID:               o.Metadata.UID,
			Generation:        o.Metadata.Generation,
			CreationTimestamp: o.Metadata.CreationTimestamp.Time,
		},
		Spec: o.Spec,
	}
	var faults []policy.FieldError
	switch {
	case o.APIVersion != PolicyAPIVersion:
		faults = []policy.FieldError{{Path: "apiVersion", Message: "Unsupported value: this version reads " + PolicyAPIVersion}}
	case o.Kind != PolicyKind:
		faults = []policy.FieldError{{Path: "kind", Message: "Unsupported value: " + PolicyGroup + " has the kind " + PolicyKind}}
	default:
		faults = policy.Validate(p)
	}
	noted := n.state.faults[told:]
	for _, fault := range faults {
		if path := join(n.path, fault.Path); !explained(noted, path) && !slices.Contains(n.state.meant, path) {
			n.FaultAt(fault.Path, fault.Message)
		}
	}
	return Policy{Policy: p, File: n.state.file, Source: n}, n.state.noted == before
}

// explained says whether a defect follows from one that is noted: of a value that could not be read, nothing else is
// said, nor of what holds it.
func explained(noted Faults, path string) bool {
	for _, fault := range noted {
		if within(path, fault.Path) || within(fault.Path, path) {
			return true
		}
	}
	return false
}

func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
