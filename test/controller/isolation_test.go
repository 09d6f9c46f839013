package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// No policy can stop, slow or spam the others: while some are as large as can be, are refused, change twenty times a second
// or have targets that come and go, an edit of another one reaches the table as fast as ever, and what is written for the
// restless ones is bounded.
func TestNoPolicyTroublesTheOthers(t *testing.T) {
	const edits, every = 25, 500 * time.Millisecond
	i, redis, w := setting(t)
	w.deploy(1)
	w.enforce("checkout-a")
	m := i.start(redis.Addr)
	w.limit("login", 5)
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	usual := w.timeEdits(edits, 0)

	// Those that are too much are refused, and leave what is there in force.
	large, huge := w.beside("large"), w.beside("huge")
	large.deploy(1)
	huge.deploy(1)
	large.rules("all-64", 64, 1)
	large.waitCondition("all-64", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	large.rules("one-more", 1, 1)
	large.waitCondition("one-more", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTooManyRules)
	large.waitCondition("all-64", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	huge.rules("huge", 64, 60)
	huge.waitCondition("huge", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonRowTooLarge)

	// The restless ones.
	flapping, restless := w.beside("flapping"), w.beside("restless")
	flapping.limit("flapping", 5)
	flapping.waitCondition("flapping", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	restless.deploy(1)
	restless.limit("restless", 5)
	restless.waitCondition("restless", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)

	ctx, cancel := context.WithCancel(t.Context())
	var trouble sync.WaitGroup
	counted := w.countStatuses(ctx, &trouble, "flapping", "restless")
	began, writes := time.Now(), m.apiWrites()
	flips, changes, refused := 0, 0, 0
	trouble.Go(func() { flips = flapping.flap(ctx, time.Second) })
	trouble.Go(func() { changes = restless.change20TimesASecond(ctx) })
	trouble.Go(func() { refused = w.tryWhatIsRefused(ctx) })
	troubled := w.timeEdits(edits, every)
	cancel()
	trouble.Wait()
	took := time.Since(began)
	t.Logf("an edit was in the table after %v usually and %v with trouble (median), %v and %v at worst; in %v: %d flips, %d changes, %d refused",
		middle(usual), middle(troubled), slices.Max(usual), slices.Max(troubled), took.Round(time.Second), flips, changes, refused)
	if middle(troubled) > 5*middle(usual)+200*time.Millisecond || slices.Max(troubled) > 10*time.Second {
		t.Error("the others' edits were slowed down")
	}
	if flips < 5 || changes < 50 || refused < len(whatIsRefused) {
		t.Errorf("that was little trouble: %d flips, %d changes, %d refused", flips, changes, refused)
	}

	statuses, most := counted(), int(took/(2*time.Second))+2
	for name, n := range statuses {
		if n > most {
			t.Errorf("the status of %s was written %d times in %v, want at most every 2 s", name, n, took)
		}
	}
	events := w.eventsOf(t.Context(), "flapping") + w.eventsOf(t.Context(), "restless")
	total := m.apiWrites() - writes
	t.Logf("statuses written: %v, at most %d each; events: %d objects; %v writes to the API server in all", statuses, most, events, total)
	if events > 10 { // one of each kind: those that come again are counted in the first
		t.Errorf("%d events", events)
	}
	w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	restless.waitCondition("restless", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// timeEdits edits the policy login, and says how long each edit took to the table.
func (w *workload) timeEdits(edits int, every time.Duration) []time.Duration {
	w.t.Helper()
	var took []time.Duration
	next := time.Now()
	for n := range edits {
		<-time.After(time.Until(next))
		began := time.Now()
		next = began.Add(every)
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(10 + n%2)) })
		w.waitRow(func(row policy.Row) error {
			if got := row.Policies[0].Generation; got != generation {
				return fmt.Errorf("the row has generation %d, want %d", got, generation)
			}
			return nil
		})
		took = append(took, time.Since(began))
	}
	return took
}

func middle(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// rules creates a policy of so many rules, each of which matches so many long headers.
func (w *workload) rules(name string, rules, headers int) {
	w.t.Helper()
	p := &v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec:       v1alpha1.RateLimitPolicySpec{TargetRef: v1alpha1.TargetRef{Group: "apps", Kind: "Deployment", Name: w.Name}},
	}
	for n := range rules {
		rule := v1alpha1.Rule{
			Name:   fmt.Sprintf("rule-%d", n),
			Limits: []v1alpha1.Limit{{Requests: new(int64(5)), Window: "1m"}},
		}
		for h := range min(headers, 16) {
			match := v1alpha1.Match{PathPrefix: v1alpha1.PathPrefix(fmt.Sprintf("/%d/%s", h, strings.Repeat("x", min(5*headers, 500))))}
			for k := range headers / 30 {
				match.Headers = append(match.Headers, v1alpha1.HeaderMatch{
					Name: fmt.Sprintf("x-%d", k), Value: strings.Repeat("y", 250),
				})
			}
			rule.Match = append(rule.Match, match)
		}
		p.Spec.Rules = append(p.Spec.Rules, rule)
	}
	if err := w.admin.Create(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

// flap creates and deletes the Deployment, one or the other each time, until ctx ends.
func (w *workload) flap(ctx context.Context, every time.Duration) (flips int) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		d := w.deployment(1)
		act := func() error { return w.admin.Create(ctx, d) }
		if flips%2 == 1 {
			act = func() error { return w.admin.Delete(ctx, d) }
		}
		if err := act(); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
		select {
		case <-ctx.Done():
			return flips
		case <-ticker.C:
			flips++
		}
	}
}

// change20TimesASecond edits the policy of the workload's name until ctx ends.
func (w *workload) change20TimesASecond(ctx context.Context) (changes int) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return changes
		case <-ticker.C:
		}
		p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}}
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/rules/0/limits/0/requests","value":%d}]`, 1000+changes)
		if err := w.admin.Patch(ctx, p, client.RawPatch("application/json-patch+json", []byte(patch))); err != nil {
			if ctx.Err() == nil {
				w.t.Error(err)
			}
			continue
		}
		changes++
	}
}

