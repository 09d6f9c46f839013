package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

// claimed returns the table of an installation that owns it.
func (w *world) claimed(t *testing.T, installation string) *Table {
	t.Helper()
	table := NewTable(w.controller, testTable, installation)
	owner, err := table.Claim(t.Context(), "100")
	if err != nil {
		t.Fatal(err)
	}
	if owner != installation {
		t.Fatalf("table belongs to %q, want %q", owner, installation)
	}
	return table
}

func rowOf(owner, epoch string, n int64, change func(*policy.Row)) policy.Row {
	row := policy.Row{
		Version:    policy.RowVersion,
		Workload:   checkout.String(),
		Owner:      owner,
		Revision:   policy.Revision{Epoch: epoch, N: n},
		PolicyList: "1000",
		Policies:   []policy.RowPolicy{{Name: "checkout", UID: "uid-1", Generation: 5, Evaluation: policy.EvaluationAll}},
		Rules: []policy.RowRule{{
			Policy: "checkout", Name: "default", Mode: policy.ModeEnforce, WhenKeyMissing: policy.WhenKeyMissingAnonymous,
			Limits:         []policy.RowLimit{{ID: "abc", Algorithm: policy.FixedWindow, Requests: 10, Window: 60e6}},
			OnStoreFailure: policy.OnStoreFailureFailOpen,
		}},
	}
	if change != nil {
		change(&row)
	}
	return row
}

func TestMemberReadsWhatTheControllerPublishes(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	state, err := w.member().Read(ctx)
	if err != nil || state.Row != nil || state.Replicas != nil || state.Owner != "" {
		t.Fatalf("empty table reads as %+v, %v", state, err)
	}
	table := w.claimed(t, "blue")
	row := rowOf("blue", "100", 1, nil)
	if refusal, err := table.Publish(ctx, checkout, row); err != nil || refusal != policy.Accepted {
		t.Fatalf("Publish: %q, %v", refusal, err)
	}
	if refusal, err := table.PublishReplicas(ctx, checkout, "100", policy.Replicas{Version: 1, N: 3}); err != nil || refusal != policy.Accepted {
		t.Fatalf("PublishReplicas: %q, %v", refusal, err)
	}
	standing, err := w.member().Heartbeat(ctx, policy.Report{Member: "pod-a/1", Pod: "pod-a"}, time.Second)
	if err != nil || standing.Rank != 0 || standing.Count != 1 || standing.Version == 0 || standing.Now == 0 {
		t.Fatalf("Heartbeat: %+v, %v", standing, err)
	}
	state, err = w.member().Read(ctx)
	if err != nil || state.Owner != "blue" || len(state.Row) == 0 || len(state.Replicas) == 0 {
		t.Fatalf("Read: %+v, %v", state, err)
	}
	got, _, err := table.Read(ctx, checkout)
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Published{
		Row:            state.Row,
		Replicas:       &policy.Replicas{Version: 1, N: 3},
		Epoch:          "100",
		Members:        []policy.Report{{Member: "pod-a/1", Pod: "pod-a"}},
		MembersVersion: standing.Version,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("controller reads (-want +got):\n%s", diff)
	}
	workloads, err := table.Workloads(ctx)
	if err != nil || len(workloads) != 1 || workloads[0] != checkout {
		t.Errorf("Workloads: %v, %v", workloads, err)
	}
	if err := w.member().Leave(ctx, "pod-a/1"); err != nil {
		t.Fatal(err)
	}
	if got, _, err = table.Read(ctx, checkout); err != nil || len(got.Members) != 0 || got.MembersVersion <= standing.Version {
		t.Errorf("after Leave: %+v, %v", got, err)
	}
}

