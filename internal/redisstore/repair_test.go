package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

// damages are what can stand in the place of a key; each has a type of its own.
var damages = map[string]func(ctx context.Context, c redis.UniversalClient, key string) error{
	"string": func(ctx context.Context, c redis.UniversalClient, key string) error {
		return c.Set(ctx, key, "x", 0).Err()
	},
	"list": func(ctx context.Context, c redis.UniversalClient, key string) error {
		return c.RPush(ctx, key, "x").Err()
	},
	"hash": func(ctx context.Context, c redis.UniversalClient, key string) error {
		return c.HSet(ctx, key, "x", "y").Err()
	},
	"zset": func(ctx context.Context, c redis.UniversalClient, key string) error {
		return c.ZAdd(ctx, key, redis.Z{Member: "x"}).Err()
	},
}

// typed are the keys of a workload by their kinds, and the type of each.
func typed(k keys) map[string][2]string {
	return map[string][2]string{
		"row": {k.row(checkout), "string"}, "replicas": {k.replicas(checkout), "string"},
		"fence": {k.fence(checkout), "hash"}, "membership": {k.membership(checkout), "string"},
		"members": {k.members(checkout), "zset"}, "deadlines": {k.deadlines(checkout), "zset"},
		"reports": {k.reports(checkout), "hash"},
	}
}

// eachDamage runs a test for each key and each type that is not its own, on a table where a row, a count and two members
// are. The text "x" is the version of no set either.
func eachDamage(t *testing.T, test func(t *testing.T, w *world, table *Table, kind string)) {
	w := newWorld(t, env.RedisOptions{})
	for kind, key := range typed(newKeys(testTable)) {
		for damage, inflict := range damages {
			if damage == key[1] && kind != "membership" {
				continue
			}
			t.Run(kind+" is a "+damage, func(t *testing.T) {
				ctx := t.Context()
				w.admin.FlushAll(ctx)
				table := w.claimed(t, "blue")
				mustPublish(t, table, rowOf("blue", "100", 1, nil), policy.Accepted)
				mustCount(t, table, "100", policy.Accepted)
				heartbeat(t, w.member(), "pod-a")
				heartbeat(t, w.member(), "pod-b")
				w.admin.Del(ctx, key[0])
				if err := inflict(ctx, w.admin, key[0]); err != nil {
					t.Fatal(err)
				}
				test(t, w, table, kind)
				for kind, key := range typed(newKeys(testTable)) {
					if got := w.admin.Type(ctx, key[0]).Val(); got != key[1] {
						t.Errorf("%s is a %s in the end, want a %s", kind, got, key[1])
					}
				}
			})
		}
	}
}

func TestAControllerReplacesKeysOfAnotherType(t *testing.T) {
	eachDamage(t, func(t *testing.T, w *world, table *Table, kind string) {
		ctx := t.Context()
		before, repaired, err := table.Read(ctx, checkout)
		if err != nil || !slices.Equal(repaired, []string{kind}) {
			t.Fatalf("repaired %v, %v, want %s", repaired, err, kind)
		}
		if lost := before.Row == nil; lost != (kind == "row") {
			t.Errorf("the row is lost: %v", lost)
		}
		if lost := before.Replicas == nil; lost != (kind == "replicas") {
			t.Errorf("the count is lost: %v", lost)
		}
		if lost := before.Epoch == ""; lost != (kind == "fence") {
			t.Errorf("the epoch is lost: %v", lost)
		}
		if before.MembersVersion == 0 {
			t.Error("the members have no version")
		}
		mustPublish(t, table, rowOf("blue", "100", 2, nil), policy.Accepted)
		mustCount(t, table, "100", policy.Accepted)
		heartbeat(t, w.member(), "pod-a")
		heartbeat(t, w.member(), "pod-b")
		after, repaired, err := table.Read(ctx, checkout)
		if err != nil || len(repaired) > 0 || after.Row == nil || after.Replicas == nil || after.Epoch != "100" {
			t.Errorf("afterwards %+v, repaired %v, %v", after, repaired, err)
		}
		if len(after.Members) != 2 || after.MembersVersion < before.MembersVersion {
			t.Errorf("members %v of version %d, after version %d", after.Members, after.MembersVersion, before.MembersVersion)
		}
	})
}

