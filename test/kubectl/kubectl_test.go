package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weir-dev/weir/api/v1alpha1"
)

// step is a call, and what must come of it.
type step struct {
	user string // kubeconfig
	args string
	code int
	out  []string // in what it writes, in this order
	err  []string // in what it complains about, a line for each at most; nothing when empty
}

func (w *world) check(t *testing.T, s step) {
	t.Helper()
	code, stdout, stderr := w.weir(s.user, strings.Fields(s.args)...)
	if code != s.code {
		t.Errorf("%s: exit code %d, want %d", s.args, code, s.code)
	}
	for text, wanted := range map[string][]string{stdout: s.out, stderr: s.err} {
		rest := text
		for _, want := range wanted {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s: does not say %q in its place:\n%s", s.args, want, text)
				break
			}
			rest = after
		}
	}
	if len(s.err) == 0 && stderr != "" {
		t.Errorf("%s: complains: %s", s.args, stderr)
	}
	if lines := strings.Count(stderr, "\n"); lines > max(1, len(s.err)) {
		t.Errorf("%s: complains in %d lines: %s", s.args, lines, stderr)
	}
}

const acme = " --method POST --route /exports --header X-Api-Key=acme"

func TestCommandsOnACluster(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		if d := w.replicas[0].Decide(t.Context(), request("acme")); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	t.Run("explain", w.explain)
	t.Run("peek", w.peek)
	t.Run("diff", w.diff)
	t.Run("reset", w.reset)
	t.Run("status", w.status)
	t.Run("canary", w.canary)
	t.Run("shadow", w.shadow)
	t.Run("what cannot be", w.refusals)
	t.Run("viewers only look", w.viewers)
	t.Run("completion", func(t *testing.T) {
		for _, args := range [][]string{{"__complete", "status", ""}, {"__complete", "explain", "ch"}} {
			if code, stdout, stderr := w.weir(w.viewer, args...); code != 0 || !strings.HasPrefix(stdout, "checkout\n") {
				t.Errorf("%v: exit code %d: %s%s", args, code, stdout, stderr)
			}
		}
	})
}

func (w *world) explain(t *testing.T) {
	for name, s := range map[string]step{
		"by the API server": {w.viewer, "explain deployment/checkout" + acme, 0, []string{
			"POST /exports for shop/checkout, as the API server has the policies",
			"checkout/exports   Limits   5 per 1h ", "header X-Api-Key",
			"Not asked: checkout/login, checkout/default",
			"Answered by Redis, while it answers in time.",
			"with 3 replicas", "checkout/exports   LocalShare         2 × 2 per 1h, 1 × 1 per 1h",
		}, nil},
		"by the row": {w.viewer, "explain checkout REDIS -o wide" + acme, 0, []string{"by revision ", "IDENTITY", "631e62439527"}, nil},
		"no key, which is denied": {w.viewer, "explain checkout REDIS --method POST --route /login", 0, []string{
			"checkout/login   Denies", "clientIP: missing, which is answered with 400", "a part of the key is missing",
		}, nil},
		"no key, counted otherwise": {w.viewer, "explain checkout --method POST --route /exports --remote 203.0.113.7", 0, []string{
			"header X-Api-Key: missing, counted by the client's address",
		}, nil},
		"an override": {w.viewer, "explain checkout --path /items --remote 203.0.113.7 --attribute plan=scale", 0, []string{
			"3000 per 1m", "by an override, because attribute plan is one of scale", "FailOpen", "everything",
		}, nil},
		"unlimited": {w.viewer, "explain checkout --path /items --remote 203.0.113.7 --attribute plan=internal", 0, []string{
			"Unlimited", "no rule limits this request",
		}, nil},
		"exempt": {w.viewer, "explain checkout --path /healthz", 0, []string{"exempt, neither charged nor denied"}, nil},
		"fails closed": {w.viewer, "explain checkout --method POST --route /login --remote 203.0.113.7", 0, []string{
			"FailClosed", "nothing (503)",
		}, nil},
	} {
		t.Run(name, func(t *testing.T) { w.check(t, s) })
	}
	w.shown(t, "explain.txt", w.viewer, 0, "explain checkout"+acme+" REDIS", "")
}

