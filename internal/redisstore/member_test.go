package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

func heartbeat(t *testing.T, m *Member, name string) enforcer.Standing {
	t.Helper()
	standing, err := m.Heartbeat(t.Context(), policy.Report{Member: name + "/1", Pod: name}, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return standing
}

func TestRanksAreStableAndVersionsGrow(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	m := w.member()
	a := heartbeat(t, m, "pod-z")
	within(t, 10*time.Second, func(context.Context) error { // ranks go by the time of joining, in ms
		if now := w.admin.Time(t.Context()).Val(); now.UnixMilli() <= a.Now/1000 {
			return fmt.Errorf("still %v", now)
		}
		return nil
	})
	b := heartbeat(t, m, "pod-a")
	if a.Rank != 0 || a.Count != 1 || b.Rank != 1 || b.Count != 2 || b.Version <= a.Version {
		t.Errorf("%+v, then %+v", a, b)
	}
	again := heartbeat(t, m, "pod-z")
	if again.Rank != 0 || again.Count != 2 || again.Version != b.Version || again.Now < b.Now {
		t.Errorf("a second heartbeat: %+v after %+v", again, b)
	}

	// Not heard for three polls.
	ctx := t.Context()
	deadlines := m.keys.deadlines(checkout)
	score := w.admin.ZScore(ctx, deadlines, "pod-z/1").Val()
	if left := time.Duration(score-float64(again.Now/1000)) * time.Millisecond; left < 14*time.Second || left > 15*time.Second {
		t.Errorf("live for %v, want three polls of 5 s", left)
	}
	w.admin.ZAdd(ctx, deadlines, redis.Z{Score: 1, Member: "pod-z/1"})
	alone := heartbeat(t, m, "pod-a")
	if alone.Rank != 0 || alone.Count != 1 || alone.Version <= again.Version {
		t.Errorf("after the other was not heard: %+v", alone)
	}
	if left := w.admin.HKeys(ctx, m.keys.reports(checkout)).Val(); len(left) != 1 {
		t.Errorf("reports of %v are left", left)
	}

	// The version outlives its loss, alone or with everything.
	w.admin.Del(ctx, m.keys.membership(checkout))
	if got := heartbeat(t, m, "pod-a"); got.Version <= alone.Version {
		t.Errorf("after the version was lost: %+v", got)
	}
	w.admin.FlushAll(ctx)
	if got := heartbeat(t, m, "pod-a"); got.Version <= alone.Version || got.Count != 1 {
		t.Errorf("after everything was lost: %+v", got)
	}
	for _, key := range memberKeys(m.keys, checkout) {
		if ttl := w.admin.PTTL(ctx, key).Val(); ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
}

func TestTheControllerSeesLiveMembersOnly(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	m := w.member()
	table := w.claimed(t, "blue")
	heartbeat(t, m, "pod-a")
	last := heartbeat(t, m, "pod-b")
	w.admin.HSet(ctx, m.keys.reports(checkout), "forged", "{", "empty", "")
	w.admin.ZAdd(ctx, m.keys.deadlines(checkout), redis.Z{Score: 1, Member: "pod-a/1"})
	published, _, err := table.Read(ctx, checkout)
	if err != nil {
		t.Fatal(err)
	}
	if len(published.Members) != 1 || published.Members[0].Member != "pod-b/1" || published.MembersVersion <= last.Version {
		t.Errorf("%+v", published)
	}
	if err := m.Leave(ctx, "nobody"); err != nil {
		t.Error(err)
	}
	if again, _, err := table.Read(ctx, checkout); err != nil || again.MembersVersion != published.MembersVersion {
		t.Errorf("nobody left, and the version went from %d to %d (%v)", published.MembersVersion, again.MembersVersion, err)
	}
}

func TestListenOutlivesTheServer(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hints := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() { ended <- w.member().Listen(ctx, func() { hints <- struct{}{} }) }()
	hear := func(what string) {
		t.Helper()
		select {
		case <-hints:
		case err := <-ended:
			t.Fatalf("%s: Listen ended with %v", what, err)
		case <-ctx.Done():
			t.Fatalf("no hint: %s", what)
		}
	}
	hear("subscribed")
	w.server.Restart()
	hear("subscribed again")
	if err := w.admin.Publish(ctx, newKeys(testTable).changed(checkout), "row").Err(); err != nil {
		t.Fatal(err)
	}
	hear("a message")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen ended with %v", err)
	}
}

func TestListenEndsWhereItMayNot(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	other := NewMember(w.application, testTable, policy.Workload{Namespace: "pay", Group: "apps", Kind: "Deployment", Name: "x"})
	if err := other.Listen(t.Context(), func() {}); reasonOf(err) != enforcer.ReasonAuth {
		t.Errorf("%v, want NOPERM", err)
	}
}
