package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

func TestTwoInstallationsOnOneRedis(t *testing.T) {
	t.Parallel()
	c := kube.APIServer(t)
	redis := env.Redis(t, env.RedisOptions{})
	first, second := install(t, c), install(t, c)
	mine, theirs := createNamespace(t, c, "mine"), createNamespace(t, c, "theirs")

	// Each looks after a namespace of its own, in a table of its own.
	first.looksAfter, second.looksAfter = []string{mine}, []string{theirs}
	first.start(redis.Addr)
	m := second.start(redis.Addr)
	a := newWorkload(t, c, mine, redis.Addr, first.namespace)
	b := newWorkload(t, c, theirs, redis.Addr, second.namespace)
	a.deploy(1)
	b.deploy(1)
	a.limit("login", 5)
	b.limit("export", 10)
	kept := a.waitRow(hasPolicies("login"))
	b.waitRow(hasPolicies("export"))
	for table, other := range map[string]policy.Workload{first.namespace: b.Workload, second.namespace: a.Workload} {
		members, err := a.redis.SMembers(t.Context(), "weir:"+table+":workloads").Result()
		if err != nil || len(members) != 1 || members[0] == other.String() {
			t.Errorf("table %s has workloads %v (%v)", table, members, err)
		}
	}
	m.process.Stop(10 * time.Second)

	// The second one is told the first one's table.
	m = second.start(redis.Addr, "--table="+first.namespace)
	b.waitCondition("export", v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonTableOwnedElsewhere)
	b.waitCondition("export", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTableOwnedElsewhere)
	for _, kind := range []string{"row", "tombstone", "replicas"} {
		if got := m.metric(`weir_controller_table_writes_total{kind="` + kind + `"}`); got != 0 {
			t.Errorf("%v writes of kind %s to somebody else's table", got, kind)
		}
	}
	if row, _, err := a.read(t.Context()); err != nil || row.Revision != kept.Revision {
		t.Errorf("the first one's row is %v (%v), was %v", row.Revision, err, kept.Revision)
	}
}

// B57: a leader is stopped for 40 s, which is more than two Leases, with a write on its way to Redis. The other one leads and
// writes. Then the write arrives, and the former leader wakes up: the write is refused, the process ends, and nobody who
// reads the table ever saw anything older than what he had seen.
func TestALeaderThatSleptEnds(t *testing.T) {
	const lease, resync = 15 * time.Second, time.Second
	i, redis, w := setting(t)
	w.deploy(1)
	e := w.enforce("checkout-a")
	way := newGate(t, redis.Addr, `"requests":7`)
	asleep := i.start(way.addr, "--resync="+resync.String())
	w.limit("login", 6)
	first := w.waitRow(hasPolicies("login"))
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	next := i.start(redis.Addr, "--resync="+resync.String())
	stop := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- w.neverOlder(first.Revision, stop) }()
	t.Cleanup(func() {
		close(stop)
		if err := <-watched; err != nil {
			t.Error(err)
		}
	})

	way.arm()
	w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(7)) })
	select {
	case <-way.caught:
	case <-time.After(patience):
		t.Fatal("the leader did not write the edit")
	}
	asleep.signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = asleep.process.Signal(syscall.SIGCONT) })
	began := time.Now()
	generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(8)) })
	row := w.waitRow(func(row policy.Row) error {
		if row.Policies[0].Generation != generation {
			return errors.New("nobody has written the edit")
		}
		return nil
	})
	took := time.Since(began)
	t.Logf("the other one had written %v after the leader fell asleep", took)
	if most := 2 * (lease + resync); took > most { // twice, for a busy machine
		t.Errorf("nobody wrote for %v, want at most %v", took, lease+resync)
	}

	<-time.After(max(0, 40*time.Second-time.Since(began)))
	close(way.open)
	eventually(t, func(context.Context) error {
		if !strings.Contains(way.answered(), string(policy.RefusedRevision)) {
			return fmt.Errorf("Redis answers the former leader's write with %q", way.answered())
		}
		return nil
	})
	asleep.signal(syscall.SIGCONT)
	select {
	case <-asleep.process.Done():
	case <-time.After(patience):
		t.Fatal("the former leader goes on")
	}
	var exit *exec.ExitError
	if !errors.As(asleep.process.Err(), &exit) || exit.ExitCode() != 1 {
		t.Errorf("the former leader ended with %v, want exit code 1", asleep.process.Err())
	}
	held, _, err := w.read(t.Context())
	if err != nil || held.Revision.Compare(row.Revision) < 0 || held.Rules[0].Limits[0].Requests != 8 {
		t.Errorf("the row is %v (%v), was %v", held, err, row.Revision)
	}
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, row.Revision) })
	if err := next.ready(t.Context()); err != nil {
		t.Errorf("the new leader: %v", err)
	}
}