func (w *world) peek(t *testing.T) {
	w.shown(t, "text/peek.txt", w.viewer, 0, "peek checkout"+acme+" REDIS", "")
	w.check(t, step{w.viewer, "peek checkout REDIS" + acme, 0, []string{
		"checkout/exports   5 per 1h                 2      now", "checkout/exports   50 per 24h FixedWindow   47     now",
	}, nil})
	w.check(t, step{w.viewer, "peek checkout REDIS --method POST --route /exports --header X-Api-Key=other", 0, []string{
		"5 per 1h                 5      now        now",
	}, nil})
	code, stdout, _ := w.weir(w.viewer, strings.Fields("peek checkout REDIS -o json"+acme)...)
	var told []struct {
		Rule                string
		Requests, Remaining int64
		Allowed             bool
	}
	if err := json.Unmarshal([]byte(stdout), &told); err != nil || code != 0 || len(told) != 2 || told[0].Remaining != 2 || !told[0].Allowed {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
}

func (w *world) diff(t *testing.T) {
	file := func(edits ...string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "policy.yaml")
		text := strings.NewReplacer(append(edits, "NAMESPACE", w.namespace)...).Replace(policyText)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, where := range []string{"", " REDIS"} {
		w.check(t, step{w.viewer, "diff -f " + file() + where, 0, []string{"shop/checkout: same, compared with "}, nil})
	}
	edited := file("requests: 5,", "requests: 7,", "window: 24h", "window: 48h")
	w.check(t, step{w.viewer, "diff REDIS -f " + edited, 1, []string{
		"shop/checkout: changed, compared with Redis\n",
		" rule exports:\n",
		"-  limit: 5 per 1h\n",
		"-  limit: 50 per 24h FixedWindow\n",
		"+  limit: 7 per 1h\n",
		"+  limit: 50 per 48h FixedWindow\n",
		"exports: 5 per 1h becomes 7 per 1h and keeps what is used\n",
		"exports: 50 per 48h FixedWindow starts with nothing used\n",
		"exports: 50 per 24h FixedWindow goes, and its counters with it\n",
	}, nil})
	w.shown(t, "text/diff.txt", w.viewer, 1, "diff -f FILE REDIS", edited)
	wrong := "diff --table other --redis " + w.redis.Addr + " -f "
	w.check(t, step{w.viewer, wrong + file(), 1, []string{
		"shop/checkout: added, compared with Redis\n  the table other in Redis holds no row for shop/checkout", "is it the right --table?\n", "+rule exports:",
	}, nil})
	w.check(t, step{w.viewer, wrong + file("name: checkout}", "name: new}"), 1, []string{"shop/checkout: added, compared with Redis\n+evaluation"}, nil})
	w.check(t, step{w.viewer, "diff -f " + file("name: checkout,", "name: another,"), 1, []string{"shop/another: added", "+rule exports:"}, nil})
	w.check(t, step{w.viewer, "diff -f " + file("requests: 5,", "reqests: 5,"), 2, nil, []string{"did you mean requests?"}})
}

func (w *world) reset(t *testing.T) {
	used := func(t *testing.T, wanted string) {
		t.Helper()
		w.check(t, step{w.viewer, "peek checkout REDIS" + acme, 0, []string{"5 per 1h                 " + wanted + "  "}, nil})
	}
	w.check(t, step{w.viewer, "reset checkout REDIS" + acme, 0, []string{"5 per 1h"}, []string{"Nothing was changed. With --yes these 2 counters"}})
	used(t, "2")
	w.check(t, step{w.viewer, "reset checkout REDIS --yes" + acme, 1, nil, []string{"nothing was changed, because it could not be logged", "the role edit of the namespace allows that"}})
	used(t, "2")
	w.check(t, step{w.editor, "reset checkout REDIS --yes --rule exports" + acme, 0, []string{"5 per 1h"}, []string{"2 counters forgotten"}})
	used(t, "5")
	w.resetShared(t)
	w.eventually("the event is there", func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := w.client.List(ctx, &events, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "CountersReset" && e.Regarding.Name == "checkout" && strings.Contains(e.Note, "exports of identity 631e62439527 (5 per 1h)") {
				if strings.Contains(e.Note, "acme") {
					return fmt.Errorf("the event names the key: %s", e.Note)
				}
				return nil
			}
		}
		return errors.New("not yet")
	})
}

