package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-dev/weir/internal/policy"
)

// settleTime is what a pod gets from becoming ready, or from a new generation, until it must report that generation.
const settleTime = 15 * time.Second

// memory is what the reconciler remembers of one workload from pass to pass. All of it may be lost with the process:
// what must not be lost is in the table and in the policies' status.
type memory struct {
	// revision is the highest that this process tried to write.
	revision policy.Revision
	// replicas is the last count, for when the table has lost it; written is when it was written.
	replicas *policy.Replicas
	written  time.Time
	// snapshotWritten is when the ConfigMap was last written.
	snapshotWritten time.Time
	// faults is how often in a row the table failed over this workload alone; repairTold, when the log last told of
	// repaired keys.
	faults     int
	repairTold time.Time
	// hadPolicies says that the workload had policies while this process led: its row must become a tombstone.
	hadPolicies bool
	ready       readyHistory
	reporting   reportHistory
	policies    map[types.UID]policyMemory
}

// policyMemory is what the reconciler remembers of one policy. The zero value is a policy never seen before.
type policyMemory struct {
	generation int64
	// seen is when this generation was first seen, and since the first revision that has it; reported says that its
	// propagation was measured, or cannot be.
	seen     time.Time
	since    policy.Revision
	reported bool
	// short is since when fewer pods than are ready run this generation; zero when enough do.
	short time.Time
	// unmatched are its rules that no request matches, as was told last.
	unmatched []string
	// statusWritten is when the status was last written.
	statusWritten time.Time
}

// memories holds the memory of every workload. A workload is reconciled by one worker at a time, which alone uses its
// memory; the map is shared.
type memories struct {
	mu         sync.Mutex
	ofWorkload map[policy.Workload]*memory
}

func (m *memories) of(w policy.Workload) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ofWorkload == nil {
		m.ofWorkload = map[policy.Workload]*memory{}
	}
	found, ok := m.ofWorkload[w]
	if !ok {
		found = &memory{policies: map[types.UID]policyMemory{}}
		m.ofWorkload[w] = found
	}
	return found
}

func (m *memories) forget(w policy.Workload) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ofWorkload, w)
}

// readyHistory is the ready counts of the last 15 s: each with the moment from which on it held.
type readyHistory []readySince

type readySince struct {
	ready int
	at    time.Time
}

// observe adds what is ready now and forgets what ended more than 15 s ago. The first observation counts as having held
// for ever: after a restart of the controller the pods are as old as they were before.
func (h readyHistory) observe(ready int, now time.Time) readyHistory {
	if len(h) == 0 {
		return readyHistory{{ready: ready}}
	}
	if h[len(h)-1].ready != ready {
		h = append(h[:len(h):len(h)], readySince{ready, now})
	}
	for len(h) > 1 && !now.Before(h[1].at.Add(settleTime)) {
		h = h[1:]
	}
	return h
}

// settled is the number of pods that may have been ready for 15 s: the lowest count of that time.
func (h readyHistory) settled() int {
	if len(h) == 0 {
		return 0
	}
	lowest := h[0].ready
	for _, r := range h[1:] {
		lowest = min(lowest, r.ready)
	}
	return lowest
}

// changes says when settled may change although nothing happens; zero when never.
func (h readyHistory) changes() time.Time {
	if len(h) < 2 {
		return time.Time{}
	}
	return h[1].at.Add(settleTime)
}

// reportHistory is since when each pod has reported; a pod that did when the table was first read, since the zero time. nil
// while the table has not been read.
type reportHistory map[string]time.Time

// observe takes the pods that report now.
func (h reportHistory) observe(members []policy.Report, now time.Time) reportHistory {
	next := make(reportHistory, len(members))
	for _, m := range members {
		since, known := h[m.Pod]
		if !known && h != nil {
			since = now
		}
		next[m.Pod] = since
	}
	return next
}

// joined is the number of pods that have not reported for 15 s yet, and when that changes; zero when it does not.
func (h reportHistory) joined(now time.Time) (count int, changes time.Time) {
	for _, since := range h {
		if ends := since.Add(settleTime); now.Before(ends) {
			count++
			if changes.IsZero() || ends.Before(changes) {
				changes = ends
			}
		}
	}
	return count, changes
}
