// Package scale measures the built controller against a real API server and a real Redis with many policies:
//
//	make scale                10,000 policies of 1,000 Deployments in 20 namespaces; writes results.json
//	go test ./test/scale      the same steps with 200 policies, as a test
//
// The Deployments' status is written by the test: there are no pods, and 1,000 members of one workload are goroutines that
// read and report as the library does.
package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// sizes of a run. Each Deployment has ten policies.
type sizes struct {
	Policies    int `json:"policies"`
	Deployments int `json:"deployments"`
	Namespaces  int `json:"namespaces"`
	Members     int `json:"members"`
	Restarted   int `json:"restarted"`
	IdleSeconds int `json:"idleSeconds"`
}

const policiesPerDeployment = 10

// phase is one row of the results. What is counted, is counted over the phase.
type phase struct {
	Name          string  `json:"name"`
	Seconds       float64 `json:"seconds"`
	APICalls      float64 `json:"apiCalls"`
	APIWrites     float64 `json:"apiWrites"`
	RowWrites     float64 `json:"rowWrites"`
	RedisCommands float64 `json:"redisCommands"`
	CPUSeconds    float64 `json:"cpuSeconds"`
	HeapMiB       float64 `json:"heapMiB"`
	PeakRSSMiB    float64 `json:"peakRSSMiB"`
}

// results are what results.json holds.
type results struct {
	Date   string  `json:"date"`
	Cores  int     `json:"cores"`
	Go     string  `json:"go"`
	Sizes  sizes   `json:"sizes"`
	Phases []phase `json:"phases"`
}

// What issue and README promise of the full size.
const (
	maxColdStart = 30 * time.Second
	maxEdit      = 2 * time.Second
	maxRSSMiB    = 300
)

