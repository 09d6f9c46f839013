package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever an application writes in the place of a report: no panic, and what is taken is within bounds and can be written.
func FuzzDecodeReport(f *testing.F) {
	for _, seed := range []string{
		`{"pod":"a","revision":{"epoch":"1","n":7},"library":"v0.1.0","features":["x"],"skipped":1,"matched":"mn?","started":17}`,
		`{"pod":"a","matched":7}`, `{"pod":"a","revision":{"epoch":"x"}}`, `{}`, `null`, `[`,
	} {
		f.Add("a/1", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, member string, data []byte) {
		r, err := DecodeReport(member, data)
		if err != nil {
			if diff := cmp.Diff(Report{}, r); diff != "" {
				t.Errorf("a report beside an error: %s", diff)
			}
			return
		}
		if len(r.Pod) > maxName || len(r.Library) > maxLibrary || len(r.Features) > maxFeatures || len(r.Matched) > MaxRules || r.Skipped > MaxRules {
			t.Errorf("out of bounds: %+v", r)
		}
		row := Row{Revision: r.Revision, Rules: make([]RowRule, MaxRules)}
		_, _ = UnmatchedRules(row, []Report{r})
		again, err := EncodeReport(r)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := DecodeReport(member, again)
		if diff := cmp.Diff(r, decoded); err != nil || diff != "" {
			t.Errorf("encoded and decoded again (%v, -want +got):\n%s", err, diff)
		}
	})
}

// Whatever stands in the place of a count.
func FuzzDecodeReplicas(f *testing.F) {
	for _, seed := range []string{
		`{"v":1,"n":5,"ready":3,"desired":5,"terminating":1,"at":17,"membersVersion":4,"falls":[{"from":9,"at":3}],"uid":"6f1"}`,
		`{"v":2}`, `{"v":1,"n":0}`, `{"v":1,"n":1e300}`, `null`, `[`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeReplicas(data)
		if err != nil {
			if diff := cmp.Diff(Replicas{}, r); diff != "" {
				t.Errorf("a count beside an error: %s", diff)
			}
			return
		}
		if r.N < 1 || r.N > maxReplicas || r.Ready < 0 || r.Desired < 0 || r.Terminating < 0 {
			t.Errorf("out of bounds: %+v", r)
		}
		// The controller counts on from it.
		if counted, _ := CountReplicas(DeploymentStatus{Ready: 3, Replicas: 3}, 1, 1, &r, 1_790_000_000_000_000); counted.N < 1 {
			t.Errorf("counted on to %+v", counted)
		}
	})
}

// Whatever stands in the place of a snapshot: in a ConfigMap or in a file that is half written.
func FuzzDecodeSnapshot(f *testing.F) {
	const workload = "shop/apps/Deployment/checkout"
	for _, seed := range []string{
		`{"v":1,"row":` + goodRow + `,"replicas":{"v":1,"n":3}}`, `{"v":1,"row":{"workload":"` + workload + `"},"replicas":null}`,
		`{"v":2}`, `{"v":1,"row":[]}`, `null`, `{"v":1,"row":`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeSnapshot(data, workload)
		if err != nil {
			if diff := cmp.Diff(Snapshot{}, s); diff != "" {
				t.Errorf("a snapshot beside an error: %s", diff)
			}
			return
		}
		if _, _, err := DecodeRow(s.Row); err == nil && s.Row == nil {
			t.Error("no row")
		}
		if s.Replicas != nil {
			_, _ = DecodeReplicas(s.Replicas)
		}
	})
}
