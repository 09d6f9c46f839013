package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/ratelimit"
)

// herd is many pods of a workload in this process.
type herd struct {
	w          *workload
	limiters   []*ratelimit.Limiter
	registries []*prometheus.Registry
	end        context.CancelFunc
	running    sync.WaitGroup
}

// startHerd starts so many pods at once.
func (w *workload) startHerd(pods int) *herd {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	h := &herd{w: w, end: cancel}
	for n := range pods {
		registry := prometheus.NewRegistry()
		limiter := w.newLimiter(fmt.Sprintf("%s-%03d", w.Name, n), func(o *ratelimit.Options) { o.Registerer = registry })
		h.limiters, h.registries = append(h.limiters, limiter), append(h.registries, registry)
		h.running.Go(func() { _ = limiter.Run(ctx) })
	}
	w.t.Cleanup(h.stop)
	return h
}

func (h *herd) stop() {
	h.end()
	h.running.Wait()
}

// problems are each pod's reads that brought no good row.
func (h *herd) problems() []float64 { return h.values("weir_row_problems_total") }

// values are those of each pod's metric, all labels together.
func (h *herd) values(metric string) []float64 {
	h.w.t.Helper()
	values := make([]float64, len(h.registries))
	for pod, registry := range h.registries {
		families, err := registry.Gather()
		if err != nil {
			h.w.t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() != metric {
				continue
			}
			for _, m := range family.GetMetric() {
				values[pod] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// put replaces the row past all fences, tells the pods, and waits until each of them has told that it cannot take it.
func (h *herd) put(what, row string) {
	h.w.t.Helper()
	before := h.problems()
	table, w := "weir:"+h.w.table+":", h.w.String()
	if err := h.w.redis.Set(h.w.t.Context(), table+"row:{"+w+"}", row, 0).Err(); err != nil {
		h.w.t.Fatal(err)
	}
	if err := h.w.redis.Publish(h.w.t.Context(), table+"changed:"+w, "row").Err(); err != nil {
		h.w.t.Fatal(err)
	}
	waitFor(h.w.t, patience, func(context.Context) error {
		for pod, reads := range h.problems() {
			if reads == before[pod] {
				return fmt.Errorf("%s: pod %d does not tell of it", what, pod)
			}
		}
		return nil
	})
}

// raw is the row as it is in the table.
func (w *workload) raw() string {
	w.t.Helper()
	row, err := w.redis.Get(w.t.Context(), "weir:"+w.table+":row:{"+w.String()+"}").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// commands counts what Redis was asked since it started.
func (w *workload) commands() (count int) {
	w.t.Helper()
	info, err := w.redis.Info(w.t.Context(), "stats").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	_, rest, found := strings.Cut(info, "total_commands_processed:")
	if _, err := fmt.Sscan(rest, &count); err != nil || !found {
		w.t.Fatalf("INFO stats says %q (%v)", info, err)
	}
	return count
}

// B61: rows that are damaged in every way reach 200 pods. None panics, each keeps the last good row and tells it in its
// metric, another workload's rows apply all the while, and the controller replaces what it cannot read. Then all pods start
// again at once.
func TestBadRowsReachTwoHundredPods(t *testing.T) {
	const pods = 200
	i, redis, w := setting(t)
	other := w.beside("cart")
	m := i.start(redis.Addr, "--resync=1h")
	w.deploy(pods)
	other.deploy(1)
	h := w.startHerd(pods)
	cart := other.startHerd(10)
	for _, each := range []*workload{w, other} {
		each.limit(each.Name, 5)
		each.editPolicy(each.Name, func(p *v1alpha1.RateLimitPolicy) { asLog(p, "1h") })
	}
	w.waitCondition("checkout", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	other.waitCondition("cart", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	if got := admitted(t.Context(), h.limiters[0], 6); got != 5 {
		t.Fatalf("%d of 6 were admitted, want 5", got)
	}
	m.process.Stop(10 * time.Second) // else it replaces them before everybody has read them

	good := w.raw()
	replace := func(from, to string) string {
		bad := strings.Replace(good, from, to, 1)
		if bad == good {
			t.Fatalf("the row has no %s: %s", from, good)
		}
		return bad
	}
	for name, bad := range map[string]string{
		"a window of nothing":  replace(`"window":3600000000`, `"window":""`),
		"an unknown algorithm": replace(`"SlidingWindowLog"`, `"foo"`),
		"a limit of null":      replace(`"requests":5`, `"requests":null`),
		"limits of null":       replace(`"limits":[`, `"limits":null,"x":[`),
		"broken JSON":          good[:len(good)/2],
		"a newer version":      replace(`"v":1`, `"v":2`),
	} {
		h.put(name, bad)
		for n, limiter := range h.limiters {
			if d := limiter.Decide(t.Context(), ratelimit.Request{Method: "GET", Path: "/"}); d.Allowed || d.Policy != "checkout" {
				t.Errorf("%s: pod %d decides %+v, want a denial by the last good row", name, n, d)
			}
		}
	}
	h.put("one that the controller may replace", replace(`"requests":5`, `"requests":-5`))
	cart.put("10 MB", strings.Repeat(" ", 10<<20)+other.raw())

	// The controller replaces both.
	i.start(redis.Addr)
	w.waitRow(hasPolicies("checkout"))
	other.waitRow(hasPolicies("cart"))
	other.editPolicy("cart", func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(7)) })
	other.waitCondition("cart", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	waitFor(t, patience, func(context.Context) error { // a pod that suspects a loss admits no more than its share for 10 s
		if cart.values("weir_store_guarded")[0] > 0 {
			return errors.New("the pod still counts by its share too")
		}
		return nil
	})
	if got := admitted(t.Context(), cart.limiters[0], 8); got != 7 {
		t.Errorf("%d of 8 were admitted of cart, want the edited 7", got)
	}

	h.stop()
	asked := w.commands()
	began := time.Now()
	h = w.startHerd(pods)
	waitFor(t, patience, func(context.Context) error {
		for n, limiter := range h.limiters {
			if d := limiter.Peek(t.Context(), ratelimit.Request{Method: "GET", Path: "/"}); d.Policy != "checkout" {
				return fmt.Errorf("pod %d has no policy yet", n)
			}
		}
		return nil
	})
	took := time.Since(began)
	commands := float64(w.commands()-asked) / pods
	t.Logf("%d pods that started at once had the row after %v, with %.0f commands each", pods, took, commands)
	if commands > 100 {
		t.Errorf("%.0f commands of each pod", commands)
	}
	if got := admitted(t.Context(), h.limiters[pods-1], 1); got != 0 {
		t.Error("the restart was a fresh budget")
	}
}
