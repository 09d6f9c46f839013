package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/ratelimit"
)

// newLimiter makes what an application in a pod of the workload does.
func (w *workload) newLimiter(pod string, change func(*ratelimit.Options)) *ratelimit.Limiter {
	w.t.Helper()
	options := ratelimit.Options{
		Namespace: w.Namespace, Workload: w.Name, Table: w.table, Pod: pod,
		Redis:        &redis.UniversalOptions{Addrs: []string{w.redis.(*redis.Client).Options().Addr}},
		StoreTimeout: patience, // what the store counts is looked at, and the machine may be busy
	}
	if change != nil {
		change(&options)
	}
	limiter, err := ratelimit.New(options)
	if err != nil {
		w.t.Fatal(err)
	}
	return limiter
}

// limiter runs the library as a pod of the workload does, until the test ends.
func (w *workload) limiter(pod string) *ratelimit.Limiter {
	w.t.Helper()
	limiter := w.newLimiter(pod, nil)
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = limiter.Run(ctx) })
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return limiter
}

// admitted sends requests to the workload, and says how many are admitted.
func admitted(ctx context.Context, limiter *ratelimit.Limiter, requests int) (admitted int) {
	for range requests {
		if limiter.Decide(ctx, ratelimit.Request{Method: "GET", Path: "/"}).Allowed {
			admitted++
		}
	}
	return admitted
}

// asLog makes a policy's limit one whose requests count for all of its window, so that a slow test gains none back.
func asLog(p *v1alpha1.RateLimitPolicy, window string) {
	p.Spec.Rules[0].Limits[0].Algorithm, p.Spec.Rules[0].Limits[0].Window = v1alpha1.SlidingWindowLog, window
}

