package enforcer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// guardTime is for how long after the store came back, or may have lost something, store and local share must both
	// admit: until all replicas have told what they used.
	guardTime = 10 * time.Second
	// tellEvery is how often rounds are told of what was used since.
	tellEvery = time.Second
	// suspectEvery is the shortest time between two suspicions: connections that broke together are found broken one
	// by one.
	suspectEvery = time.Second
	// maxPushes counters go into one push.
	maxPushes = 128
)

// guardCause is what decisions say that the local share denied beside the store.
const guardCause = "a moment ago requests were decided without the store: until it was told of them by all replicas, the local share counts too"

var errPushing = &StoreError{Reason: ReasonOther, Err: errors.New("a push is under way already")}

// recovery is how the store is told what was admitted without it and what it has lost. See Pusher.
type recovery struct {
	pusher Pusher      // nil when the store is none
	alone  atomic.Bool // this replica has decided without the store
	doubt  atomic.Bool // a connection broke: what answers next may be another store than before
	guard  atomic.Int64
	// following while rounds are told of each charge. What is told cannot be taken back, so nothing is leased meanwhile.
	following atomic.Bool

	tellMu    sync.Mutex
	suspected int64 // monotonic µs of the last suspicion, 0 before the first
	until     int64 // rounds are followed until then
	ticking   bool
	pushing   sync.Mutex // one push at a time, so that answers come in order
}

// guarding says whether store and share must both admit.
func (e *Enforcer) guarding() bool {
	if e.doubt.Load() {
		return true
	}
	until := e.guard.Load()
	return until > 0 && e.clock.monotonic() < until
}

// noticed begins a suspicion for what a poll saw, which came about since a time, unless one began after that.
func (e *Enforcer) noticed(why string, since int64) {
	e.tellMu.Lock()
	known := e.suspected > since
	e.tellMu.Unlock()
	if known || e.options.InProcess || e.breaker.open.Load() { // a probe is a suspicion of its own
		return
	}
	e.suspect(why)
	e.tell()
}

// answered ends a doubt: what answers now may have lost something.
func (e *Enforcer) answered() {
	if !e.doubt.Load() || e.options.InProcess || e.breaker.open.Load() {
		return
	}
	e.tellMu.Lock()
	early := e.suspected > 0 && e.clock.monotonic()-e.suspected < suspectEvery.Microseconds()
	e.tellMu.Unlock()
	if !early && e.doubt.Swap(false) {
		e.suspect("a connection broke")
		e.tell()
	}
}

// suspect has every counter told anew, because the store may have lost charges.
func (e *Enforcer) suspect(why string) {
	e.beginSuspicion()
	e.log.Info("Store may have lost charges, telling it what this replica used", "cause", why)
}

func (e *Enforcer) beginSuspicion() {
	now := e.clock.monotonic()
	e.tellMu.Lock()
	e.suspected, e.until = max(1, now), now+RoundLife
	e.tellMu.Unlock()
	e.doubt.Store(false)
	e.counts.suspicions.Add(1)
	e.guard.Store(now + guardTime.Microseconds())
	e.following.Store(e.pusher != nil)
	e.leases.dropAll()
	if e.pusher != nil {
		e.options.Local.Suspect()
	}
}

// catchUp tells a store that answers again, before decisions ask it.
func (e *Enforcer) catchUp() error {
	e.beginSuspicion()
	if err := e.push(); err != nil {
		return err
	}
	e.guard.Store(e.clock.monotonic() + guardTime.Microseconds())
	e.schedule()
	return nil
}

// follow has rounds told of each charge for a while, after a counter proved that charges were lost.
func (e *Enforcer) follow() {
	if e.pusher == nil {
		return
	}
	e.tellMu.Lock()
	e.until = max(e.until, e.clock.monotonic()+RoundLife)
	e.tellMu.Unlock()
	if !e.following.Swap(true) {
		e.leases.dropAll()
	}
	e.options.Local.Follow()
	e.tell()
}

// batchSettled hears how each batch ended.
func (e *Enforcer) batchSettled(err error) {
	if err != nil {
		e.doubted(err)
		return
	}
	e.answered()
	if e.pusher != nil && !e.breaker.open.Load() && e.options.Local.Dirty() {
		e.schedule()
	}
}

// doubted hears of a failure. After some of them another server may answer, or the same one with other data.
func (e *Enforcer) doubted(err error) {
	if broken(reasonOf(err)) {
		e.doubt.Store(true)
	}
}

// broken says whether a failure means that the connection is a new one from then on.
func broken(r Reason) bool {
	switch r {
	case ReasonRefused, ReasonReset, ReasonDNS, ReasonReadOnly, ReasonLoading, ReasonMoved, ReasonNoScript:
		return true
	default:
		return false
	}
}

// tell pushes now, behind the decisions.
func (e *Enforcer) tell() {
	if e.pusher != nil {
		e.options.Runtime.Go(e.tick)
	}
}

// schedule pushes a little later, unless that is under way.
func (e *Enforcer) schedule() {
	if e.pusher == nil {
		return
	}
	e.tellMu.Lock()
	defer e.tellMu.Unlock()
	if !e.ticking {
		e.ticking = true
		e.options.Runtime.AfterFunc(tellEvery, func() {
			e.tellMu.Lock()
			e.ticking = false
			e.tellMu.Unlock()
			e.tick()
		})
	}
}

// tick tells what there is to tell, and goes on while rounds are followed.
func (e *Enforcer) tick() {
	if e.breaker.open.Load() {
		return // the next probe begins again
	}
	err := e.push()
	if err != nil && !errors.Is(err, errPushing) {
		e.counts.fail(reasonOf(err))
		e.doubted(err)
	}
	e.tellMu.Lock()
	over := e.clock.monotonic() >= e.until
	e.tellMu.Unlock()
	if over && err == nil {
		e.options.Local.Trust()
		e.following.Store(false)
		if !e.options.Local.Dirty() {
			return
		}
	}
	e.schedule()
}

// push tells the store everything that it was not told.
func (e *Enforcer) push() error {
	if e.pusher == nil {
		return nil
	}
	if !e.pushing.TryLock() {
		return errPushing
	}
	defer e.pushing.Unlock()
	var cursor Cursor
	var pushes []Push
	for {
		pushes = e.options.Local.Untold(e.clock.store(e.clock.monotonic()), &cursor, maxPushes, pushes[:0])
		if len(pushes) == 0 {
			return nil
		}
		for i := range pushes {
			pushes[i].Member = e.member
		}
		if err := e.send(pushes, make([]Pushed, len(pushes))); err != nil {
			return err
		}
	}
}

func (e *Enforcer) send(pushes []Push, answers []Pushed) error {
	ctx, cancel := e.options.Runtime.WithTimeout(patience)
	defer cancel()
	now, err := e.pusher.Push(ctx, pushes, answers)
	if err != nil {
		return err
	}
	e.clock.learn(now, e.clock.monotonic())
	for i := range pushes {
		if failure := answers[i].Err; failure != nil {
			if reasonOf(failure) != ReasonState {
				err = failure // the others were taken over; this one is sent again
				continue
			}
			e.counts.fail(ReasonState) // no use to try again: nobody can charge that counter either
			answers[i] = Pushed{Round: pushes[i].Round}
		}
		e.options.Local.Told(now, &pushes[i], answers[i])
		e.counts.pushed.Add(1)
	}
	return err
}