// whatIsRefused are specs that the API server must refuse, in its own time, and what it must name.
var whatIsRefused = map[string]func(spec map[string]any) (named string){
	"10,000 overrides": func(spec map[string]any) string {
		var overrides []any
		for n := range 10_000 {
			overrides = append(overrides, map[string]any{
				"when": map[string]any{"attribute": "plan", "values": []any{fmt.Sprint(n)}}, "unlimited": true,
			})
		}
		rule(spec)["overrides"] = overrides
		return "spec.rules[0].overrides"
	},
	"65 rules": func(spec map[string]any) string {
		var rules []any
		for n := range 65 {
			rules = append(rules, map[string]any{"name": fmt.Sprint("r", n), "limits": rule(spec)["limits"]})
		}
		spec["rules"] = rules
		return "spec.rules"
	},
	"a rule twice": func(spec map[string]any) string {
		spec["rules"] = []any{rule(spec), rule(spec)}
		return "spec.rules[1]"
	},
	"a window of digits":            func(spec map[string]any) string { return window(spec, strings.Repeat("9", 1<<20)) },
	"a window that overflows":       func(spec map[string]any) string { return window(spec, "99999h99999h99999h99999h") },
	"a window that is nothing":      func(spec map[string]any) string { return window(spec, "0h0m0s") },
	"a window with an exponent":     func(spec map[string]any) string { return window(spec, "1e3s") },
	"a window that is no text":      func(spec map[string]any) string { return window(spec, int64(60)) },
	"a window that CEL cannot read": func(spec map[string]any) string { return window(spec, "1m\x00") },
	"a limit of null":               func(spec map[string]any) string { rule(spec)["limits"] = []any{nil}; return "spec.rules[0].limits[0]" },
	"a route of opening braces":     func(spec map[string]any) string { return match(spec, "route", "/"+strings.Repeat("{", 500)) },
	"a route that climbs":           func(spec map[string]any) string { return match(spec, "route", "/a/%2e%2E/b") },
	"a route with half an escape":   func(spec map[string]any) string { return match(spec, "route", "/a%2") },
	"a match of a field that is not there": func(spec map[string]any) string {
		rule(spec)["match"] = []any{map[string]any{"pathprefix": "/"}} // pruned, and then it is empty
		return "spec.rules[0].match[0]"
	},
	"a rule that none behind it survives": func(spec map[string]any) string {
		spec["evaluation"] = "FirstMatch"
		second := map[string]any{"name": "second", "limits": rule(spec)["limits"]}
		spec["rules"] = []any{rule(spec), second}
		return "spec.rules"
	},
}

