package policy

import (
	"math/rand/v2"
	"testing"
	"time"
)

// observation is one moment in the life of a Deployment and what must be counted then.
type observation struct {
	after     time.Duration // since the one before
	d         DeploymentStatus
	members   int
	n         int
	lookAgain time.Duration
}

func deployment(desired, replicas, ready, terminating int32) DeploymentStatus {
	return DeploymentStatus{
		UID: "uid-1", Observed: true,
		Desired: &desired, Replicas: replicas, Ready: ready, Terminating: terminating,
	}
}

func recreated(desired, replicas, ready int32) DeploymentStatus {
	d := deployment(desired, replicas, ready, 0)
	d.UID = "uid-2"
	return d
}

func TestCountReplicas(t *testing.T) {
	absent := DeploymentStatus{}
	created := DeploymentStatus{UID: "uid-1", Desired: deployment(3, 0, 0, 0).Desired}
	cases := map[string][]observation{
		"a steady workload counts what is ready, and needs no second look": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Hour, d: deployment(3, 3, 3, 0), n: 3},
		},
		"a target that does not exist counts one": {
			{d: absent, n: 1},
		},
		"a target that does not exist counts the members that live all the same": {
			{d: absent, members: 2, n: 2},
		},
		"a target without replicas counts the members that live elsewhere, as beside Flagger's primary": {
			{d: deployment(0, 0, 0, 0), members: 3, n: 3},
		},
		"absent spec.replicas means one": {
			{d: DeploymentStatus{UID: "uid-1", Observed: true, Replicas: 1, Ready: 1}, n: 1},
		},
		"absent ready replicas mean that none is ready: the desired count": {
			{d: deployment(3, 3, 0, 0), n: 3, lookAgain: 60 * time.Second},
			{after: time.Hour, d: deployment(3, 3, 0, 0), n: 3},
		},
		"a Deployment that nobody reported on yet counts its desired replicas": {
			{d: created, n: 3, lookAgain: 60 * time.Second},
		},
		"nothing reported and nothing desired counts one": {
			{d: DeploymentStatus{UID: "uid-1"}, n: 1, lookAgain: 60 * time.Second},
		},
		"a new Deployment keeps its desired count while its pods come up one by one": {
			{d: created, n: 3, lookAgain: 60 * time.Second},
			{after: time.Second, d: deployment(3, 3, 0, 0), n: 3, lookAgain: 59 * time.Second},
			{after: 4 * time.Second, d: deployment(3, 3, 1, 0), n: 3, lookAgain: 30 * time.Second},
			{after: 4 * time.Second, d: deployment(3, 3, 3, 0), n: 3, lookAgain: 51 * time.Second},
			{after: 51 * time.Second, d: deployment(3, 3, 3, 0), n: 3},
		},
		"scaling up counts at once, before any new pod is ready": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(5, 3, 3, 0), n: 5, lookAgain: 60 * time.Second},
			{after: time.Second, d: deployment(5, 5, 3, 0), n: 5, lookAgain: 59 * time.Second},
			{after: 8 * time.Second, d: deployment(5, 5, 5, 0), n: 5, lookAgain: 51 * time.Second},
			{after: 51 * time.Second, d: deployment(5, 5, 5, 0), n: 5},
		},
		"pods that never become ready stop counting after 60 s": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(5, 5, 3, 0), n: 5, lookAgain: 60 * time.Second},
			{after: 59 * time.Second, d: deployment(5, 5, 3, 0), n: 5, lookAgain: time.Second},
			{after: time.Second, d: deployment(5, 5, 3, 0), n: 3},
		},
		"ten desired, four in a crash loop: the six that are ready, then seven": {
			{d: deployment(10, 10, 6, 0), n: 6},
			{after: time.Minute, d: deployment(10, 10, 7, 0), n: 7},
		},
		"terminating pods still serve": {
			{d: deployment(6, 6, 6, 3), n: 9},
		},
		"scaling down counts 30 s after the last pod has ended": {
			{d: deployment(5, 5, 5, 0), n: 5},
			{after: time.Second, d: deployment(2, 2, 2, 3), n: 5},
			{after: 10 * time.Second, d: deployment(2, 2, 2, 2), n: 5, lookAgain: 30 * time.Second},
			{after: time.Second, d: deployment(2, 2, 2, 0), n: 5, lookAgain: 29 * time.Second},
			{after: 29 * time.Second, d: deployment(2, 2, 2, 0), n: 4, lookAgain: time.Second},
			{after: time.Second, d: deployment(2, 2, 2, 0), n: 2},
		},
		"scaling down soon after scaling up does not wait for the 60 s": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(5, 5, 3, 0), n: 5, lookAgain: 60 * time.Second},
			{after: 5 * time.Second, d: deployment(5, 5, 5, 0), n: 5, lookAgain: 55 * time.Second},
			{after: 5 * time.Second, d: deployment(2, 2, 2, 3), n: 5, lookAgain: 50 * time.Second},
			{after: 2 * time.Second, d: deployment(2, 2, 2, 0), n: 5, lookAgain: 30 * time.Second},
			{after: 30 * time.Second, d: deployment(2, 2, 2, 0), n: 2, lookAgain: 18 * time.Second},
			{after: 18 * time.Second, d: deployment(2, 2, 2, 0), n: 2},
		},
		"a pod that is not ready for a moment changes nothing": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Minute, d: deployment(3, 3, 2, 0), n: 3, lookAgain: 30 * time.Second},
			{after: 29 * time.Second, d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(3, 3, 2, 0), n: 3, lookAgain: 30 * time.Second},
			{after: 30 * time.Second, d: deployment(3, 3, 2, 0), n: 2},
		},
		"a deeper dip during a fall does not count with the first one": {
			{d: deployment(5, 5, 5, 0), n: 5},
			{after: time.Minute, d: deployment(5, 5, 4, 0), n: 5, lookAgain: 30 * time.Second},
			{after: 29 * time.Second, d: deployment(5, 5, 1, 0), n: 5, lookAgain: time.Second},
			{after: time.Second, d: deployment(5, 5, 1, 0), n: 4, lookAgain: 29 * time.Second},
			{after: 5 * time.Second, d: deployment(5, 5, 4, 0), n: 4},
		},
		"a rolling update counts the pod that surges before it serves": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(3, 4, 3, 0), n: 4, lookAgain: 60 * time.Second},
			{after: 5 * time.Second, d: deployment(3, 4, 4, 0), n: 4, lookAgain: 55 * time.Second},
			{after: time.Second, d: deployment(3, 3, 3, 1), n: 4, lookAgain: 54 * time.Second},
			{after: time.Second, d: deployment(3, 4, 3, 1), n: 4, lookAgain: 60 * time.Second},
			{after: 5 * time.Second, d: deployment(3, 4, 4, 1), n: 5, lookAgain: 55 * time.Second},
			{after: time.Second, d: deployment(3, 3, 3, 1), n: 5, lookAgain: 30 * time.Second},
			{after: 5 * time.Second, d: deployment(3, 3, 3, 0), n: 5, lookAgain: 25 * time.Second},
			{after: 25 * time.Second, d: deployment(3, 3, 3, 0), n: 4, lookAgain: 5 * time.Second},
			{after: 5 * time.Second, d: deployment(3, 3, 3, 0), n: 3, lookAgain: 19 * time.Second},
			{after: 19 * time.Second, d: deployment(3, 3, 3, 0), n: 3},
		},
		"a paused rollout whose new pod never becomes ready counts the old ones": {
			{d: deployment(3, 4, 3, 0), n: 3},
			{after: time.Hour, d: deployment(3, 4, 3, 0), n: 3},
		},
		"a rollout past its progress deadline counts what serves": {
			{d: deployment(4, 5, 3, 0), n: 3},
			{after: 10 * time.Minute, d: deployment(4, 5, 3, 1), n: 4},
		},
		"recreating all pods at once keeps the count while none is ready": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(3, 0, 0, 3), n: 3},
			{after: 9 * time.Second, d: deployment(3, 3, 0, 0), n: 3, lookAgain: 0},
			{after: 5 * time.Second, d: deployment(3, 3, 1, 0), n: 3, lookAgain: 30 * time.Second},
			{after: 2 * time.Second, d: deployment(3, 3, 3, 0), n: 3},
		},
		"scaled to zero counts one, and scaled up again what is wanted": {
			{d: deployment(3, 3, 3, 0), n: 3},
			{after: time.Second, d: deployment(0, 0, 0, 3), n: 3},
			{after: 5 * time.Second, d: deployment(0, 0, 0, 0), n: 3, lookAgain: 30 * time.Second},
			{after: 30 * time.Second, d: deployment(0, 0, 0, 0), n: 1},
			{after: time.Hour, d: deployment(4, 0, 0, 0), n: 4, lookAgain: 60 * time.Second},
			{after: 5 * time.Second, d: deployment(4, 4, 1, 0), n: 4, lookAgain: 30 * time.Second},
		},
		"more live members than ready pods count": {
			{d: deployment(3, 3, 3, 0), members: 5, n: 5},
			{after: time.Second, d: deployment(3, 3, 3, 0), members: 3, n: 3},
		},
		"a Deployment that is deleted leaves no ghost": {
			{d: deployment(10, 10, 10, 0), n: 10},
			{after: time.Second, d: absent, n: 1},
		},
		"a Deployment that is recreated starts from its own replicas": {
			{d: deployment(10, 10, 10, 0), n: 10},
			{after: time.Second, d: recreated(2, 2, 0), n: 2, lookAgain: 60 * time.Second},
			{after: 5 * time.Second, d: recreated(2, 2, 2), n: 2, lookAgain: 55 * time.Second},
		},
		"a Deployment that is recreated with more replicas than before starts from its own": {
			{d: deployment(2, 2, 2, 0), n: 2},
			{after: time.Second, d: recreated(7, 7, 7), n: 7},
		},
	}
	for name, observations := range cases {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000_000)
			var previous *Replicas
			for i, o := range observations {
				now += o.after.Microseconds()
				got, lookAgain := CountReplicas(o.d, o.members, 7, previous, now)
				if got.N != o.n {
					t.Errorf("observation %d: N = %d, want %d (%+v)", i, got.N, o.n, got)
				}
				if lookAgain != o.lookAgain {
					t.Errorf("observation %d: look again after %v, want %v (%+v)", i, lookAgain, o.lookAgain, got)
				}
				previous = &got
			}
		})
	}
}