// Between two looks of the controller, or while there is none.
func TestAnEnforcerGoesOnOverKeysOfAnotherType(t *testing.T) {
	eachDamage(t, func(t *testing.T, w *world, table *Table, kind string) {
		state, err := w.member().Read(t.Context())
		if err != nil || (state.Row == nil) != (kind == "row") || (state.Replicas == nil) != (kind == "replicas") {
			t.Errorf("reads %+v, %v", state, err)
		}
		a, b := heartbeat(t, w.member(), "pod-a"), heartbeat(t, w.member(), "pod-b")
		if b.Count != 2 || b.Version == 0 || b.Version < a.Version {
			t.Errorf("%+v, then %+v", a, b)
		}
		if err := w.member().Leave(t.Context(), "pod-b/1"); err != nil {
			t.Error(err)
		}
		// A write without a look before it is not kept from its key either.
		mustCount(t, table, "100", policy.Accepted)
		mustPublish(t, table, rowOf("blue", "100", 2, nil), policy.Accepted)
	})
}

// A member that is never heard again must not stay for ever because its deadline was lost.
func TestMembersGoWithTheirDeadlines(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	m := w.member()
	heartbeat(t, m, "pod-dead")
	w.admin.Set(ctx, m.keys.deadlines(checkout), "x", 0)
	if alone := heartbeat(t, m, "pod-a"); alone.Count != 1 || alone.Rank != 0 {
		t.Errorf("%+v, want it to be alone", alone)
	}
	if left := w.admin.HKeys(ctx, m.keys.reports(checkout)).Val(); !slices.Equal(left, []string{"pod-a/1"}) {
		t.Errorf("reports of %v are left", left)
	}
}

// What an application may do to its own namespace's keys, with the rights of config/redis.
func TestAnApplicationDamagesNobodyElse(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	table := w.claimed(t, "blue")
	mustPublish(t, table, rowOf("blue", "100", 1, nil), policy.Accepted)
	for key, value := range map[string]string{
		table.keys.members(checkout): "x", table.keys.deadlines(checkout): "x", table.keys.reports(checkout): "x",
		table.keys.membership(checkout): "1996027521765555",
	} {
		if err := w.application.Set(ctx, key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	_, repaired, err := table.Read(ctx, checkout)
	if diff := cmp.Diff([]string{"members", "deadlines", "reports"}, repaired); diff != "" || err != nil {
		t.Errorf("%v, repaired (-want +got):\n%s", err, diff)
	}
	if standing := heartbeat(t, w.member(), "pod-a"); standing.Version <= 1996027521765555 {
		t.Errorf("version %d is not above the one that was set", standing.Version)
	}
	for _, damage := range []string{"9007199254740992", "1e300", "-1", "0x10", "nan", " 7"} {
		if err := w.application.Set(ctx, table.keys.membership(checkout), damage, 0).Err(); err != nil {
			t.Fatal(err)
		}
		published, repaired, err := table.Read(ctx, checkout)
		if err != nil || !slices.Equal(repaired, []string{"membership"}) || published.MembersVersion < 1 {
			t.Errorf("version %q reads as %d, repaired %v, %v", damage, published.MembersVersion, repaired, err)
		}
	}
}

// A fence of another type is like one that was lost with the store: what readers hold still does not go back.
func TestADamagedFenceLetsNobodyGoBack(t *testing.T) {
	for name, look := range map[string]bool{"at a write": false, "at a look": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, env.RedisOptions{})
			paused, leader := w.claimed(t, "blue"), w.claimed(t, "blue")
			mustPublish(t, paused, rowOf("blue", "100", 7, nil), policy.Accepted)
			mustPublish(t, leader, rowOf("blue", "101", 1, nil), policy.Accepted)
			w.admin.Set(t.Context(), leader.keys.fence(checkout), "x", 0)
			if look {
				if _, repaired, err := paused.Read(t.Context(), checkout); err != nil || !slices.Equal(repaired, []string{"fence"}) {
					t.Fatalf("repaired %v, %v", repaired, err)
				}
			}
			mustPublish(t, paused, rowOf("blue", "100", 8, nil), policy.RefusedRevision)
			mustPublish(t, leader, rowOf("blue", "101", 2, nil), policy.Accepted)
			mustPublish(t, paused, rowOf("blue", "100", 9, nil), policy.RefusedRevision)
			mustCount(t, paused, "100", policy.RefusedRevision)
		})
	}
}

