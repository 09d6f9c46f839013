package redisstore

import (
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
)

func mustClaim(t *testing.T, table *Table, epoch, want string) {
	t.Helper()
	owner, err := table.Claim(t.Context(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	if owner != want {
		t.Fatalf("%s claims the table of %s, want that of %s", table.installation, owner, want)
	}
}

func mustPublish(t *testing.T, table *Table, row policy.Row, want policy.Refusal) {
	t.Helper()
	refusal, err := table.Publish(t.Context(), checkout, row)
	if err != nil {
		t.Fatal(err)
	}
	if refusal != want {
		t.Fatalf("%s publishes %v: refused for %q, want %q", table.installation, row.Revision, refusal, want)
	}
}

func mustCount(t *testing.T, table *Table, epoch string, want policy.Refusal) {
	t.Helper()
	refusal, err := table.PublishReplicas(t.Context(), checkout, epoch, policy.Replicas{Version: 1, N: 3})
	if err != nil {
		t.Fatal(err)
	}
	if refusal != want {
		t.Fatalf("%s counts at %s: refused for %q, want %q", table.installation, epoch, refusal, want)
	}
}

func TestATableHasOneOwnerUntilItIsSilent(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	blue, green := NewTable(w.controller, testTable, "blue"), NewTable(w.controller, testTable, "green")
	mustPublish(t, blue, rowOf("blue", "100", 1, nil), policy.Accepted) // nobody has the table yet
	mustClaim(t, blue, "100", "blue")
	mustPublish(t, blue, rowOf("blue", "100", 2, nil), policy.Accepted)
	mustClaim(t, green, "5", "blue")
	mustPublish(t, green, rowOf("green", "900", 1, nil), policy.RefusedOwner)
	mustCount(t, green, "900", policy.RefusedOwner)

	green.holds = 0 // blue has been silent for long enough
	mustClaim(t, green, "5", "green")
	mustClaim(t, blue, "100", "green")
	mustPublish(t, green, rowOf("green", "5", 1, nil), policy.RefusedRevision) // readers hold 100/2
	mustPublish(t, green, rowOf("green", "101", 1, nil), policy.Accepted)
	// Blue does not know yet, or was stopped between its claim and its write.
	mustPublish(t, blue, rowOf("blue", "102", 1, nil), policy.RefusedOwner)
	mustCount(t, blue, "102", policy.RefusedOwner)

	blue.holds = 0
	mustClaim(t, blue, "100", "blue")
	mustPublish(t, blue, rowOf("blue", "102", 1, nil), policy.Accepted)
	mustPublish(t, green, rowOf("green", "103", 1, nil), policy.RefusedOwner)
}

func TestSilenceIsCountedFromNowWhenTheClockWasSetBack(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	blue, green := NewTable(w.controller, testTable, "blue"), NewTable(w.controller, testTable, "green")
	mustClaim(t, blue, "100", "blue")
	// Blue was heard a year ahead of today's clock.
	record := `{"installation":"blue","epoch":"100","term":"1","seen":"1899999999000000"}`
	if err := w.admin.Set(t.Context(), green.keys.owner(), record, 0).Err(); err != nil {
		t.Fatal(err)
	}
	green.holds = 0
	mustClaim(t, green, "1", "blue")
	mustClaim(t, green, "1", "green")
}

func TestTheOwnersRecordKeepsItsTermAndItsHighestEpoch(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	table := w.claimed(t, "blue")
	term := table.term.Load()
	mustClaim(t, table, "99", "blue")
	if table.term.Load() != term {
		t.Error("a second claim changes the term")
	}
	next := NewTable(w.controller, testTable, "blue") // another leader of the same installation
	mustClaim(t, next, "1000", "blue")
	mustClaim(t, table, "100", "blue")
	if got := next.term.Load(); got != term {
		t.Errorf("the next leader has term %d, want %d", got, term)
	}
	record := w.admin.Get(t.Context(), table.keys.owner()).Val()
	if ownerOf([]byte(record)) != "blue" {
		t.Errorf("record is %s", record)
	}
	for _, foreign := range []string{"", "not JSON", `{"installation":7}`, "[]"} {
		w.admin.Set(t.Context(), table.keys.owner(), foreign, 0)
		mustClaim(t, table, "100", "blue")
	}
	w.admin.Del(t.Context(), table.keys.owner())
	w.admin.RPush(t.Context(), table.keys.owner(), "x")
	mustClaim(t, table, "100", "blue")
}

func TestALaterTermIsHigherWhateverTheClockSays(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	green := NewTable(w.controller, testTable, "green")
	record := `{"installation":"blue","epoch":"100","term":"1899999999000000","seen":"1"}`
	if err := w.admin.Set(ctx, green.keys.owner(), record, 0).Err(); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, green, "1", "green")
	if term := green.term.Load(); term <= 1899999999000000 {
		t.Errorf("term %d is not above the former one", term)
	}
	w.admin.HSet(ctx, green.keys.fence(checkout), "owner", "blue", "term", green.term.Load(), "epoch", "1")
	mustPublish(t, green, rowOf("green", "100", 1, nil), policy.RefusedOwner)
	mustCount(t, green, "100", policy.RefusedOwner)
}

// A leader that was paused wakes up and writes what it had in its hands.
func TestB57APausedLeaderWritesNothing(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	a, b := w.claimed(t, "blue"), w.claimed(t, "blue")
	mustPublish(t, a, rowOf("blue", "100", 7, nil), policy.Accepted)
	// B leads, and so far has only counted replicas.
	mustCount(t, b, "101", policy.Accepted)
	mustPublish(t, a, rowOf("blue", "100", 8, nil), policy.RefusedRevision)
	mustCount(t, a, "100", policy.RefusedRevision)
	published, _, err := b.Read(t.Context(), checkout)
	if err != nil || published.Epoch != "101" {
		t.Fatalf("highest epoch is %q, want 101 (%v)", published.Epoch, err)
	}
	mustPublish(t, b, rowOf("blue", "101", 1, nil), policy.Accepted)
	mustPublish(t, a, rowOf("blue", "100", 9, nil), policy.RefusedRevision)
}

func TestTheLeaderGoesOnAfterTheTableWasLost(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	table := w.claimed(t, "blue")
	mustPublish(t, table, rowOf("blue", "100", 7, nil), policy.Accepted)
	w.admin.FlushAll(t.Context())
	mustPublish(t, table, rowOf("blue", "100", 8, nil), policy.Accepted)
	mustCount(t, table, "100", policy.Accepted)

	// The term from before the loss is not above one from after it.
	w.admin.FlushAll(t.Context())
	green := w.claimed(t, "green")
	mustPublish(t, table, rowOf("blue", "100", 9, nil), policy.Accepted)
	mustPublish(t, green, rowOf("green", "101", 1, nil), policy.Accepted)
	mustPublish(t, table, rowOf("blue", "102", 1, nil), policy.RefusedOwner)
}

func TestPublishReplacesWhatIsNoRowAndKeepsNewerOnes(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	table := w.claimed(t, "blue")
	key := table.keys.row(checkout)
	for name, c := range map[string]struct {
		held string
		want policy.Refusal
	}{
		"no JSON":                  {"garbage", policy.Accepted},
		"JSON of something else":   {`{"v":"1"}`, policy.Accepted},
		"a row without a revision": {`{"v":1,"owner":"blue"}`, policy.Accepted},
		"null":                     {"null", policy.Accepted},
		"a row without lists": {
			`{"v":1,"owner":"blue","revision":{"epoch":"1","n":1},"policies":null,"rules":null}`, policy.Accepted,
		},
		"a row of a newer version": {
			`{"v":2,"owner":"blue","revision":{"epoch":"1","n":1},"rules":[]}`, policy.RefusedVersion,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := w.admin.Set(t.Context(), key, c.held, 0).Err(); err != nil {
				t.Fatal(err)
			}
			mustPublish(t, table, rowOf("blue", "100", 1, nil), c.want)
		})
	}
	w.admin.Del(t.Context(), key)
	w.admin.RPush(t.Context(), key, "x")
	mustPublish(t, table, rowOf("blue", "100", 1, nil), policy.Accepted)
}

