package controllers

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// Preview tells what the controller would write into the statuses of one workload's policies, without a cluster. It
// has to see the workload whenever something changes, as the controller does. Not safe for concurrent use.
type Preview struct {
	workload policy.Workload
	owner    string
	memory   *memory
	statuses map[types.UID]v1alpha1.RateLimitPolicyStatus
	// down is since when the table cannot be read; zero while it can.
	down time.Time
}

// NewPreview returns the preview of a controller, of the installation owner, that has seen nothing yet.
func NewPreview(w policy.Workload, owner string) *Preview {
	return &Preview{
		workload: w,
		owner:    owner,
		memory:   &memory{policies: map[types.UID]policyMemory{}},
		statuses: map[types.UID]v1alpha1.RateLimitPolicyStatus{},
	}
}

// Observe is one pass: published is what the table holds, nil when it cannot be read. It returns the statuses in JSON,
// by the policies' names.
func (p *Preview) Observe(
	policies []policy.Policy, deployment policy.DeploymentStatus, published *policy.Published, now time.Time,
) (map[string][]byte, error) {
	in := &input{now: now, workload: p.workload, deployment: deployment, memory: p.memory}
	var err error
	if in.table, err = p.view(published, now); err != nil {
		return nil, err
	}
	for i := range policies {
		object, err := p.object(&policies[i])
		if err != nil {
			return nil, err
		}
		in.policies = append(in.policies, object)
	}
	d := decide(in, p.owner)
	if d.replicas != nil {
		p.memory.replicas = d.replicas
	}
	p.memory.ready = p.memory.ready.observe(int(deployment.Ready), now)
	statuses := make(map[string][]byte, len(policies))
	said := heard(in)
	for i := range in.policies {
		object := &in.policies[i]
		f, remembered := observe(in, d, object, p.memory.policies[object.UID], said)
		p.memory.policies[object.UID] = remembered
		p.statuses[object.UID] = statusOf(f)
		if statuses[object.Name], err = json.Marshal(p.statuses[object.UID]); err != nil {
			return nil, fmt.Errorf("encoding the status of %s: %w", object.Name, err)
		}
	}
	return statuses, nil
}

func (p *Preview) view(published *policy.Published, now time.Time) (tableView, error) {
	if published == nil {
		if p.down.IsZero() {
			p.down = now
		}
		return tableView{state: tableUnreachable, outage: now.Sub(p.down)}, nil
	}
	p.down = time.Time{}
	view := tableView{state: tableOurs, published: *published}
	if published.Row != nil {
		row, _, err := policy.DecodeRow(published.Row)
		if err != nil {
			return tableView{}, err
		}
		view.row = &row
	}
	return view, nil
}

// object is the policy as the API server would hold it, with the status that was written last.
func (p *Preview) object(from *policy.Policy) (v1alpha1.RateLimitPolicy, error) {
	object := v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace:         from.Metadata.Namespace,
		Name:              from.Metadata.Name,
		UID:               types.UID(from.Metadata.UID),
		Generation:        from.Metadata.Generation,
		CreationTimestamp: metav1.NewTime(from.Metadata.CreationTimestamp),
	}}
	data, err := json.Marshal(from.Spec)
	if err == nil {
		err = json.Unmarshal(data, &object.Spec)
	}
	if err != nil {
		return v1alpha1.RateLimitPolicy{}, fmt.Errorf("converting policy %s: %w", from.Metadata.Name, err)
	}
	object.Status = p.statuses[object.UID]
	return object, nil
}