const wholeText = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: whole, namespace: NAMESPACE}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules: [{name: all, limits: [{requests: 100, window: 24h, algorithm: FixedWindow}]}]
`

// What counts all clients is left alone by the reset of one of them.
func (w *world) resetShared(t *testing.T) {
	ruled := func(rules string) {
		t.Helper()
		w.eventually("all pods have "+rules, func(context.Context) error {
			_, row, _ := w.weir(w.viewer, strings.Fields("explain checkout REDIS --path / --remote 203.0.113.7 -o json")...)
			_, told, _ := w.weir(w.viewer, "status", "checkout", "REDIS")
			if strings.Contains(row, "whole/all") != (rules == "whole/all") || strings.Count(told, " current ") != 3 {
				return fmt.Errorf("%s%s", row, told)
			}
			return nil
		})
	}
	w.kubectl(strings.ReplaceAll(wholeText, "NAMESPACE", w.namespace), "apply", "-f", "-")
	ruled("whole/all")
	for _, key := range []string{"acme", "other"} {
		if d := w.replicas[0].Decide(t.Context(), request(key)); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	left := func(t *testing.T, exports, all string) {
		t.Helper()
		w.check(t, step{w.viewer, "peek checkout REDIS" + acme, 0, []string{"5 per 1h                  " + exports + "  ", "100 per 24h FixedWindow   " + all + "  "}, nil})
	}
	left(t, "4", "98")
	w.check(t, step{w.viewer, "reset checkout REDIS" + acme, 0, []string{"checkout/exports"}, []string{
		"whole/all is left out, because it counts other clients, too: --rule whole/all resets it.\n", "With --yes these 2 counters",
	}})
	w.shown(t, "text/reset-preview.txt", w.viewer, 0, "reset checkout"+acme+" REDIS", "")
	w.shown(t, "text/reset.txt", w.editor, 0, "reset checkout"+acme+" REDIS --yes", "")
	left(t, "5", "98")
	w.check(t, step{w.editor, "reset checkout REDIS --yes --rule all" + acme, 0, []string{"whole/all"}, []string{
		"whole/all counts other clients, too, and becomes whole for all of them.\n", "1 counter forgotten",
	}})
	left(t, "5", "100")
	w.kubectl("", "delete", "ratelimitpolicies", "whole", "-n", w.namespace)
	ruled("no whole/all")
}

func (w *world) status(t *testing.T) {
	w.enforced("3/3")
	w.check(t, step{w.viewer, "status", 0, []string{"WORKLOAD   POLICY     RULES   ENFORCED   READY", "checkout   checkout   3       3/3        True"}, nil})
	w.messageOnThePage(t)
	w.shown(t, "text/status.txt", w.viewer, 0, "status", "")
	w.shown(t, "text/status-checkout.txt", w.viewer, 0, "status checkout REDIS", "")
	w.check(t, step{w.viewer, "status checkout", 0, []string{
		"Replicas: 3 counted (3 ready, 3 desired, 0 terminating)", "checkout/exports   5 per 1h ", "2 × 2 per 1h, 1 × 1 per 1h",
		"what the API server knows. Give --redis",
	}, nil})
	w.check(t, step{w.viewer, "status checkout REDIS", 0, []string{"in the table of installation ", "POD ", " current ", " current ", " current "}, nil})
	_, stdout, _ := w.weir(w.viewer, "status", "checkout", "REDIS", "-o", "yaml")
	var told struct {
		Source string
		Pods   []struct{ State string }
	}
	if err := yaml.Unmarshal([]byte(stdout), &told); err != nil || told.Source != "Redis" || len(told.Pods) != 3 {
		t.Errorf("%v: %s", err, stdout)
	}
	const wrong = "the table other in Redis holds no row for shop/checkout"
	w.check(t, step{w.viewer, "status checkout --table other --redis " + w.redis.Addr, 1, []string{"checkout   checkout   3       3/3        True", wrong + ": is it the right --table"}, nil})
	// A policy that is refused, and a pod that reports nothing.
	w.kubectl("", "scale", "deployment/checkout", "-n", w.namespace, "--replicas=4")
	w.kubectl(strings.NewReplacer("NAMESPACE", w.namespace, "name: checkout, namespace", "name: nobody, namespace", "name: checkout}", "name: gone}").Replace(policyText), "apply", "-f", "-")
	w.eventually("the fourth pod is told of", func(context.Context) error {
		_, stdout, _ := w.weir(w.viewer, "status", "checkout", "REDIS")
		if !strings.Contains(stdout, " not reporting ") {
			return errors.New(stdout)
		}
		return nil
	})
	w.eventually("the missing target is told of", func(context.Context) error {
		code, stdout, _ := w.weir(w.viewer, "status")
		if code != 1 || !strings.Contains(stdout, "shop/nobody: Accepted is False (TargetNotFound): ") {
			return fmt.Errorf("exit code %d: %s", code, stdout)
		}
		return nil
	})
	w.kubectl("", "delete", "ratelimitpolicies", "nobody", "-n", w.namespace)
	w.kubectl("", "scale", "deployment/checkout", "-n", w.namespace, "--replicas=3")
}

// The page about the resource shows the message of a policy that is enforced.
func (w *world) messageOnThePage(t *testing.T) {
	t.Helper()
	var p v1alpha1.RateLimitPolicy
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "checkout"}, &p); err != nil {
		t.Fatal(err)
	}
	ready := meta.FindStatusCondition(p.Status.Conditions, string(v1alpha1.ConditionReady))
	page, err := os.ReadFile(filepath.Join(root, "docs", "spec", "ratelimitpolicy.md"))
	if err != nil || ready == nil || !strings.Contains(string(page), "    "+ready.Message+"\n```\n") {
		t.Errorf("%v: docs/spec/ratelimitpolicy.md does not show the message of %+v", err, ready)
	}
}