func TestPublishRefusesWhatGoesBack(t *testing.T) {
	held := rowOf("blue", "100", 7, nil)
	cases := map[string]struct {
		row  policy.Row
		want policy.Refusal
	}{
		"the same row again is accepted":          {held, policy.Accepted},
		"the next revision is accepted":           {rowOf("blue", "100", 8, nil), policy.Accepted},
		"a higher epoch starts its count anew":    {rowOf("blue", "101", 1, nil), policy.Accepted},
		"a longer epoch is higher":                {rowOf("blue", "1000", 1, nil), policy.Accepted},
		"a lower count is refused":                {rowOf("blue", "100", 6, nil), policy.RefusedRevision},
		"a lower epoch is refused":                {rowOf("blue", "99", 8, nil), policy.RefusedRevision},
		"an equal revision with another body":     {rowOf("blue", "100", 7, func(r *policy.Row) { r.PolicyList = "1001" }), policy.RefusedRevision},
		"an older list under a higher epoch":      {rowOf("blue", "101", 1, func(r *policy.Row) { r.PolicyList = "999" }), policy.RefusedStale},
		"a policy's older generation":             {rowOf("blue", "100", 8, func(r *policy.Row) { r.Policies[0].Generation = 4 }), policy.RefusedStale},
		"a recreated policy may start over":       {rowOf("blue", "100", 8, func(r *policy.Row) { r.Policies[0].Generation, r.Policies[0].UID = 1, "uid-2" }), policy.Accepted},
		"without a list only the revision counts": {rowOf("blue", "101", 1, func(r *policy.Row) { r.PolicyList, r.Policies[0].Generation = "", 1 }), policy.Accepted},
		"another owner that never had the table":  {rowOf("green", "500", 1, nil), policy.RefusedOwner},
	}
	w := newWorld(t, env.RedisOptions{})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			w.admin.FlushAll(ctx)
			table := w.claimed(t, "blue")
			if refusal, err := table.Publish(ctx, checkout, held); err != nil || refusal != policy.Accepted {
				t.Fatalf("%q, %v", refusal, err)
			}
			if c.row.Owner != "blue" {
				table = NewTable(w.controller, testTable, c.row.Owner)
			}
			got, err := table.Publish(ctx, checkout, c.row)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("refusal is %q, want %q", got, c.want)
			}
		})
	}
}

func TestListenHearsOfRowsAndMembers(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	table := w.claimed(t, "blue")

	hints, asks := make(chan struct{}, 100), make(chan *policy.Workload, 100)
	ended := make(chan error, 2)
	go func() { ended <- w.member().Listen(ctx, func() { hints <- struct{}{} }) }()
	go func() { ended <- table.Listen(ctx, func(w *policy.Workload) { asks <- w }) }()
	<-hints
	if w := <-asks; w != nil {
		t.Fatalf("first call is for %v, want nil", w)
	}
	steps := []struct {
		name string
		do   func() error
		hint bool
		ask  bool
	}{
		{"a row", func() error { _, err := table.Publish(ctx, checkout, rowOf("blue", "100", 1, nil)); return err }, true, false},
		{"replicas", func() error {
			_, err := table.PublishReplicas(ctx, checkout, "100", policy.Replicas{Version: 1, N: 2})
			return err
		}, true, false},
		{"a missing row", func() error { return w.member().AskForRow(ctx) }, false, true},
		{"a new member", func() error {
			_, err := w.member().Heartbeat(ctx, policy.Report{Member: "a", Pod: "a"}, time.Second)
			return err
		}, false, true},
		{"a new report", func() error {
			_, err := w.member().Heartbeat(ctx, policy.Report{Member: "a", Pod: "a", Library: "v2"}, time.Second)
			return err
		}, false, true},
		{"a leaving member", func() error { return w.member().Leave(ctx, "a") }, false, true},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatal(step.name, err)
		}
		if step.hint {
			select {
			case <-hints:
			case <-ctx.Done():
				t.Fatalf("no hint of %s", step.name)
			}
		}
		if step.ask {
			select {
			case got := <-asks:
				if got == nil || *got != checkout {
					t.Fatalf("%s: controller hears of %v", step.name, got)
				}
			case <-ctx.Done():
				t.Fatalf("controller hears nothing of %s", step.name)
			}
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen ended with %v", err)
		}
	}
}
