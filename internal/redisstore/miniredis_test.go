package redisstore

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/policy"
)

// Where no Redis is installed, applications test against one that has no struct library.
func TestScriptsRunOnMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	client := NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	ctx := t.Context()

	now := int64(start)
	s := NewStore(StoreOptions{Client: client, Namespace: "shop", Time: func() int64 { return now }})
	states := map[string]algorithm.State{}
	for round := range 40 {
		var entries []enforcer.Entry
		for i, a := range algorithms {
			c := counterOf("mini", a, 5, 31*24*time.Hour)
			c.Cost = int64(1 + (round+i)%3)
			entries = append(entries, enforcer.Entry{Counters: []enforcer.Counter{c}, Enforced: 1, N: 1})
		}
		answers := make([]enforcer.Answer, len(entries))
		if _, err := s.Take(ctx, entries, answers); err != nil {
			t.Fatal(err)
		}
		for i, e := range entries {
			c := e.Counters[0]
			state, result := c.Limit.Take(states[c.ID], now, c.Cost)
			states[c.ID] = state
			if (answers[i].Granted == 1) != result.Allowed || answers[i].Results[0].Remaining != result.Remaining {
				t.Fatalf("round %d, %v: %+v, want %+v", round, c.Limit.Algorithm, answers[i], result)
			}
		}
		now += 12345678901
	}
	c := counterOf("mini", algorithm.FixedWindow, 5, 31*24*time.Hour)
	if err := s.Refund(ctx, []enforcer.Refund{{Counters: []enforcer.Counter{c}, N: 1, Taken: now}}); err != nil {
		t.Error(err)
	}

	table, member := NewTable(client, "", "blue"), NewMember(client, "", checkout)
	if owner, err := table.Claim(ctx, "100"); err != nil || owner != "blue" {
		t.Fatal(owner, err)
	}
	if refusal, err := table.Publish(ctx, checkout, rowOf("blue", "100", 1, nil)); err != nil || refusal != policy.Accepted {
		t.Fatal(refusal, err)
	}
	if refusal, err := table.Publish(ctx, checkout, rowOf("blue", "100", 0, nil)); err != nil || refusal != policy.RefusedRevision {
		t.Error(refusal, err)
	}
	if refusal, err := table.PublishReplicas(ctx, checkout, "100", policy.Replicas{Version: 1, N: 1}); err != nil || refusal != policy.Accepted {
		t.Error(refusal, err)
	}
	standing, err := member.Heartbeat(ctx, policy.Report{Member: "a/1", Pod: "a"}, time.Second)
	if err != nil || standing.Count != 1 {
		t.Error(standing, err)
	}
	state, err := member.Read(ctx)
	if err != nil || state.Owner != "blue" || state.Row == nil || state.Replicas == nil {
		t.Error(state, err)
	}
	published, _, err := table.Read(ctx, checkout)
	if err != nil || len(published.Members) != 1 {
		t.Error(published, err)
	}
	if err := member.Leave(ctx, "a/1"); err != nil {
		t.Error(err)
	}
}