// A pod of another Deployment that has the workload's name shares its limits.
func (w *world) canary(t *testing.T) {
	canary := w.startReplica(t, "checkout-canary-5d8f7-x2x8v")
	if err := canary.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for i := range 10 {
		one := canary
		if i%2 == 0 {
			one = w.replicas[i/2%3]
		}
		if one.Decide(t.Context(), request("shared")).Allowed {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d of 10 admitted by canary and replicas, want 5", admitted)
	}
	w.eventually("the canary counts", func(context.Context) error {
		_, stdout, _ := w.weir(w.viewer, "status", "checkout", "REDIS")
		if !strings.Contains(stdout, "Replicas: 4 counted") || !strings.Contains(stdout, "checkout-canary-5d8f7-x2x8v") {
			return errors.New(stdout)
		}
		return nil
	})
}

func (w *world) spec(t *testing.T) v1alpha1.RateLimitPolicySpec {
	t.Helper()
	var p v1alpha1.RateLimitPolicy
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "checkout"}, &p); err != nil {
		t.Fatal(err)
	}
	return p.Spec
}

func (w *world) shadow(t *testing.T) {
	before := w.spec(t)
	w.shown(t, "text/shadow.txt", w.viewer, 0, "shadow checkout", "")
	w.check(t, step{w.viewer, "shadow checkout", 0, []string{"kubectl patch ratelimitpolicies.ratelimit.weir.dev checkout -n shop --type json -p '["}, []string{"Nothing was changed. Apply this with --apply"}})
	w.check(t, step{w.viewer, "shadow checkout --apply", 1, nil, []string{"cannot patch", "the role edit of the namespace allows that"}})
	if diff := cmp.Diff(before, w.spec(t)); diff != "" {
		t.Fatalf("the spec changed (-before +after):\n%s", diff)
	}
	w.check(t, step{w.editor, "shadow checkout --apply", 0, []string{"# shop/checkout: applied"}, nil})
	w.check(t, step{w.editor, "shadow checkout --apply", 0, []string{"# shop/checkout: no rule of it denies"}, nil})
	w.check(t, step{w.viewer, "explain checkout" + acme, 0, []string{"checkout/exports   Shadow"}, nil})
	w.check(t, step{w.editor, "shadow checkout --off --apply", 0, []string{"# shop/checkout: applied"}, nil})
	if diff := cmp.Diff(before, w.spec(t)); diff != "" {
		t.Errorf("the spec is not what it was (-before +after):\n%s", diff)
	}
	w.check(t, step{w.editor, "shadow checkout --off --apply", 0, []string{"was not put into Shadow mode by this command"}, nil})
	// The printed command does the same.
	_, printed, _ := w.weir(w.viewer, "shadow", "checkout")
	_, patch, _ := strings.Cut(strings.TrimSpace(printed), " -p '")
	w.kubectl("", "patch", "ratelimitpolicies.ratelimit.weir.dev", "checkout", "-n", w.namespace, "--type", "json", "-p", strings.TrimSuffix(patch, "'"))
	if got := w.spec(t); got.Mode != v1alpha1.ModeShadow || got.Rules[1].Mode != "" {
		t.Errorf("the printed patch makes %+v", got)
	}
	w.check(t, step{w.editor, "shadow checkout --off --apply --policy checkout", 0, []string{"applied"}, nil})
}