// Redis is restored from a backup: rows, fences and owner are those of before. The pods keep what they have, and the leader
// writes above what they report.
func TestARestoredRedisTakesNothingBack(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	e := w.enforce("checkout-a")
	i.start(redis.Addr, "--resync=1s")
	w.limit("login", 5)
	old := w.waitRow(hasPolicies("login"))
	w.waitReplicas(1)
	backup := w.dump()
	var last policy.Row
	for _, requests := range []int64{6, 7} {
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = &requests })
		last = w.waitRow(func(row policy.Row) error {
			if row.Policies[0].Generation != generation {
				return errors.New("nobody has written the edit")
			}
			return nil
		})
	}
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, last.Revision) })

	for key, value := range backup {
		if err := w.redis.RestoreReplace(t.Context(), key, 0, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	again := w.waitRow(func(row policy.Row) error {
		if got := row.Rules[0].Limits[0].Requests; got != 7 {
			return fmt.Errorf("the row of the backup stays: %d requests, revision %v", got, row.Revision)
		}
		return nil
	})
	if again.Revision.Compare(last.Revision) <= 0 || again.Revision.Compare(old.Revision) <= 0 {
		t.Errorf("revision %v is not above %v, which pods run", again.Revision, last.Revision)
	}
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, again.Revision) })
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
}

// dump is what the table consists of, but for the members, which report by themselves.
func (w *workload) dump() map[string]string {
	w.t.Helper()
	dumped := map[string]string{}
	for _, kind := range []string{"row:*", "replicas:*", "fence:*", "owner", "workloads"} {
		keys, err := w.redis.Keys(w.t.Context(), "weir:"+w.table+":"+kind).Result()
		if err != nil || len(keys) != 1 {
			w.t.Fatalf("keys %s: %v (%v), want one", kind, keys, err)
		}
		if dumped[keys[0]], err = w.redis.Dump(w.t.Context(), keys[0]).Result(); err != nil {
			w.t.Fatal(err)
		}
	}
	return dumped
}

// Somebody deletes the Lease while a leader runs, and again before the next one starts. It is the same installation: the
// table stays its own, with no wait of five minutes, and revisions rise.
func TestARecreatedLeaseIsTheSameInstallation(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	m := i.start(redis.Addr, "--resync=1s")
	w.limit("login", 5)
	before := w.waitRow(hasPolicies("login"))

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: "weir-controller-manager"}}
	edited := func(requests int64) policy.Row {
		generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = &requests })
		return w.waitRow(func(row policy.Row) error {
			if row.Policies[0].Generation != generation {
				return fmt.Errorf("the row has generation %d", row.Policies[0].Generation)
			}
			return nil
		})
	}
	w.remove(lease)
	while := edited(6)
	if while.Revision.Compare(before.Revision) <= 0 {
		t.Errorf("revision %v is not above %v", while.Revision, before.Revision)
	}
	m.process.Stop(10 * time.Second)

	w.remove(lease)
	i.start(redis.Addr, "--resync=1s")
	after := edited(7)
	if after.Revision.Compare(while.Revision) <= 0 {
		t.Errorf("revision %v is not above %v", after.Revision, while.Revision)
	}
	if after.Owner != before.Owner {
		t.Errorf("owner %s, was %s", after.Owner, before.Owner)
	}
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// Without an election the last one started takes the Lease, and the one before ends when its write is refused.
func TestWithoutElectionTheLastOneStartedWrites(t *testing.T) {
	i, redis, w := setting(t)
	d := w.deploy(1)
	first := i.start(redis.Addr, "--leader-elect=false", "--resync=1s")
	w.limit("login", 5)
	before := w.waitRow(hasPolicies("login"))
	w.waitReplicas(1)
	first.signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = first.process.Signal(syscall.SIGCONT) })

	i.start(redis.Addr, "--leader-elect=false", "--resync=1s")
	w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(6)) })
	w.waitRow(func(row policy.Row) error {
		if policy.CompareEpochs(row.Revision.Epoch, before.Revision.Epoch) <= 0 {
			return errors.New("the second one has not written")
		}
		return nil
	})

	first.signal(syscall.SIGCONT)
	for n := int32(2); ; n++ { // both count each change, and sooner or later the first one tries to write it
		d.Spec.Replicas = new(n)
		if err := w.admin.Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		w.waitReplicas(int(n))
		select {
		case <-first.process.Done():
		case <-time.After(2 * time.Second):
			if n < 20 {
				continue
			}
			t.Fatal("the first one goes on")
		}
		break
	}
	if log := first.logged(); !strings.Contains(log, "the Lease is held by another process") {
		t.Errorf("the first one does not say why it ended:\n%s", log)
	}
}