func TestTombstonesExpire(t *testing.T) {
	w := newWorld(t, env.RedisOptions{})
	ctx := t.Context()
	table := w.claimed(t, "blue")
	mustPublish(t, table, rowOf("blue", "100", 1, nil), policy.Accepted)
	mustCount(t, table, "100", policy.Accepted)
	lives := func(what, key string, least, most time.Duration) {
		t.Helper()
		if ttl := w.admin.PTTL(ctx, key).Val(); ttl < least || ttl > most {
			t.Errorf("%s lives for %v, want %v to %v", what, ttl, least, most)
		}
	}
	row, replicas, fence := table.keys.row(checkout), table.keys.replicas(checkout), table.keys.fence(checkout)
	for _, key := range []string{row, replicas, fence} {
		lives(key, key, -1, -1)
	}
	mustPublish(t, table, rowOf("blue", "100", 2, func(r *policy.Row) { r.Rules, r.Policies = nil, nil }), policy.Accepted)
	mustCount(t, table, "100", policy.Accepted)
	lives("the tombstone", row, 23*time.Hour, 24*time.Hour)
	lives("the count beside it", replicas, 23*time.Hour, 48*time.Hour)
	lives("the fence", fence, 47*time.Hour, 48*time.Hour)

	mustPublish(t, table, rowOf("blue", "100", 3, nil), policy.Accepted)
	for _, key := range []string{row, replicas, fence} {
		lives(key, key, -1, -1)
	}
	if err := table.Forget(ctx, checkout); err != nil {
		t.Fatal(err)
	}
	if workloads, err := table.Workloads(ctx); err != nil || len(workloads) != 0 {
		t.Errorf("%v, %v", workloads, err)
	}
}
