package enforcer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

const (
	// tableTimeout bounds one read or write of the table, which no decision waits for.
	tableTimeout = 2 * time.Second
	// retryMin is the first wait after a poll that failed; it doubles up to the poll interval.
	retryMin = 100 * time.Millisecond
	// hintSpread spreads the reads of many replicas that were told of the same change, or that start together.
	hintSpread = 50 * time.Millisecond
	// settleTime is how long the counted members must have stood before a replica takes a part of a remainder: until
	// then another one may still believe that the part is its own.
	settleTime = policy.Propagation
	// missingGrace is how long a readable table may hold no row before WaitReady takes it that there are no policies:
	// time for a controller to answer that it was asked for the row.
	missingGrace = time.Second
)

// tableView is what the last polls saw.
type tableView struct {
	row          []byte // the last that was read, so that an equal one is not decoded again
	refused      []byte // the last that was not taken, so that it is logged once
	counted      []byte // the last count that was read
	replicas     *policy.Replicas
	fromFile     bool  // the replicas are a snapshot's, later than what the table said
	replicasSeen int64 // monotonic µs since which the members that they count are the same
	standing     *Standing
	failing      bool
	told         string // why it fails, as it was logged
	missing      int64  // monotonic µs since which the table was read without a row, 0 while there is one
	started      int64  // on the store's clock
	// heard is the monotonic µs since which every poll succeeded, 0 after one that failed.
	heard int64
	// failed is when the last poll failed.
	failed  int64
	members crowd
}

// crowd is how many members live, by what the heartbeats of this replica said: the highest number of the last while.
// A fall counts once it has lasted: while the store was away members have expired, and come back one by one.
//
// It is a staircase: each step is lower than the one before it and was heard later, so the first is the highest.
type crowd []heardOf

// heardOf is a number of members and when (monotonic µs) it was last heard.
type heardOf struct {
	n  int
	at int64
}

// crowdHold is as long as a fall of pods has to last for the controller.
const crowdHold = 30 * time.Second

// hear takes the number of members that a heartbeat said.
func (c *crowd) hear(count int, now int64) {
	steps := slices.DeleteFunc(*c, func(step heardOf) bool {
		return step.n <= count || now-step.at >= crowdHold.Microseconds()
	})
	*c = append(steps, heardOf{count, now})
}

// miss takes a heartbeat that failed: a fall cannot have lasted through it.
func (c *crowd) miss(now int64) {
	if len(*c) > 0 {
		*c = crowd{{c.most(), now}}
	}
}

// most is the number that counts, 0 before the first heartbeat.
func (c crowd) most() int {
	if len(c) == 0 {
		return 0
	}
	return c[0].n
}

// Run keeps the policies current until ctx ends, and then takes this replica out of the members. Before and after it,
// decisions go by what was read last.
func (e *Enforcer) Run(ctx context.Context) error {
	hints := make(chan struct{}, 1)
	listening := make(chan error, 1)
	if e.options.Table != nil {
		go func() {
			listening <- e.options.Table.Listen(ctx, func() {
				select {
				case hints <- struct{}{}:
				default:
				}
			})
		}()
	}
	start := e.clock.monotonic()
	wait := retryMin
	hinted := false
	timer := time.NewTimer(rand.N(hintSpread))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.leave(ctx)
			return nil
		case err := <-listening:
			listening = nil // without hints the poll alone brings changes
			if ctx.Err() == nil && err != nil {
				e.log.Warn("Cannot listen for changes, only polling", "error", err)
			}
			continue
		case <-hints:
			if !hinted {
				hinted = true
				timer.Reset(rand.N(hintSpread))
			}
			continue
		case <-timer.C:
		}
		hinted = false
		err := e.Poll(ctx)
		if e.reportReady(err, start) {
			wait = retryMin
			timer.Reset(spread(e.options.PollInterval))
		} else {
			timer.Reset(spread(wait))
			wait = min(2*wait, e.options.PollInterval, max(e.options.StartTimeout/4, retryMin))
		}
	}
}