func rule(spec map[string]any) map[string]any { return spec["rules"].([]any)[0].(map[string]any) }

func window(spec map[string]any, window any) string {
	rule(spec)["limits"] = []any{map[string]any{"requests": int64(5), "window": window}}
	return "spec.rules[0].limits[0].window"
}

func match(spec map[string]any, field, value string) string {
	rule(spec)["match"] = []any{map[string]any{field: value}}
	return "spec.rules[0].match[0]." + field
}

// tryWhatIsRefused tries one after the other until ctx ends, and each at least once.
func (w *workload) tryWhatIsRefused(ctx context.Context) (refused int) {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for name, change := range whatIsRefused {
			spec := map[string]any{
				"targetRef": map[string]any{"group": "apps", "kind": "Deployment", "name": w.Name},
				"rules": []any{map[string]any{
					"name": "all", "limits": []any{map[string]any{"requests": int64(5), "window": "1m"}},
				}},
			}
			named := change(spec)
			p := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			p.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RateLimitPolicy"))
			p.SetNamespace(w.Namespace)
			p.SetName("refused")
			switch err := w.admin.Create(w.t.Context(), p); {
			case err == nil:
				w.t.Errorf("%s was admitted", name)
			case !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), named):
				w.t.Errorf("%s was refused with %.300v, want it to name %s", name, err, named)
			default:
				refused++
			}
		}
	}
	return refused
}

// countStatuses watches policies until ctx ends, and counts the writes that left their specs alone.
func (w *workload) countStatuses(ctx context.Context, watching *sync.WaitGroup, names ...string) (counted func() map[string]int) {
	w.t.Helper()
	var list v1alpha1.RateLimitPolicyList
	if err := w.admin.List(ctx, &list, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	changes, err := w.admin.Watch(ctx, &v1alpha1.RateLimitPolicyList{}, &client.ListOptions{
		Namespace: w.Namespace, Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var mu sync.Mutex
	statuses, generations := map[string]int{}, map[string]int64{}
	for i := range list.Items {
		generations[list.Items[i].Name] = list.Items[i].Generation
	}
	watching.Go(func() {
		defer changes.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case change, open := <-changes.ResultChan():
				if !open {
					if ctx.Err() == nil {
						w.t.Error("the watch ended")
					}
					return
				}
				p, ok := change.Object.(*v1alpha1.RateLimitPolicy)
				if !ok || change.Type != watch.Modified || !slices.Contains(names, p.Name) {
					continue
				}
				mu.Lock()
				if p.Generation == generations[p.Name] {
					statuses[p.Name]++
				}
				generations[p.Name] = p.Generation
				mu.Unlock()
			}
		}
	})
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return statuses
	}
}

// eventsOf counts the Event objects about a policy.
func (w *workload) eventsOf(ctx context.Context, name string) (count int) {
	w.t.Helper()
	var events eventsv1.EventList
	if err := w.admin.List(ctx, &events, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(errors.Join(errors.New("listing events"), err))
	}
	for _, e := range events.Items {
		if e.Regarding.Name == name {
			count++
		}
	}
	return count
}