func (w *world) refusals(t *testing.T) {
	for name, s := range map[string]step{
		"a workload without policies": {w.viewer, "status nothing", 1, nil, []string{"no policy targets shop/nothing: `kubectl weir status -n shop` lists"}},
		"two workloads":               {w.viewer, "status a b", 2, nil, []string{"one WORKLOAD at a time"}},
		"no workload":                 {w.viewer, "explain --path /", 2, nil, []string{"name the workload, for example `kubectl weir explain checkout`"}},
		"another kind":                {w.viewer, "explain statefulset/x --path /", 2, nil, []string{"want the name of a Deployment"}},
		"no request":                  {w.viewer, "explain checkout", 2, nil, []string{"--route or --path is missing"}},
		"a header without value":      {w.viewer, "explain checkout --path / --header X", 2, nil, []string{"want NAME=VALUE"}},
		"an address that is none":     {w.viewer, "explain checkout --path / --remote here", 2, nil, []string{"want an address"}},
		"an unknown output":           {w.viewer, "status -o xml", 2, nil, []string{"must be table, wide, json or yaml"}},
		"peek without Redis":          {w.viewer, "peek checkout --path /", 2, nil, []string{"give its address with --redis"}},
		"a Redis that is not there":   {w.viewer, "peek checkout --path / --redis 127.0.0.1:1", 1, nil, []string{"connection refused: check --redis"}},
		"no address of Redis":         {w.viewer, "status --redis localhost", 2, nil, []string{"want host:port"}},
		"TLS without Redis":           {w.viewer, "status --redis-tls", 2, nil, []string{"need --redis with the address"}},
		"a table that is none":        {w.viewer, "status --table a*b", 2, nil, []string{"--table:"}},
		"an empty table":              {w.viewer, "explain checkout --path / --table other --redis " + w.redis.Addr, 1, nil, []string{"is it the right --table?"}},
		"nothing that counts":         {w.viewer, "peek checkout REDIS --path /healthz", 1, nil, []string{"`kubectl weir explain` with the same flags says why"}},
		"a rule that does not count":  {w.viewer, "peek checkout REDIS --rule login" + acme, 1, nil, []string{"no rule of --rule counts POST /exports: those that do are checkout/exports\n"}},
		"another namespace":           {w.viewer, "status -A", 1, nil, []string{"is forbidden", "by a ClusterRoleBinding"}},
		"somebody without a role":     {w.nobody, "status", 1, nil, []string{"is forbidden", "the role view of the namespace allows that"}},
		"a workload and all":          {w.viewer, "status checkout -A", 2, nil, []string{"exclude each other"}},
		"a policy that is not there":  {w.viewer, "shadow checkout --policy x", 1, nil, []string{"has no policy x"}},
		"no file":                     {w.viewer, "diff", 2, nil, []string{"--filename is missing"}},
		"metrics that it may not see": {w.viewer, "top checkout --metrics-port 8080", 1, nil, []string{"needs the right to get pods/proxy, which the role edit has"}},
		"no port of metrics":          {w.editor, "top checkout", 1, nil, []string{"nothing tells the port of its metrics: give it with --metrics-port"}},
		"rates of no workload":        {w.viewer, "top nothing REDIS", 1, nil, []string{"there is no Deployment nothing", "`kubectl weir status -n shop` lists"}},
		"no kubeconfig":               {"/nonexistent", "status", 1, nil, []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) { w.check(t, s) })
	}
}