// spread draws a wait from the upper half, so that a thousand replicas do not poll at once.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

func (e *Enforcer) leave(ctx context.Context) {
	if e.options.Table == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tableTimeout)
	defer cancel()
	if err := e.options.Table.Leave(ctx, e.member); err != nil {
		e.log.Info("Could not leave the members, which forget this replica by themselves", "error", err)
	}
}

// Poll reads the snapshot files and the table once, takes what is new, and reports what is in force. If decisions are
// made without the store, it is also asked whether it is back, when it is time to.
func (e *Enforcer) Poll(ctx context.Context) error {
	e.poll.Lock()
	defer e.poll.Unlock()
	e.readFiles()
	var err error
	if e.options.Table == nil {
		err = e.pollWithoutTable()
	} else {
		err = e.pollTable(ctx)
	}
	e.keepFile()
	if e.breaker.open.Load() {
		e.probe()
	}
	return err
}

func (e *Enforcer) pollTable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	err := e.readTable(ctx)
	if err == nil {
		err = e.beat(ctx)
	}
	if err == nil {
		e.answered()
	}
	switch {
	case err == nil && e.table.failing:
		e.table.failing = false
		if !e.options.TableApart {
			e.noticed("the policy table could not be read", e.table.failed)
		}
		e.log.Info("Reads the policies again")
	case err != nil && ctx.Err() != context.Canceled:
		e.counts.polls.Add(1)
		e.table.heard, e.table.failed = 0, e.clock.monotonic()
		e.table.members.miss(e.table.failed)
		if e.table.fromFile {
			e.settle(e.table.failed) // nobody says any more how many members live
		}
		if !e.options.TableApart {
			e.doubted(err)
		}
		// Whoever mends a file in an editor wants to hear of the next mistake. What a network says differs each time.
		another := e.options.TableApart && err.Error() != e.table.told
		if !e.table.failing || another {
			e.table.failing, e.table.told = true, err.Error()
			e.log.Warn("Cannot read the policies, going by what was read last", "error", err)
		}
	}
	return err
}

func (e *Enforcer) readTable(ctx context.Context) error {
	state, err := e.options.Table.Read(ctx)
	if err != nil {
		return fmt.Errorf("reading the policy table: %w", err)
	}
	now := e.clock.monotonic()
	e.lastRead.Store(now)
	e.wasRead.Store(true)
	if owned := state.Owner != ""; owned != e.owned.Swap(owned) && !owned {
		if e.snapshot.Load() != nil {
			e.log.Warn("The policy table is empty: what was read last stays in force until its controller writes it again")
		} else {
			e.log.Warn("No controller ever wrote to this policy table: is it the right Redis, and the right table?")
		}
	}
	e.takeReplicas(state.Replicas, now)
	if state.Row == nil {
		e.counts.problems[RowMissing].Add(1)
		if e.table.missing == 0 {
			e.table.missing = max(1, now)
			if e.table.row != nil {
				e.noticed("the row is missing", now-2*e.options.PollInterval.Microseconds())
			}
		}
		if err := e.options.Table.AskForRow(ctx); err != nil {
			return fmt.Errorf("asking for the missing row: %w", err)
		}
		return nil
	}
	e.table.missing = 0
	e.takeRow(state.Row)
	return nil
}

// takeRow puts a row in force if it is good and newer than the one that is. Nothing else ever replaces a row: a bad, an
// older or a missing one leaves the last good one in force.
func (e *Enforcer) takeRow(data []byte) {
	if e.table.row != nil && slices.Equal(data, e.table.row) {
		return
	}
	next, skipped, err := e.compile(data)
	current := e.snapshot.Load()
	switch {
	case errors.Is(err, policy.ErrNewerVersion):
		e.refuseRow(data, RowNewer, err)
		return
	case err != nil:
		e.refuseRow(data, RowCorrupt, err)
		return
	case current != nil && next.revision.Compare(current.revision) < 0:
		e.refuseRow(data, RowOlder, fmt.Errorf("revision %v is lower than %v", next.revision, current.revision))
		return
	case current != nil && next.revision.Compare(current.revision) == 0:
		e.table.row, e.table.refused = slices.Clone(data), nil
		return
	}
	e.table.row, e.table.refused = slices.Clone(data), nil
	e.enforce(next, skipped, e.table.row, FromTable)
}

