package scenario

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// event lets something happen. What follows from it is the cluster's to settle.
func (r *run) event(ctx context.Context, out *outcome, e *Event) error {
	c := r.cluster
	switch {
	case e.Store != nil:
		return r.storeEvent(ctx, e)
	case e.Scale != nil:
		c.kubelet(*e.Scale)
	case e.Policy != nil:
		for _, p := range e.Policy.Policies {
			c.apply(p)
		}
	case e.DeletePolicy != "":
		c.deletePolicy(e.DeletePolicy)
	case e.Clock != nil:
		if p, ok := r.replica(out, e.Clock.Replica); ok {
			p.runtime.offset = time.Duration(e.Clock.Offset).Microseconds()
		}
	case e.Restart != nil:
		if _, ok := r.replica(out, *e.Restart); ok {
			c.restart(*e.Restart)
		}
	case e.Reset != nil:
		return r.reset(ctx, out, e.Reset)
	}
	return nil
}

func (r *run) replica(out *outcome, index int) (*pod, bool) {
	if index >= len(r.cluster.pods) {
		out.found = append(out.found, Failure{
			Path: "event", Expected: "a replica that serves", Got: fmt.Sprintf("replica %d does not serve at this time", index),
		})
		return nil, false
	}
	return r.cluster.pods[index], true
}

// storeEvent changes the store's condition, or what is in it.
func (r *run) storeEvent(ctx context.Context, e *Event) error {
	switch {
	case e.Store.State == StoreEmpty:
		r.cluster.table.empty()
		if err := r.backend.empty(); err != nil {
			return err
		}
		r.cluster.missRow()
		return nil
	case e.Store.LoseWrites != nil:
		return r.backend.loseWrites(ctx, r.world.now-time.Duration(*e.Store.LoseWrites).Microseconds())
	}
	var next condition
	switch {
	case e.Store.State == StoreDown:
		next.down = true
	case e.Store.State == StoreReadOnly:
		next.readOnly = true
	case e.Store.Slow != nil:
		next.slow = time.Duration(*e.Store.Slow)
	case e.Store.LoseReplies != nil:
		next.loseReplies = *e.Store.LoseReplies
	}
	if e.Replicas == nil {
		*r.cluster.all = next
		clear(r.cluster.own)
		return nil
	}
	for _, index := range e.Replicas {
		own := next
		r.cluster.own[index] = &own
	}
	return nil
}

// reset forgets what an identity has used of a rule: in the store, and in each replica's own share.
func (r *run) reset(ctx context.Context, out *outcome, e *Reset) error {
	rule, err := r.scenario.rules().find(e.Rule)
	if err != nil {
		return err // Load refuses it
	}
	if c := r.cluster.all; c.down || c.readOnly {
		out.found = append(out.found, Failure{Path: "event.reset", Expected: "a reset", Got: "the store takes no writes"})
		return nil
	}
	request := requestOf(rule.rule.Key, e.Key)
	for i, p := range r.cluster.pods {
		held, ok := p.enforcer.Held(rule.policy, rule.rule.Name, request)
		if !ok {
			out.found = append(out.found, Failure{
				Path: "event.reset", Expected: "a rule in force", Got: fmt.Sprintf("replica %d does not enforce %s", i, e.Rule),
			})
			continue
		}
		var counters, shares []enforcer.Counter
		for _, h := range held {
			counters = append(counters, h.Counter)
			share := h.Counter
			share.Limit = h.Share
			shares = append(shares, share)
		}
		if err := p.local.Reset(ctx, shares); err != nil {
			return fmt.Errorf("resetting the share of replica %d: %w", i, err)
		}
		p.enforcer.Forget(counters)
		if i == 0 {
			if err := r.backend.store.Reset(ctx, counters); err != nil {
				return fmt.Errorf("resetting the store: %w", err)
			}
		}
	}
	return nil
}

// requestOf is a request whose identity has these values: one for each part of the key.
func requestOf(key []policy.KeyPart, values Lines) enforcer.Request {
	request := enforcer.Request{Header: make(http.Header), Attributes: make(map[string]string)}
	for i, part := range key {
		if i < len(values) {
			setPart(&request, part, values[i])
		}
	}
	return request
}

func setPart(request *enforcer.Request, part policy.KeyPart, value string) {
	switch {
	case part.FirstOf != nil:
		setPart(request, part.FirstOf[0], value)
	case http.CanonicalHeaderKey(part.Header) == "Host":
		request.Host = value
	case part.Header != "":
		request.Header.Set(part.Header, value)
	case part.Attribute != "":
		request.Attributes[part.Attribute] = value
	case part.ClientIP != nil:
		request.Remote = value
	case part.Request == policy.RequestKeyRoute:
		request.Route = value
	case part.Request == policy.RequestKeyMethod:
		request.Method = value
	}
}
