package demo

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/hack/dev/run"
)

// perMinute is what config/samples says of POST /exports: five a minute for each API key.
const perMinute = 5

// allowed is what a bucket of perMinute may admit to a fresh key in this time.
func allowed(elapsed time.Duration) int { return perMinute + int(perMinute*elapsed/time.Minute) }

func exports(apiKey string) run.Request {
	return run.Request{Method: http.MethodPost, Path: "/exports", APIKey: apiKey}
}

type step struct {
	name string
	tell string
	do   func(context.Context, *world) error
}

var steps = []step{
	{"one-client", "One client sends 20 requests to one replica.", oneClient},
	{"three-replicas", "300 requests at once for one API key, over three replicas together, 20 rounds with a key each.", threeReplicas},
	{"scaled-to-five", "kubectl scale deployment/checkout --replicas=5, then the same over five replicas.", scaledToFive},
	{"raised-limit", "The limit is edited from 5 to 8 while a key is spent: only the difference is admitted.", raisedLimit},
	{"redis-killed", "Redis is killed while clients send. Exports keep their limit by local shares, login is closed, the rest stays open.", redisKilled},
	{"redis-back", "Redis is started again, empty. The controller writes the table again, pods ask Redis again.", redisBack},
	{"scaled-to-two", "kubectl scale --replicas=2: old pods leave, the limit stays.", scaledToTwo},
	{"policy-deleted", "kubectl delete the policies: pods stop enforcing.", policyDeleted},
}