// B53: two policies for one workload. Both apply, the strictest answer wins, and both are accepted. When the first one goes,
// the second is as it was, counters and all. Three unrelated policies are never touched.
func TestPoliciesAddUp(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	limiter := w.limiter("checkout-a")
	i.start(redis.Addr)
	others := []*workload{w.beside("cart"), w.beside("search"), w.beside("payment")}
	for _, other := range others {
		other.deploy(1)
		other.limit(other.Name, 1)
		other.waitCondition(other.Name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	}
	first := w.limit("p1", 100)
	w.limit("p2", 10)
	for _, name := range []string{"p1", "p2"} {
		w.editPolicy(name, func(p *v1alpha1.RateLimitPolicy) { asLog(p, "1h") })
	}
	w.waitRow(limitsTo(100, 10))
	w.waitCondition("p1", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	w.waitCondition("p2", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	if got := admitted(t.Context(), limiter, 12); got != 10 {
		t.Errorf("%d of 12 were admitted, want the strictest limit's 10", got)
	}
	settled := map[string]policy.Row{}
	for _, other := range others {
		settled[other.Name] = other.waitRow(hasPolicies(other.Name))
	}

	w.remove(first)
	alone := w.waitRow(limitsTo(10))
	eventually(t, func(context.Context) error {
		if p := w.policy("p2"); p.Status.Revision != fmt.Sprintf("%s.%d", alone.Revision.Epoch, alone.Revision.N) {
			return fmt.Errorf("p2 is of revision %s", p.Status.Revision)
		}
		return nil
	})
	w.waitCondition("p2", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	if got := admitted(t.Context(), limiter, 5); got != 0 {
		t.Errorf("%d more were admitted when the other policy went, want 0", got)
	}
	for _, other := range others {
		if row := other.waitRow(hasPolicies(other.Name)); row.Revision != settled[other.Name].Revision {
			t.Errorf("the unrelated row %s was rewritten: %v, was %v", other.Name, row.Revision, settled[other.Name].Revision)
		}
		other.waitCondition(other.Name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	}
}

// B53, with equal timestamps: of two policies that do not both fit, made within one second, the one whose name comes first
// is accepted, whichever was made first; the other one says why not, and takes over when the first goes.
func TestPoliciesOfTheSameSecondAreOrderedByName(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	i.start(redis.Addr)
	unrelated := w.beside("cart")
	unrelated.limit("cart", 1)
	kept := unrelated.waitRow(hasPolicies("cart"))
	for try := 0; ; try++ {
		w.rules("zebra", 40, 1)
		w.rules("adder", 40, 1)
		if w.policy("zebra").CreationTimestamp.Equal(new(w.policy("adder").CreationTimestamp)) {
			break
		}
		if try > 20 {
			t.Fatal("no two policies were made within one second")
		}
		w.remove(w.policy("zebra"))
		w.remove(w.policy("adder"))
	}
	w.waitRow(hasPolicies("adder"))
	w.waitCondition("adder", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	w.waitCondition("zebra", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTooManyRules)

	w.remove(w.policy("adder"))
	w.waitRow(hasPolicies("zebra"))
	w.waitCondition("zebra", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	if row := unrelated.waitRow(hasPolicies("cart")); row.Revision != kept.Revision {
		t.Errorf("the unrelated row was rewritten: %v, was %v", row.Revision, kept.Revision)
	}
}

func limitsTo(want ...int64) func(policy.Row) error {
	return func(row policy.Row) error {
		var have []int64
		for _, rule := range row.Rules {
			if rule.Limits[0].Algorithm != "SlidingWindowLog" {
				return errors.New("the row is not the newest")
			}
			have = append(have, rule.Limits[0].Requests)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			return fmt.Errorf("limits of the row (-want +got):\n%s", diff)
		}
		return nil
	}
}

// B55: the spec stays as the user wrote it, byte for byte. Spellings of one duration are one row, and keep the counters.
func TestADurationKeepsItsSpelling(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	limiter := w.limiter("checkout-a")
	i.start(redis.Addr)
	w.limit("login", 5)
	spent := false
	var counters string
	for _, c := range []struct {
		window string
		same   bool // as the first
	}{{"3600s", true}, {"1h", true}, {"60m", true}, {"1h0m0s", true}, {"90m", false}} {
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { asLog(p, c.window) })
		row := w.waitRow(func(row policy.Row) error {
			if row.Policies[0].Generation != generation {
				return fmt.Errorf("generation %d, want %d", row.Policies[0].Generation, generation)
			}
			return nil
		})
		p := w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
		if got := p.Spec.Rules[0].Limits[0].Window; got != c.window {
			t.Errorf("the spec says %s, was written as %s", got, c.window)
		}
		limit := row.Rules[0].Limits[0]
		if !spent {
			counters = limit.ID
		}
		if (limit.Window == 3_600_000_000) != c.same || (limit.ID == counters) != c.same {
			t.Errorf("%s became %d µs with counters %s, first %s", c.window, limit.Window, limit.ID, counters)
		}
		want := 0
		if !spent || !c.same {
			want = 5
		}
		if got := admitted(t.Context(), limiter, 6); got != want {
			t.Errorf("%s: %d of 6 were admitted, want %d", c.window, got, want)
		}
		spent = true
	}
}

// B55: the windows that the fault names, and what is refused with a reason.
func TestSpellingsOfAMinute(t *testing.T) {
	i, redis, w := setting(t)
	i.start(redis.Addr)
	w.limit("login", 5)
	rows := map[string]string{}
	for _, window := range []string{"60s", "1m", "1m0s", "90s"} {
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Window = window })
		row := w.waitRow(func(row policy.Row) error {
			if row.Policies[0].Generation != generation {
				return fmt.Errorf("generation %d, want %d", row.Policies[0].Generation, generation)
			}
			return nil
		})
		row.Revision, row.PolicyList, row.Policies[0].Generation = policy.Revision{Epoch: "1", N: 1}, "1", 1
		body, err := policy.EncodeRow(row)
		if err != nil {
			t.Fatal(err)
		}
		rows[window] = string(body)
		if got := w.policy("login").Spec.Rules[0].Limits[0].Window; got != window {
			t.Errorf("the spec says %s, was written as %s", got, window)
		}
	}
	if rows["60s"] != rows["1m"] || rows["60s"] != rows["1m0s"] || rows["60s"] == rows["90s"] {
		t.Errorf("60s, 1m and 1m0s must be one row, and 90s another: %v", rows)
	}
	for _, window := range []string{"0.5h", "1d", "-5s", "0s", "1e3s"} {
		p := w.policy("login")
		before := p.DeepCopy()
		p.Spec.Rules[0].Limits[0].Window = window
		err := w.admin.Patch(t.Context(), p, client.MergeFrom(before))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.rules[0].limits[0].window") ||
			!strings.Contains(err.Error(), "must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m") {
			t.Errorf("%s: %v", window, err)
		}
	}
}