// viewers may run all that only looks, with the role view and nothing else.
func (w *world) viewers(t *testing.T) {
	policies := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policies, []byte(strings.ReplaceAll(policyText, "NAMESPACE", w.namespace)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 8 { // more than the limit, so that somebody is denied
		w.replicas[0].Decide(t.Context(), request("greedy"))
	}
	w.eventually("the last edits are in force", func(context.Context) error {
		if code, stdout, _ := w.weir(w.viewer, "status"); code != 0 {
			return errors.New(stdout)
		}
		return nil
	})
	for name, s := range map[string]step{
		"status":              {w.viewer, "status", 0, []string{"checkout   checkout   3"}, nil},
		"status of one":       {w.viewer, "status checkout REDIS", 0, []string{"POD "}, nil},
		"explain":             {w.viewer, "explain checkout REDIS --path /", 0, []string{"checkout/default"}, nil},
		"diff":                {w.viewer, "diff -f " + policies, 0, []string{"same"}, nil},
		"peek":                {w.viewer, "peek checkout REDIS" + acme, 0, []string{"checkout/exports"}, nil},
		"reset, as a preview": {w.viewer, "reset checkout REDIS" + acme, 0, []string{"checkout/exports"}, []string{"Nothing was changed"}},
		"shadow, as a patch":  {w.viewer, "shadow checkout", 0, []string{"kubectl patch"}, []string{"Nothing was changed"}},
	} {
		t.Run(name, func(t *testing.T) { w.check(t, s) })
	}
	// The metrics of pods are for editors, and nothing in these pods tells their port; whom they deny is in Redis.
	for port, want := range map[string]string{
		"--metrics-port 8080": "needs the right to get pods/proxy", "": "No rates: in pod ",
	} {
		w.eventually("top shows a viewer who is denied", func(context.Context) error {
			code, stdout, stderr := w.weir(w.viewer, strings.Fields("top checkout REDIS --count 1 --interval 100ms "+port)...)
			if code != 0 || !strings.Contains(stdout, want) || !strings.Contains(stdout, "checkout/exports ") {
				return fmt.Errorf("exit code %d: %s%s", code, stdout, stderr)
			}
			return nil
		})
	}
}