// settled waits until every policy of the demo says that all replicas enforce its current generation.
func (w *world) settled(ctx context.Context, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	want := fmt.Sprintf("%d/%d", replicas, replicas)
	return process.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		out, err := w.kubectl(ctx, "get", "ratelimitpolicies.ratelimit.weir.dev", "-n", namespace, "-o",
			`jsonpath={range .items[?(@.spec.targetRef.name=="`+deployment+`")]}{.metadata.name}|{.metadata.generation}|{.status.observedGeneration}|{.status.enforcers.summary}|{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			f := strings.Split(strings.TrimSpace(line), "|")
			if len(f) != 5 || f[1] != f[2] || f[3] != want || f[4] != "True" {
				return fmt.Errorf("policy %s, waiting for %s enforced", strings.TrimSpace(line), want)
			}
		}
		if strings.TrimSpace(out) == "" {
			return fmt.Errorf("no policy for %s", deployment)
		}
		return nil
	})
}

func oneClient(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 3)
	if err != nil {
		return err
	}
	if err := w.settled(ctx, 3); err != nil {
		return err
	}
	out, err := w.kubectl(ctx, "get", "rlp", "-n", namespace)
	if err != nil {
		return err
	}
	w.report.say("$ kubectl get rlp -n %s", namespace)
	w.report.indent(out)
	t := run.Load(ctx, addresses[:1], 20, exports("one-client"))
	w.check("one-client", t, perMinute, perMinute)
	return nil
}

// check compares what was admitted with what the limit allows: at least and at most.
func (w *world) check(step string, t run.Tally, least, most int, notes ...string) {
	limit := fmt.Sprint(most)
	if least != most {
		limit = fmt.Sprintf("%d..%d", least, most)
	}
	detail := fmt.Sprintf("admitted=%d limit=%s sent=%d by=%s slowest=%s", t.Admitted(), limit, t.Sent, sources(t), t.Slowest.Round(10*time.Microsecond))
	if t.Failed > 0 {
		notes = append(notes, fmt.Sprintf("failed=%d (%v)", t.Failed, t.Failure))
	}
	detail = strings.Join(append([]string{detail}, notes...), " ")
	w.report.add(step, t.Failed == 0 && t.Admitted() >= least && t.Admitted() <= most, "%s", detail)
}

func sources(t run.Tally) string {
	var parts []string
	for _, s := range []string{"Store", "DenyCache", "Lease", "LocalShare", "FailOpen", "FailClosed", "NoRule"} {
		if n := t.Sources[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s:%d", s, n))
		}
	}
	return strings.Join(parts, ",")
}

func threeReplicas(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 3)
	if err != nil {
		return err
	}
	const rounds = 20
	total := run.NewTally()
	for round := range rounds {
		t := run.Load(ctx, addresses, 300, exports(fmt.Sprintf("three-replicas-%d", round)))
		if t.Admitted() != perMinute {
			w.check("three-replicas", t, perMinute, perMinute, fmt.Sprintf("round=%d", round))
			return nil
		}
		total.Add(t)
	}
	w.check("three-replicas", total, rounds*perMinute, rounds*perMinute)
	return nil
}

func (w *world) scale(ctx context.Context, replicas int) ([]string, error) {
	if _, err := w.kubectl(ctx, "scale", "deployment/"+deployment, "-n", namespace, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return nil, err
	}
	addresses, err := w.fleet.Addresses(ctx, replicas)
	if err != nil {
		return nil, err
	}
	return addresses, w.settled(ctx, replicas)
}

func scaledToFive(ctx context.Context, w *world) error {
	addresses, err := w.scale(ctx, 5)
	if err != nil {
		return err
	}
	t := run.Load(ctx, addresses, 300, exports("scaled-to-five"))
	w.check("scaled-to-five", t, perMinute, perMinute)
	return nil
}

func (w *world) editLimit(ctx context.Context, requests int) (time.Duration, error) {
	began := time.Now()
	patch := fmt.Sprintf(`[{"op":"test","path":"/spec/rules/0/name","value":"exports"},{"op":"replace","path":"/spec/rules/0/limits/0/requests","value":%d}]`, requests)
	if _, err := w.kubectl(ctx, "patch", "rlp", "checkout", "-n", namespace, "--type=json", "-p", patch); err != nil {
		return 0, err
	}
	if err := w.settled(ctx, 5); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

func raisedLimit(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 5)
	if err != nil {
		return err
	}
	const raised = 8
	began := time.Now()
	spent := run.Load(ctx, addresses, 100, exports("raised-limit"))
	if spent.Admitted() != perMinute {
		w.check("raised-limit", spent, perMinute, perMinute)
		return nil
	}
	took, err := w.editLimit(ctx, raised)
	if err != nil {
		return err
	}
	t := run.Load(ctx, addresses, 100, exports("raised-limit"))
	refilled := int(raised * time.Since(began) / time.Minute)
	w.check("raised-limit", t, raised-perMinute, raised-perMinute+refilled, fmt.Sprintf("edit-to-all-pods=%s", took.Round(time.Millisecond)))
	_, err = w.editLimit(ctx, perMinute)
	return err
}

func redisKilled(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 5)
	if err != nil {
		return err
	}
	earned := w.fleet.Youngest().Add(earning)
	w.report.say("A new replica earns its share over the limit's window, so that a deploy is no fresh budget: waiting %.0f s", time.Until(earned).Seconds())
	if err := until(ctx, earned); err != nil {
		return err
	}
	began := time.Now()
	spent := run.Load(ctx, addresses, 50, exports("spent-before"))
	stop := make(chan struct{})
	during := make(chan run.Tally)
	go func() { during <- run.LoadUntil(ctx, addresses, 400, exports("spent-before"), stop) }()
	if err := w.redis.kill(); err != nil {
		return err
	}
	fresh := run.Load(ctx, addresses, 300, exports("fresh-in-outage"))
	login := run.Load(ctx, addresses, 20, run.Request{Method: http.MethodPost, Path: "/login", APIKey: "login"})
	other := run.Load(ctx, addresses, 20, run.Request{Method: http.MethodGet, Path: "/", APIKey: "other"})
	close(stop)
	spent.Add(<-during)
	w.check("redis-killed-spent-key", spent, perMinute, allowed(time.Since(began)))
	w.check("redis-killed-fresh-key", fresh, perMinute, perMinute)
	w.report.add("redis-killed-login", login.Statuses[http.StatusServiceUnavailable] == login.Sent,
		"admitted=%d limit=0 status-503=%d by=%s", login.Admitted(), login.Statuses[http.StatusServiceUnavailable], sources(login))
	w.report.add("redis-killed-other", other.Admitted() == other.Sent,
		"admitted=%d limit=none sent=%d by=%s", other.Admitted(), other.Sent, sources(other))
	return nil
}

// guard is how long replicas take to trust a store that came back, and a bit for the last of them.
const guard = 11 * time.Second

// earning is how long a new replica earns its share: the minute of the limit, and a bit for its start.
const earning = 61 * time.Second

func until(ctx context.Context, moment time.Time) error {
	timer := time.NewTimer(time.Until(moment))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func redisBack(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 5)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := w.redis.start(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	probes := 0
	err = process.Poll(wait, 100*time.Millisecond, func(ctx context.Context) error {
		probes++
		t := run.Load(ctx, addresses, len(addresses), run.Request{Method: http.MethodGet, Path: "/", APIKey: fmt.Sprintf("probe-%d", probes)})
		if n := t.Sources["Store"]; n != len(addresses) {
			return fmt.Errorf("%d of %d replicas ask Redis again", n, len(addresses))
		}
		return nil
	})
	if err != nil {
		return err
	}
	back := time.Since(began)
	w.trusted = time.Now().Add(guard)
	if err := w.settled(ctx, 5); err != nil {
		return err
	}
	t := run.Load(ctx, addresses, 300, exports("redis-back"))
	w.check("redis-back", t, perMinute, perMinute, fmt.Sprintf("all-replicas-back-after=%s", back.Round(time.Millisecond)))
	return nil
}

func scaledToTwo(ctx context.Context, w *world) error {
	addresses, err := w.scale(ctx, 2)
	if err != nil {
		return err
	}
	w.report.say("For 10 s after an outage Redis and the local shares must both admit: waiting %.0f s", time.Until(w.trusted).Seconds())
	if err := until(ctx, w.trusted); err != nil {
		return err
	}
	t := run.Load(ctx, addresses, 300, exports("scaled-to-two"))
	w.check("scaled-to-two", t, perMinute, perMinute)
	return nil
}

func policyDeleted(ctx context.Context, w *world) error {
	addresses, err := w.fleet.Addresses(ctx, 2)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := w.kubectl(ctx, "delete", "rlp", "--all", "-n", namespace); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var t run.Tally
	err = process.Poll(wait, 50*time.Millisecond, func(ctx context.Context) error {
		t = run.Load(ctx, addresses, 20, exports("policy-deleted"))
		if t.Admitted() != t.Sent {
			return fmt.Errorf("%d of %d admitted", t.Admitted(), t.Sent)
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.report.add("policy-deleted", true, "admitted=%d limit=none sent=%d after=%s", t.Admitted(), t.Sent, time.Since(began).Round(time.Millisecond))
	return nil
}
