package controllers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// other is a file of test/skew, in which other versions left what they write.
func other(t *testing.T, version, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "test", "skew", "testdata", version, file))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A row of a later controller is left alone, and the policy says so: by its version, and also where only one of its rules
// needs something that this code does not know.
func TestARowOfALaterControllerIsLeftAlone(t *testing.T) {
	for _, file := range []string{"row-next-version.json", "row-needs.json", "row-only-needs.json"} {
		t.Run(file, func(t *testing.T) {
			w := newWorld(t)
			w.has(limit("login", 5))
			w.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "d"}}
			w.leadership = &Leadership{installation: ours, epoch: "5000"}
			w.table.body = other(t, "future", file)
			if after := w.pass(t); after < time.Second {
				t.Errorf("looks again after %v, although nothing can be written", after)
			}
			if len(w.table.written)+w.table.counted > 0 {
				t.Errorf("%d rows and %d counts written", len(w.table.written), w.table.counted)
			}
			for _, condition := range []v1alpha1.ConditionType{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
				c := findCondition(w.cached.items[0].Status.Conditions, condition)
				if c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(v1alpha1.ReasonNewerTable) {
					t.Errorf("%s is %+v", condition, c)
				}
			}
			// Unknown fields alone are no reason: within a version the encoding only grows.
			w.table.body = other(t, "future", "row-unknown-fields.json")
			w.pass(t)
			if len(w.table.written) != 1 {
				t.Errorf("%d rows written over one with unknown fields, want 1", len(w.table.written))
			}
		})
	}
}

// Members of an old library, and of a later one, are named where they do not enforce the whole of a policy.
func TestMembersOfOtherVersions(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join("..", "test", "skew", "testdata", "v*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no versions (%v)", err)
	}
	since := policy.Revision{Epoch: "4821", N: 7}
	later, err := policy.DecodeReport("new/1", other(t, "future", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			old, err := policy.DecodeReport("old/1", other(t, filepath.Base(folder), "report.json"))
			if err != nil {
				t.Fatal(err)
			}
			members := []policy.Report{old, later}
			if s := standingOf(since, nil, members); len(s.current) != 2 {
				t.Errorf("of a policy that needs nothing: %+v, want both current", s)
			}
			f := settledFacts(func(f *facts) {
				f.standing = standingOf(since, []string{"leaky-bucket"}, members)
				f.settled, f.ready, f.overdue = 2, 2, true
			})
			enforced := findCondition(statusOf(f).Conditions, v1alpha1.ConditionEnforced)
			if enforced.Reason != string(v1alpha1.ReasonEnforcerTooOld) || !strings.HasSuffix(enforced.Message, ": "+old.Pod) {
				t.Errorf("Enforced is %+v, want %s named as too old", enforced, old.Pod)
			}
		})
	}
}
