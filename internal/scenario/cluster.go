package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	// owner is the installation that writes the virtual table.
	owner = "scenario"
	// age is how long the first replicas have run when a scenario starts: longer than every window, so that nothing is
	// new about them.
	age = 32 * 24 * time.Hour
)

// cluster is the workload's replicas, the policy table, and what controller and kubelet do.
type cluster struct {
	s       *Scenario
	world   *world
	backend *backend
	table   *table

	// all is the store's condition for replicas that have none of their own.
	all *condition
	own map[int]*condition

	pods       []*pod // by index: those that serve
	scale      Scale
	starting   int // processes that serve whoever finds them, and are not ready yet
	recount    *timer
	policies   []policy.Policy
	generation map[string]int64 // of each policy that ever was, by name

	// What the controller last made, and what it last knew of the table.
	row      policy.Row
	revision int64
	verdicts []policy.Verdict
	encoded  []byte
	replicas *policy.Replicas
	members  []policy.Report
	version  int64
	mounted  []mountedState

	// controller tells statuses; nil when no step looks at one.
	controller Controller
	statuses   map[string][]byte

	// live says that things take their time from now on: the scenario has begun, and its propagation is Real.
	live    bool
	settled int64 // when settle was last called
	closed  bool
	failed  error // of a pass that nobody waited for
}

// mountedState is what the ConfigMap held from a time on.
type mountedState struct {
	at    int64
	state enforcer.TableState
}

// pod is one replica: a process with an enforcer.
type pod struct {
	index    int
	name     string
	runtime  *runtime
	enforcer *enforcer.Enforcer
	local    *memstore.Store
}

// newCluster starts the first replicas long ago.
func newCluster(s *Scenario, w *world, b *backend) *cluster {
	c := &cluster{
		s: s, world: w, backend: b, table: &table{world: w},
		all: new(condition), own: make(map[int]*condition), generation: make(map[string]int64),
	}
	for _, source := range s.Policies {
		for _, p := range source.Policies {
			if p.Workload() == s.target() {
				c.apply(p)
			}
		}
	}
	return c
}

// condition is the store's for one replica.
func (c *cluster) condition(index int) *condition {
	if own, ok := c.own[index]; ok {
		return own
	}
	return c.all
}

// apply is kubectl apply.
func (c *cluster) apply(p policy.Policy) {
	c.generation[p.Metadata.Name]++
	p.Metadata.Generation = c.generation[p.Metadata.Name]
	if p.Metadata.UID == "" {
		p.Metadata.UID = "uid-of-" + p.Metadata.Name
	}
	for i := range c.policies {
		if c.policies[i].Metadata.Name == p.Metadata.Name {
			p.Metadata.CreationTimestamp = c.policies[i].Metadata.CreationTimestamp
			c.policies[i] = p
			return
		}
	}
	if p.Metadata.CreationTimestamp.IsZero() {
		p.Metadata.CreationTimestamp = time.UnixMicro(c.world.now).UTC()
	}
	c.policies = append(c.policies, p)
}

func (c *cluster) deletePolicy(name string) {
	kept := c.policies[:0]
	for _, p := range c.policies {
		if p.Metadata.Name != name {
			kept = append(kept, p)
		}
	}
	c.policies = kept
}

// scaleTo sets the pods. Those that are ready or terminating serve, and have an enforcer.
func (c *cluster) scaleTo(scale Scale) {
	c.scale = scale
	serving := scale.Ready + scale.Terminating + c.starting
	for len(c.pods) > serving {
		last := len(c.pods) - 1
		c.leave(c.pods[last])
		c.pods = c.pods[:last]
		delete(c.own, last)
	}
	for len(c.pods) < serving {
		c.pods = append(c.pods, c.start(len(c.pods), 0))
		c.polls(c.pods[len(c.pods)-1])
	}
}

