package scenario

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

// Controller tells the statuses that the controller would write for one workload. controllers.Preview is one.
type Controller interface {
	// Observe is one pass: published is what the table holds, nil when it cannot be read. It returns the statuses in
	// JSON, by the policies' names.
	Observe(
		policies []policy.Policy, deployment policy.DeploymentStatus, published *policy.Published, now time.Time,
	) (map[string][]byte, error)
}

// looksAtStatus says whether a step does.
func (s *Scenario) looksAtStatus() bool {
	for _, step := range s.Steps {
		if step.Expect != nil && step.Expect.Status != nil {
			return true
		}
	}
	return false
}

// observe lets the controller see what there is now.
func (c *cluster) observe() error {
	if c.controller == nil {
		return nil
	}
	var published *policy.Published
	if c.all.refuses() == nil {
		published = &policy.Published{
			Row: c.table.row, Replicas: c.replicas, Epoch: "1", Members: c.table.reports(), MembersVersion: c.table.version,
		}
	}
	statuses, err := c.controller.Observe(c.policies, c.deployment(), published, time.UnixMicro(c.world.now).UTC())
	if err != nil {
		return fmt.Errorf("telling the statuses: %w", err)
	}
	c.statuses = statuses
	return nil
}

// status is the part of a status that a scenario can look at.
type status struct {
	Conditions []struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"conditions"`
	ObservedGeneration int64 `json:"observedGeneration"`
	Replicas           struct {
		Counted     int64 `json:"counted"`
		Ready       int64 `json:"ready"`
		Desired     int64 `json:"desired"`
		Terminating int64 `json:"terminating"`
	} `json:"replicas"`
	Enforcers struct {
		Reporting int64  `json:"reporting"`
		Current   int64  `json:"current"`
		Summary   string `json:"summary"`
	} `json:"enforcers"`
}

func (r *run) lookAtStatus(j *judge, e *StatusFields) error {
	const path = "expect.status"
	if err := r.cluster.observe(); err != nil {
		return err
	}
	name := e.Policy
	if name == "" && len(r.cluster.policies) > 0 {
		name = r.cluster.policies[0].Metadata.Name
	}
	data, ok := r.cluster.statuses[name]
	if !ok {
		j.fail(path, "a status of "+name, "none")
		return nil
	}
	var got status
	if err := json.Unmarshal(data, &got); err != nil {
		return fmt.Errorf("reading the status of %s: %w", name, err)
	}
	same(j, path+".observedGeneration", e.ObservedGeneration, got.ObservedGeneration)
	if w := e.Replicas; w != nil {
		same(j, path+".replicas.counted", w.Counted, got.Replicas.Counted)
		same(j, path+".replicas.ready", w.Ready, got.Replicas.Ready)
		same(j, path+".replicas.desired", w.Desired, got.Replicas.Desired)
		same(j, path+".replicas.terminating", w.Terminating, got.Replicas.Terminating)
	}
	if w := e.Enforcers; w != nil {
		same(j, path+".enforcers.reporting", w.Reporting, got.Enforcers.Reporting)
		same(j, path+".enforcers.current", w.Current, got.Enforcers.Current)
		same(j, path+".enforcers.summary", w.Summary, got.Enforcers.Summary)
	}
	for i, w := range e.Conditions {
		j.condition(fmt.Sprintf("%s.conditions[%d]", path, i), w, got)
	}
	return nil
}

func (j *judge) condition(path string, e ConditionFields, s status) {
	for _, got := range s.Conditions {
		if got.Type != e.Type {
			continue
		}
		if e.Status != "" && string(e.Status) != got.Status {
			j.fail(path+".status", string(e.Status), fmt.Sprintf("%s (%s: %s)", got.Status, got.Reason, got.Message))
		}
		if e.Reason != "" && e.Reason != got.Reason {
			j.fail(path+".reason", e.Reason, fmt.Sprintf("%s (%s)", got.Reason, got.Message))
		}
		if !strings.Contains(got.Message, e.Message) {
			j.fail(path+".message", e.Message, got.Message)
		}
		return
	}
	if e.Status != ConditionAbsent {
		j.fail(path, "the condition "+e.Type, "none")
	}
}
