package policy

import "time"

// A rise of the wanted replicas counts at once and for raiseHold even if no pod is ready, so that the old replicas
// shrink before the new ones serve. A fall counts once it has lasted fallHold.
const (
	raiseHold = 60 * time.Second
	fallHold  = 30 * time.Second
)

// maxFalls bounds the history of falls. Beyond it the two oldest become one that is as high as the one and lasts as
// long as the other, which errs towards more replicas and so towards smaller shares.
const maxFalls = 8

// DeploymentStatus is what counting needs of a Deployment. The zero value is a Deployment that does not exist.
type DeploymentStatus struct {
	UID string
	// Observed says that the Deployment's controller has reported on it at all; until then Ready is unknown.
	Observed bool
	// Desired is spec.replicas: nil means 1.
	Desired *int32
	// Replicas, Ready and Terminating are the status's; what is absent there is zero here.
	Replicas    int32
	Ready       int32
	Terminating int32
}

// CountReplicas gives the number of replicas that local shares are computed for, with the history that the next count
// needs, and after how long to count again although nothing has changed (zero: no need). now is in µs.
//
// Every pod that serves counts: the ready and the terminating ones; as long as none is ready, the desired ones. For 60 s
// after spec.replicas or status.replicas rose, N is at least that: a rising N shrinks the shares of the replicas that
// run before the new ones take theirs. A fall counts once it has lasted 30 s. N is never below 1, nor below the live
// members. A Deployment that was recreated, which is one with another UID, starts anew.
func CountReplicas(
	d DeploymentStatus, liveMembers int, membersVersion int64, previous *Replicas, now int64,
) (Replicas, time.Duration) {
	var before Replicas
	known := previous != nil && previous.UID == d.UID
	if known {
		before = *previous
	}

	next := Replicas{
		Version:        1,
		Ready:          int(d.Ready),
		Desired:        d.desired(),
		Terminating:    int(d.Terminating),
		MembersVersion: membersVersion,
		Serving:        d.serving(),
		Wanted:         max(d.desired(), int(d.Replicas)),
		UID:            d.UID,
	}
	next.raise(before, known, now)
	next.fall(before, now)

	next.N = max(1, next.Serving, liveMembers, next.RaisedTo)
	if len(next.Falls) > 0 {
		next.N = max(next.N, next.Falls[0].From)
	}
	if next.Ready+next.Terminating+liveMembers == 0 {
		next.IdleSince = now
		if before.IdleSince != 0 {
			next.IdleSince = before.IdleSince
		}
	}
	next.At = now
	if previous != nil {
		if next.At = max(now, previous.At+1); previous.N == next.N && previous.MembersVersion == next.MembersVersion {
			next.At = previous.At
		}
	}
	return next, next.lookAgain(now)
}

func (d DeploymentStatus) desired() int {
	switch {
	case d.UID == "":
		return 0
	case d.Desired == nil:
		return 1
	}
	return int(*d.Desired)
}

// serving counts the pods that serve, or that will as soon as they can.
func (d DeploymentStatus) serving() int {
	serving := int(d.Ready) + int(d.Terminating)
	if d.Ready == 0 || !d.Observed {
		return max(serving, d.desired())
	}
	return serving
}

// raise notes a rise of the wanted replicas, and forgets one that is over. A raise never outlasts the wish: whatever
// still serves then is counted by itself.
func (r *Replicas) raise(before Replicas, known bool, now int64) {
	starting := !known && r.Ready == 0 && r.Wanted > 0
	switch {
	case starting, known && r.Wanted > before.Wanted:
		r.RaisedTo, r.RaisedAt = r.Wanted, now
	case before.RaisedTo > 0 && now-before.RaisedAt < raiseHold.Microseconds():
		r.RaisedTo, r.RaisedAt = min(before.RaisedTo, r.Wanted), before.RaisedAt
	}
	if r.RaisedTo == 0 {
		r.RaisedAt = 0
	}
}

// fall keeps the counts of the last 30 s that were above the present one, as a staircase: each step is lower than the
// one before it and ended later, so the first is the highest count of that time.
func (r *Replicas) fall(before Replicas, now int64) {
	level := max(r.Serving, before.Serving)
	for _, step := range before.Falls {
		if step.From > level && now-step.At < fallHold.Microseconds() {
			r.Falls = append(r.Falls, step)
		}
	}
	if before.Serving > r.Serving {
		r.Falls = append(r.Falls, Fall{From: before.Serving, At: now})
	}
	if len(r.Falls) > maxFalls {
		r.Falls[1].From = r.Falls[0].From
		r.Falls = r.Falls[1:]
	}
}

// lookAgain says after how long the passing of time alone changes the count.
func (r *Replicas) lookAgain(now int64) time.Duration {
	var next int64
	if r.RaisedTo > 0 {
		next = r.RaisedAt + raiseHold.Microseconds()
	}
	if len(r.Falls) > 0 {
		ends := r.Falls[0].At + fallHold.Microseconds()
		if next == 0 || ends < next {
			next = ends
		}
	}
	if next == 0 {
		return 0
	}
	return time.Duration(max(next-now, 1)) * time.Microsecond
}
