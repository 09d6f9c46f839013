package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
)

// policyHead and rule make a policy whose rules apply to the requests of the bench.
const policyHead = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: bench, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
`

// rule is one rule: %d its number, %s its limit.
const rule = `    - name: rule%d
      match: [{methods: [POST], route: "/orders/{id}"}]
      key: [{header: X-Api-Key}]
      limits: [%s]
`

const (
	outOfReach = "{requests: 1000000000, window: 1h}"
	exhausted  = "{requests: 1, window: 24h}"
	// flooded is a limit whose waits are too short to be remembered as denials.
	flooded = "{requests: 1000, window: 1s}"
)

func policies(rules int, limit string, more ...string) string {
	text := policyHead
	for i := range rules {
		text += fmt.Sprintf(rule, i, limit)
	}
	for _, field := range more {
		text += "      " + field + "\n"
	}
	return text
}

// requests are one for each key. An application has them already when it asks for a decision.
func requests(names []string) []ratelimit.Request {
	all := make([]ratelimit.Request, len(names))
	for i, name := range names {
		all[i] = ratelimit.Request{
			Method: http.MethodPost,
			Route:  "POST /orders/{id}",
			Path:   "/orders/4711",
			Header: http.Header{"X-Api-Key": {name}, "Content-Type": {"application/json"}, "Accept": {"*/*"}},
			Remote: "203.0.113.7:50123",
		}
	}
	return all
}

// startWeir starts a limiter whose policies are those of the text.
func startWeir(ctx context.Context, policies string, change func(*ratelimit.Options)) (*ratelimit.Limiter, func(), error) {
	source, err := file.Text(policies)
	if err != nil {
		return nil, nil, err
	}
	options := ratelimit.Options{
		Namespace: "shop", Workload: "checkout", Pod: "bench", Policies: source, StoreTimeout: deadline,
	}
	change(&options)
	l, err := ratelimit.New(options)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	stop := func() {
		cancel()
		<-ended
	}
	if err := l.WaitReady(ctx); err != nil {
		stop()
		return nil, nil, err
	}
	return l, stop, nil
}

// admitted, denied and either say which decisions are right.
func admitted(allowed bool) error { return want(allowed, false) }
func denied(allowed bool) error   { return want(allowed, true) }
func either(bool) error           { return nil }

// weir is a whole decision: match, identify, count, answer. Decisions by any of the sources count, no others.
func weir(
	ctx context.Context, name, policies string, k keys, right func(bool) error, sources []string, change func(*ratelimit.Options),
) (*subject, error) {
	l, stop, err := startWeir(ctx, policies, change)
	if err != nil {
		return nil, fmt.Errorf("starting weir: %w", err)
	}
	asked := requests(k.names)
	return &subject{
		name:    name,
		release: stop,
		take: func(ctx context.Context, keys []int) (int, error) {
			d := l.Decide(ctx, asked[keys[0]])
			for _, source := range sources {
				if d.Source == source {
					return 1, right(d.Allowed)
				}
			}
			return 0, fmt.Errorf("decided by %s: %s", d.Source, d.Cause)
		},
	}, nil
}

func onRedis(address string) func(*ratelimit.Options) {
	return func(o *ratelimit.Options) { o.Redis = &redis.UniversalOptions{Addrs: []string{address}} }
}

func inMemory(maxKeys int) func(*ratelimit.Options) {
	return func(o *ratelimit.Options) { o.Counters, o.MaxKeys = ratelimit.Memory(), maxKeys }
}

func onPostgres(pool *pgxpool.Pool) func(*ratelimit.Options) {
	return func(o *ratelimit.Options) {
		o.Counters = postgres.New(pool, postgres.Options{})
	}
}