func TestCountReplicasIsIdleBetweenTheLastReplicaAndTheNext(t *testing.T) {
	const start = int64(1_700_000_000_000_000)
	running, _ := CountReplicas(deployment(1, 1, 1, 0), 1, 1, nil, start)
	if running.IdleSince != 0 {
		t.Errorf("a running workload is idle since %d", running.IdleSince)
	}
	left, _ := CountReplicas(deployment(0, 0, 0, 0), 0, 2, &running, start+10)
	if left.IdleSince != start+10 {
		t.Errorf("idle since %d, want the moment that the last replica went, %d", left.IdleSince, start+10)
	}
	still, _ := CountReplicas(deployment(1, 1, 0, 0), 0, 2, &left, start+20)
	if still.IdleSince != start+10 {
		t.Errorf("idle since %d, want unchanged, %d", still.IdleSince, start+10)
	}
	back, _ := CountReplicas(deployment(1, 1, 0, 0), 1, 3, &still, start+30)
	if back.IdleSince != 0 {
		t.Errorf("idle since %d although a member lives", back.IdleSince)
	}
}

func TestCountReplicasKeepsItsAgeUntilSharesChange(t *testing.T) {
	const start = int64(1_700_000_000_000_000)
	first, _ := CountReplicas(deployment(3, 3, 3, 0), 3, 7, nil, start)
	readiness, _ := CountReplicas(deployment(3, 3, 2, 0), 3, 7, &first, start+10)
	if readiness.At != start {
		t.Errorf("a pod that is not ready for a moment made the count young again: at %d, want %d", readiness.At, start)
	}
	members, _ := CountReplicas(deployment(3, 3, 2, 0), 3, 8, &readiness, start+20)
	if members.At != start+20 {
		t.Errorf("other members left the count old: at %d, want %d", members.At, start+20)
	}
}