// compile makes an encoded row ready for decisions.
func (e *Enforcer) compile(data []byte) (*snapshot, []policy.Problem, error) {
	row, skipped, err := policy.DecodeRow(data)
	if err != nil {
		return nil, nil, err
	}
	next, err := compileRow(row, len(skipped), e.tallies)
	return next, skipped, err
}

// enforce puts a row in force.
func (e *Enforcer) enforce(next *snapshot, skipped []policy.Problem, data []byte, source RowSource) {
	next.source = source
	next.inherit(e.snapshot.Load(), e.served())
	e.snapshot.Store(next)
	e.tallies.keep(next)
	e.files.row, e.files.dirty = data, true
	e.log.Info("Policies in force", "revision", next.revision, "source", source.String(), "rules", len(next.rules),
		"skipped", next.skipped)
	for _, problem := range skipped {
		e.log.Warn("Rule skipped", "policy", problem.Policy, "rule", problem.Rule, "needs", problem.Needs)
	}
}

func (e *Enforcer) refuseRow(data []byte, problem RowProblem, err error) {
	e.counts.problems[problem].Add(1)
	if e.table.refused == nil || !slices.Equal(data, e.table.refused) {
		e.table.refused = slices.Clone(data)
		e.log.Warn("Row not taken, the last good one stays in force", "problem", problem.String(), "error", err)
	}
}

// takeReplicas keeps the last good count.
func (e *Enforcer) takeReplicas(data []byte, now int64) {
	if data == nil {
		return
	}
	replicas, err := policy.DecodeReplicas(data)
	if err != nil {
		e.log.Debug("Replica count not taken", "error", err)
		return
	}
	first := e.table.counted == nil
	if first && e.table.standing == nil {
		e.beginIdle(&replicas, now)
	}
	if e.table.fromFile && (first || slices.Equal(data, e.table.counted)) && replicas.At < e.table.replicas.At {
		e.table.counted = slices.Clone(data)
		return // a snapshot told of a later count, which the table has yet to hear
	}
	e.table.counted = slices.Clone(data)
	e.useReplicas(&replicas, e.table.counted, false, now)
}

// useReplicas goes by a count from now on.
func (e *Enforcer) useReplicas(replicas *policy.Replicas, data []byte, fromFile bool, now int64) {
	// What others did not hear either, because the table could not be read, has not stood yet.
	unheard := e.table.heard == 0 && !e.place().Exact
	if last := e.table.replicas; unheard || last == nil || last.MembersVersion != replicas.MembersVersion || last.N != replicas.N {
		e.table.replicasSeen = now
	}
	if !slices.Equal(data, e.files.replicas) {
		e.files.replicas, e.files.dirty = data, true
	}
	e.table.replicas, e.table.fromFile = replicas, fromFile
	e.settle(now)
}