// start starts the process of a replica, whose wall clock is off by offset.
func (c *cluster) start(index int, offset int64) *pod {
	p := &pod{
		index:   index,
		name:    fmt.Sprintf("%s-%d", c.s.Workload.Name, index),
		runtime: &runtime{world: c.world, offset: offset},
	}
	p.local = memstore.New(memstore.Options{Clock: c.backend.clock})
	state := func() *condition { return c.condition(index) }
	p.enforcer = enforcer.New(enforcer.Options{
		Store:               &faultyStore{backend: c.backend, world: c.world, state: state},
		Local:               p.local,
		Table:               &tableView{cluster: c, state: state},
		TrustedProxies:      append([]netip.Prefix(nil), c.s.TrustedProxies...),
		StoreTimeout:        time.Duration(c.s.Options.StoreTimeout),
		ClosedWithoutPolicy: c.s.Options.WhenNoPolicy == Closed,
		Pod:                 p.name,
		Library:             "scenario",
		Runtime:             p.runtime,
	})
	return p
}

// leave ends the process of a replica in good order.
func (c *cluster) leave(p *pod) {
	if c.condition(p.index).refuses() != nil {
		return
	}
	for _, m := range c.table.members {
		if m.report.Pod == p.name {
			c.table.leave(m.report.Member)
			return
		}
	}
}

// restart ends the process of a replica and starts another.
func (c *cluster) restart(index int) {
	old := c.pods[index]
	c.leave(old)
	c.pods[index] = c.start(index, old.runtime.offset)
	c.polls(c.pods[index])
}

// reconcile is a pass of the controller.
func (c *cluster) reconcile() error {
	reachable := c.all.refuses() == nil
	if reachable {
		c.members, c.version = c.table.reports(), c.table.version
	}
	if err := c.compile(); err != nil {
		return err
	}
	counted, lookAgain := policy.CountReplicas(c.deployment(), len(c.members), c.version, c.replicas, c.world.now)
	c.replicas = &counted
	if c.recount != nil {
		c.world.timers.stop(c.recount)
		c.recount = nil
	}
	if lookAgain > 0 && !c.closed {
		c.recount = c.world.after(lookAgain, func() { c.world.runnable = append(c.world.runnable, c.recounted) })
	}
	replicas, err := policy.EncodeReplicas(counted)
	if err != nil {
		return err
	}
	if reachable {
		c.table.row, c.table.replicas, c.table.askedForRow = c.encoded, replicas, false
	}
	state := enforcer.TableState{Row: c.encoded, Replicas: replicas, Owner: owner}
	if n := len(c.mounted); n == 0 || !bytes.Equal(c.mounted[n-1].state.Row, state.Row) || !bytes.Equal(c.mounted[n-1].state.Replicas, replicas) {
		c.mounted = append(c.mounted, mountedState{c.world.now, state})
	}
	return c.observe()
}

// compile makes the row, with a new revision if it asks something else of the replicas than the last one.
func (c *cluster) compile() error {
	row, verdicts := policy.Compile(c.s.target(), owner, c.policies)
	c.verdicts = verdicts
	before := c.row
	before.Revision = policy.Revision{}
	if c.encoded != nil && sameJSON(before, row) {
		return nil
	}
	c.revision++
	row.Revision = policy.Revision{Epoch: "1", N: c.revision}
	encoded, err := policy.EncodeRow(row)
	if err != nil {
		return err
	}
	c.row, c.encoded = row, encoded
	return nil
}

func sameJSON(a, b any) bool {
	encodedA, errA := json.Marshal(a)
	encodedB, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(encodedA, encodedB)
}

// deployment is the workload's status as kubelet and deployment controller tell it.
func (c *cluster) deployment() policy.DeploymentStatus {
	desired := int32(c.scale.Desired)
	return policy.DeploymentStatus{
		UID:         "scenario",
		Observed:    true,
		Desired:     &desired,
		Replicas:    int32(max(c.scale.Desired, c.scale.Ready)),
		Ready:       int32(c.scale.Ready),
		Terminating: int32(c.scale.Terminating),
	}
}