func TestASetOfWorkloadsOfAnotherTypeIsReplaced(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	table := w.claimed(t, "blue")
	w.admin.Set(ctx, table.keys.workloads(), "x", 0)
	if got, err := table.Workloads(ctx); err != nil || len(got) > 0 {
		t.Errorf("lists %v, %v", got, err)
	}
	if err := table.Forget(ctx, checkout); err != nil {
		t.Error(err)
	}
	mustPublish(t, table, rowOf("blue", "100", 1, nil), policy.Accepted)
	if got, err := table.Workloads(ctx); err != nil || !slices.Equal(got, []policy.Workload{checkout}) {
		t.Errorf("lists %v, %v", got, err)
	}
}

// What is about the keys of one workload, and what any workload may meet.
func TestFaultsOfAWorkloadAreNoOutage(t *testing.T) {
	for text, want := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value":                        true,
		"ERR user_script:7: attempt to index a nil value script: f00, on @user_script:7.":          true,
		"ERR Error running script (call to f_00): @user_script:7: user_script:7: attempt to index": true,
		"LOADING Redis is loading the dataset in memory":                                           false,
		"READONLY You can't write against a read only replica.":                                    false,
		"ERR Error running script (call to f_00): @user_script:7: @user_script: 7: -OOM command":   false,
		"OOM command not allowed when used memory > 'maxmemory'. script: f00, on @user_script:7.":  false,
		"MISCONF Redis is configured to save RDB snapshots":                                        false,
		"NOAUTH Authentication required.":                                                          false,
		"NOPERM User weir-controller has no permissions to access one of the keys":                 false,
		"CLUSTERDOWN Hash slot not served":                                                         false,
		"CROSSSLOT Keys in request don't hash to the same slot":                                    false,
		"MOVED 1 127.0.0.1:1":                  false,
		"BUSY Redis is busy running a script.": false,
		"ERR max number of clients reached":    false,
		"ERR unknown command 'EVALSHA'":        false,
	} {
		if got := isOfWorkload(ofWorkload(classify(redisReply(text)))); got != want {
			t.Errorf("%s: of one workload %v, want %v", text, got, want)
		}
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"a reply of another script": {fmt.Errorf("%w: x", errReply), true},
		"a late answer":             {context.DeadlineExceeded, false},
		"an end":                    {context.Canceled, false},
		"no connection":             {&enforcer.StoreError{Reason: enforcer.ReasonRefused, Err: redis.ErrClosed}, false},
	} {
		if got := isOfWorkload(ofWorkload(classify(c.err))); got != c.want {
			t.Errorf("%s: of one workload %v, want %v", name, got, c.want)
		}
	}
	w := newWorld(t, env.RedisOptions{})
	table := w.claimed(t, "blue")
	w.server.Stop()
	if _, _, err := table.Read(t.Context(), checkout); err == nil || isOfWorkload(err) {
		t.Errorf("a server that ended: %v", err)
	}
}

// redisReply is an error reply of a server.
type redisReply string

func (r redisReply) Error() string { return string(r) }
func (redisReply) RedisError()     {}

func isOfWorkload(err error) bool {
	fault, ok := err.(interface{ OfWorkload() bool })
	return ok && fault.OfWorkload()
}

var _ redis.Error = redisReply("")

// A server that is behind a pause must not be taken for one workload's fault either: every deadline is the table's.
func TestALateTableIsAnOutage(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	table := w.claimed(t, "blue")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w.admin.Do(t.Context(), "client", "pause", "500", "all")
	if _, _, err := table.Read(ctx, checkout); err == nil || isOfWorkload(err) {
		t.Errorf("a late table: %v", err)
	}
}