// The API server was restored from a backup: resourceVersions and generations are lower than those in the table.
func TestALeaderGoesOnAfterItsAPIServerWasRestored(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	m := i.start(redis.Addr)
	w.limit("login", 5)
	row := w.waitRow(hasPolicies("login"))
	m.process.Stop(10 * time.Second)

	row.Revision = policy.Revision{Epoch: "900000000", N: 3}
	row.PolicyList = "900000000"
	row.Policies[0].Generation = 99
	row.Rules[0].Limits[0].Requests = 1000
	w.overwrite(row)
	e := w.enforce("checkout-a")
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, row.Revision) })

	i.start(redis.Addr)
	again := w.waitRow(func(row policy.Row) error {
		if row.Rules[0].Limits[0].Requests != 5 {
			return errors.New("the row is still that of the future")
		}
		return nil
	})
	if again.Revision.Compare(row.Revision) <= 0 {
		t.Errorf("revision %v is not above %v", again.Revision, row.Revision)
	}
	eventually(t, func(context.Context) error { return acknowledged([]*enforcer{e}, again.Revision) })
	w.waitCondition("login", v1alpha1.ConditionEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
}

// overwrite puts a row into the table past all fences.
func (w *workload) overwrite(row policy.Row) {
	w.t.Helper()
	body, err := json.Marshal(row)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.redis.Set(w.t.Context(), "weir:"+w.table+":row:{"+w.String()+"}", body, 0).Err(); err != nil {
		w.t.Fatal(err)
	}
}

func TestARowOfANewerControllerIsLeftAlone(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	m := i.start(redis.Addr)
	w.limit("login", 5)
	row := w.waitRow(hasPolicies("login"))
	m.process.Stop(10 * time.Second)
	row.Version = 2
	w.overwrite(row)

	i.start(redis.Addr, "--resync=1s")
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonNewerTable)
	if _, _, err := w.read(t.Context()); !errors.Is(err, policy.ErrNewerVersion) {
		t.Errorf("the newer row was replaced: %v", err)
	}

	// The way back that docs/compatibility.md shows.
	if err := w.redis.Del(t.Context(), "weir:"+w.table+":row:{"+w.String()+"}").Err(); err != nil {
		t.Fatal(err)
	}
	w.waitRow(hasPolicies("login"))
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

func TestACorruptRowIsReplaced(t *testing.T) {
	i, redis, w := setting(t)
	w.deploy(1)
	i.start(redis.Addr, "--resync=1s")
	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	if err := w.redis.Set(t.Context(), "weir:"+w.table+":row:{"+w.String()+"}", `{"v":1,"rules":[{}]`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.waitRow(hasPolicies("login"))
}

// neverOlder reads the row over and over and says when it goes back.
func (w *workload) neverOlder(than policy.Revision, stop <-chan struct{}) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-ticker.C:
		}
		row, _, err := w.read(context.Background())
		if err != nil {
			return err
		}
		if row.Revision.Compare(than) < 0 {
			return fmt.Errorf("a reader saw revision %v after %v", row.Revision, than)
		}
		than = row.Revision
	}
}