// Whatever happens to a Deployment, N covers the pods that serve and those that may in a moment, comes down to them in
// the end, and the history stays small.
func TestCountReplicasOverRandomLives(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		now := int64(1_700_000_000_000_000)
		var previous *Replicas
		highest := map[int64]int{} // what served, by when
		var last DeploymentStatus
		for range 60 {
			desired := random.Int32N(30)
			d := deployment(desired, max(desired, random.Int32N(32)), random.Int32N(desired+1), random.Int32N(4))
			members := random.IntN(5)
			now += random.Int64N(20_000_000)
			if previous != nil {
				highest[now] = previous.Serving
			}
			got, _ := CountReplicas(d, members, 1, previous, now)
			for ended, served := range highest {
				if now-ended < fallHold.Microseconds() && got.N < served {
					t.Fatalf("N = %d although %d served until %d µs ago: %+v", got.N, served, now-ended, got)
				}
			}
			if previous != nil && got.Wanted > previous.Wanted && got.N < got.Wanted {
				t.Fatalf("N = %d although the wish rose to %d: %+v", got.N, got.Wanted, got)
			}
			if got.N < max(1, members, int(d.Ready+d.Terminating)) {
				t.Fatalf("N = %d with %d members: %+v", got.N, members, got)
			}
			if len(got.Falls) > maxFalls {
				t.Fatalf("%d falls remembered", len(got.Falls))
			}
			previous, last = &got, d
		}
		for looks := 0; ; looks++ {
			got, lookAgain := CountReplicas(last, 0, 1, previous, now)
			previous = &got
			if lookAgain == 0 {
				if want := max(1, got.Serving); got.N != want {
					t.Fatalf("N settled at %d, want %d: %+v", got.N, want, got)
				}
				break
			}
			if looks > maxFalls+2 {
				t.Fatalf("still looking again after %d looks: %+v", looks, got)
			}
			now += lookAgain.Microseconds()
		}
	}
}

func TestCountReplicasForgetsNoFallThatItHasNoRoomFor(t *testing.T) {
	now := int64(1_700_000_000_000_000)
	first, _ := CountReplicas(deployment(20, 20, 20, 0), 0, 1, nil, now)
	previous := &first
	for ready := int32(19); ready >= 0; ready-- { // twenty falls, one a second
		now += time.Second.Microseconds()
		got, _ := CountReplicas(deployment(20, 20, max(ready, 1), 0), 0, 1, previous, now)
		if got.N != 20 {
			t.Errorf("N = %d with %d ready, want 20: all of them served within the last 30 s", got.N, ready)
		}
		if len(got.Falls) > maxFalls {
			t.Errorf("%d falls remembered, want at most %d", len(got.Falls), maxFalls)
		}
		previous = &got
	}
	now += fallHold.Microseconds()
	if got, _ := CountReplicas(deployment(20, 20, 1, 0), 0, 1, previous, now); got.N != 1 {
		t.Errorf("N = %d 30 s after the last fall, want 1", got.N)
	}
}