func TestScale(t *testing.T) {
	size := sizes{Policies: 200, Namespaces: 2, Members: 20, Restarted: 5, IdleSeconds: 5}
	full := false
	if n := os.Getenv("WEIR_SCALE"); n != "" {
		policies, err := strconv.Atoi(n)
		if err != nil || policies < policiesPerDeployment {
			t.Fatalf("WEIR_SCALE=%s: want a number of policies", n)
		}
		size = sizes{Policies: policies, Namespaces: 20, Members: 1000, Restarted: 100, IdleSeconds: 60}
		full = true
	}
	size.Deployments = size.Policies / policiesPerDeployment
	size.Restarted = min(size.Restarted, size.Deployments-1)
	w := newWorld(t, size)
	out := results{Date: time.Now().UTC().Format(time.DateOnly), Cores: runtime.NumCPU(), Go: runtime.Version(), Sizes: size}
	measure := func(name string, limit time.Duration, step func()) phase {
		t.Helper()
		before := w.counters()
		began := time.Now()
		step()
		p := w.counters().since(before, time.Since(began))
		p.Name = name
		out.Phases = append(out.Phases, p)
		t.Logf("%-46s %7.2f s %6.0f API calls %6.0f writes %6.0f rows %7.0f Redis commands %6.1f s CPU %5.0f MiB heap %5.0f MiB peak",
			p.Name, p.Seconds, p.APICalls, p.APIWrites, p.RowWrites, p.RedisCommands, p.CPUSeconds, p.HeapMiB, p.PeakRSSMiB)
		if full && limit > 0 && p.Seconds > limit.Seconds() {
			t.Errorf("%s took %.2f s, want at most %v", name, p.Seconds, limit)
		}
		if full && p.PeakRSSMiB > maxRSSMiB {
			t.Errorf("%s: %.0f MiB resident, want at most %d", name, p.PeakRSSMiB, maxRSSMiB)
		}
		return p
	}

	measure("cold start to all rows", maxColdStart, func() {
		w.start()
		w.eventuallyAll(w.allRowsRight)
	})
	measure("from there to all statuses", 0, func() { w.eventuallyAll(w.allProgrammed) })

	last := w.workloads[len(w.workloads)-1]
	w.stop()
	w.flush()
	measure("edit to row while all are queued", 0, func() {
		w.start()
		w.eventually(w.someRows)
		began := time.Now()
		generation := w.edit(last)
		w.eventually(func(ctx context.Context) error { return w.hasGeneration(ctx, last, generation) })
		took := time.Since(began)
		t.Logf("the edit itself took %.2f s", took.Seconds())
		out.Phases = append(out.Phases, phase{Name: "of which the edit", Seconds: took.Seconds()})
		if full && took > maxEdit {
			t.Errorf("an edit was in the table after %v, want at most %v", took, maxEdit)
		}
	})
	measure("to all rows again", 0, func() {
		w.eventuallyAll(w.allRowsRight)
		w.eventuallyAll(w.allProgrammed)
	})

	crowded := w.workloads[0]
	w.scale(crowded, int32(size.Members))
	w.enforce(crowded, size.Members)
	w.eventually(func(ctx context.Context) error { return w.enforced(ctx, crowded, 1, size.Members) })
	measure(fmt.Sprintf("edit to Enforced by %d members", size.Members), 0, func() {
		generation := w.edit(crowded)
		w.eventually(func(ctx context.Context) error { return w.enforced(ctx, crowded, generation, size.Members) })
	})

	measure(fmt.Sprintf("rolling restart of %d Deployments", size.Restarted), 0, func() {
		w.restart(w.workloads[1 : 1+size.Restarted])
		w.eventually(func(ctx context.Context) error { return w.counted(ctx, w.workloads[1:1+size.Restarted], 3) })
	})

	w.settle()
	idle := measure("idle", 0, func() { w.pause(time.Duration(size.IdleSeconds) * time.Second) })
	if idle.RowWrites > 0 || idle.APIWrites > w.leaseWrites(size.IdleSeconds) {
		t.Errorf("idle: %.0f rows written, %.0f writes to the API server", idle.RowWrites, idle.APIWrites)
	}
	if !full {
		return
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("results.json", append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (w *world) allRowsRight(ctx context.Context) error {
	rows, err := w.rows(ctx, w.workloads...)
	if err != nil {
		return err
	}
	right := 0
	for _, row := range rows {
		if len(row.Policies) == policiesPerDeployment {
			right++
		}
	}
	if right != len(w.workloads) {
		return fmt.Errorf("%d of %d rows are right", right, len(w.workloads))
	}
	return nil
}

func (w *world) someRows(ctx context.Context) error {
	rows, err := w.rows(ctx, w.workloads...)
	if err == nil && len(rows) == 0 {
		err = errors.New("no row yet")
	}
	return err
}

func (w *world) hasGeneration(ctx context.Context, workload policy.Workload, generation int64) error {
	rows, err := w.rows(ctx, workload)
	if err != nil {
		return err
	}
	for _, p := range rows[workload].Policies {
		if p.Name == workload.Name+"-"+editedPolicy && p.Generation == generation {
			return nil
		}
	}
	return fmt.Errorf("generation %d is not in the row", generation)
}

func (w *world) allProgrammed(context.Context) error {
	const series = `weir_controller_policies{condition="Programmed",status="True"}`
	if got := w.metrics()[series]; int(got) != w.size.Policies {
		return fmt.Errorf("%.0f policies are programmed", got)
	}
	return nil
}

func (w *world) enforced(ctx context.Context, workload policy.Workload, generation int64, members int) error {
	p, err := w.policy(ctx, workload)
	if err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if c.Type == string(v1alpha1.ConditionEnforced) && c.Status == "True" && c.ObservedGeneration >= generation &&
			p.Status.Enforcers != nil && p.Status.Enforcers.Summary == fmt.Sprintf("%d/%d", members, members) {
			return nil
		}
	}
	return fmt.Errorf("not enforced: %+v", p.Status)
}