// mountedState is what stands in the mounted file now.
func (c *cluster) mountedState() (enforcer.TableState, bool) {
	if !c.s.Snapshot.Mounted {
		return enforcer.TableState{}, false
	}
	for i := len(c.mounted) - 1; i >= 0; i-- {
		if c.mounted[i].at <= c.world.now-time.Duration(c.s.Snapshot.Delay).Microseconds() {
			return c.mounted[i].state, true
		}
	}
	return enforcer.TableState{}, false
}

// share is what a replica would admit on its own of a rule's first limit: for one identity, or without a key what is
// sure for every one.
func (c *cluster) share(p *pod, rule namedRule, key Lines) (algorithm.Limit, bool) {
	if key != nil || len(rule.rule.Key) == 0 {
		held, ok := p.enforcer.Held(rule.policy, rule.rule.Name, requestOf(rule.rule.Key, key))
		if !ok || len(held) == 0 {
			return algorithm.Limit{}, false
		}
		return held[0].Share, true
	}
	for _, r := range c.row.Rules {
		if r.Policy != rule.policy || r.Name != rule.rule.Name {
			continue
		}
		most := int64(1)
		if r.Cost != nil {
			most = r.Cost.Max
		}
		place := p.enforcer.Place()
		place.Exact = false
		share := policy.ShareOf(r.Limits[0], most, r.Rounding, place, 0)
		return algorithm.Limit{Requests: share.Requests, Window: share.Window, Burst: share.Burst}, true
	}
	return algorithm.Limit{}, false
}

// settlePasses bounds how often controller and replicas answer each other: a replica joins, is counted, and hears of it.
const settlePasses = 4

// settle brings everything that the controller and the replicas have to tell each other to where it is going.
func (c *cluster) settle() error {
	if c.live {
		return c.failed
	}
	c.settled = c.world.now
	c.hear()
	for range settlePasses {
		version, revision := c.table.version, c.revision
		if err := c.reconcile(); err != nil {
			return err
		}
		for _, p := range c.pods {
			c.world.do(func() { c.poll(p) })
		}
		if c.table.version == version && c.revision == revision && !c.table.askedForRow {
			break
		}
	}
	if c.world.stuck != nil {
		return c.world.stuck
	}
	return c.failed
}

// missRow lets the replicas find the table without their row, before the controller writes it again.
func (c *cluster) missRow() {
	if c.live {
		return // they will, unless the controller is earlier
	}
	for _, p := range c.pods {
		c.world.do(func() { c.poll(p) })
	}
}

// recounted is a pass of the controller because time has passed or something has happened, called by a goroutine of the
// world.
func (c *cluster) recounted() {
	if err := c.reconcile(); err != nil {
		c.failed = err
		return
	}
	if c.live {
		c.hint()
		return
	}
	c.hear()
	for _, p := range c.pods {
		c.poll(p)
	}
}

// hear takes it that all replicas have reported since the last instant that was looked at.
func (c *cluster) hear() {
	for _, p := range c.pods {
		if c.condition(p.index).refuses() != nil {
			continue
		}
		for i := len(c.table.members) - 1; i >= 0; i-- {
			if c.table.members[i].report.Pod == p.name {
				c.table.members[i].stale = c.world.now + 1
				break
			}
		}
	}
}

// poll is one round of what a replica does in Run. Unless things take their time, a replica has found out when nothing
// is wrong with the store any more. Poll's error is the replica's own to tell: it goes by what it read last.
func (c *cluster) poll(p *pod) {
	_ = p.enforcer.Poll(context.Background())
	if !c.live && c.condition(p.index).healthy() {
		p.enforcer.Probe()
	}
}

func (c *condition) healthy() bool { return *c == condition{} }