// beat tells the table what is in force here, and learns this replica's place.
func (e *Enforcer) beat(ctx context.Context) error {
	report := policy.Report{
		Member:   e.member,
		Pod:      e.options.Pod,
		Library:  e.options.Library,
		Features: policy.Features(),
		Started:  e.table.started,
	}
	if s := e.snapshot.Load(); s != nil {
		report.Revision, report.Skipped = s.revision, s.skipped
		report.Matched = s.matched(e.served())
	}
	report.ForwardedIgnored = e.counts.disbelieved.Load() >= policy.ForwardedIgnoredAfter
	if report.Started == 0 {
		report.Started = e.clock.store(0)
	}
	standing, err := e.options.Table.Heartbeat(ctx, report, e.options.PollInterval)
	if err != nil {
		return fmt.Errorf("reporting to the policy table: %w", err)
	}
	now := e.clock.monotonic()
	if standing.Now > 0 {
		e.clock.learn(standing.Now, now)
	}
	if e.table.started == 0 {
		e.table.started = e.clock.store(0)
	}
	if standing.New && e.table.standing != nil {
		e.noticed("this member was forgotten", now-2*e.options.PollInterval.Microseconds())
	}
	if e.table.heard == 0 || standing.New {
		e.table.heard = max(1, now)
	}
	// The others polled meanwhile, too: they go by a count that has this replica in it.
	if now-e.table.heard >= policy.Propagation.Microseconds() {
		e.movePlaces(func(p *policy.Places) *policy.Places { return p.Counted(now) })
	}
	e.table.members.hear(standing.Count, now)
	e.table.standing = &standing
	e.settle(now)
	e.reportDenied(ctx, now)
	return nil
}

// settle works out this replica's place among those that share the limits.
func (e *Enforcer) settle(now int64) {
	standing, settle := e.table.standing, settleTime
	if e.table.fromFile {
		settle = policy.SnapshotPropagation
		if standing != nil && e.table.heard == 0 { // what the table said of live members is older than the snapshot
			old := *standing
			old.Count = 0
			standing, e.table.members = &old, crowd{}
		}
	}
	stood := time.Duration(now-e.table.replicasSeen) * time.Microsecond
	place := placeOf(e.table.replicas, standing, e.table.members.most(), stood >= settle)
	if last := e.place(); place != last || e.places.Load().Version() == 0 {
		e.movePlaces(func(p *policy.Places) *policy.Places { return p.Move(place, now) })
		e.log.Debug("Place among the replicas", "rank", place.Rank, "replicas", place.N, "exact", place.Exact)
	}
}

// placeOf says how many share the limits and which of them this replica is. The rank is only good for a part of a
// remainder when it comes from the same set of members as the count, and that has stood long enough.
func placeOf(replicas *policy.Replicas, standing *Standing, members int, stood bool) policy.Replica {
	place := policy.Replica{N: 1}
	if replicas != nil {
		place.N = replicas.N
	}
	if standing == nil {
		return place
	}
	place.Rank = standing.Rank
	place.N = max(place.N, standing.Count, members, 1)
	place.Exact = replicas != nil && replicas.N == place.N && replicas.MembersVersion == standing.Version && stood
	return place
}

// reportReady lets WaitReady return after a poll that ended with err. It says whether the table is as it should be;
// otherwise it is worth another look soon.
func (e *Enforcer) reportReady(err error, start int64) bool {
	e.poll.Lock()
	defer e.poll.Unlock()
	now := e.clock.monotonic()
	since := func(t int64) time.Duration { return time.Duration(now-t) * time.Microsecond }
	switch {
	case e.snapshot.Load() != nil:
		e.setReady(nil)
	case err == nil && e.owned.Load() && since(e.table.missing) >= missingGrace:
		e.setReady(nil) // nobody limits this workload
	case since(start) < e.options.StartTimeout:
		return false
	case err == nil:
		e.setReady(fmt.Errorf("no policies after %v: no controller ever wrote to this policy table", e.options.StartTimeout))
	default:
		e.setReady(fmt.Errorf("no policies after %v: %w", e.options.StartTimeout, err))
	}
	return err == nil
}

func (e *Enforcer) setReady(err error) {
	e.readyOnce.Do(func() {
		e.readyErr = err
		close(e.ready)
	})
}

// WaitReady returns nil once a row is in force, or the table says that there is none for this workload. It returns an
// error when that is not so after StartTimeout, or when ctx ends; decisions are made all the same.
func (e *Enforcer) WaitReady(ctx context.Context) error {
	select {
	case <-e.ready:
		return e.readyErr
	case <-ctx.Done():
		return fmt.Errorf("waiting for policies: %w", context.Cause(ctx))
	}
}
