package sim

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

const pollInterval = 5 * time.Second

// pod is one replica: a process with an enforcer and a way to the store.
type pod struct {
	name     string
	link     *link
	enforcer *enforcer.Enforcer
	member   string
	revision policy.Revision // the highest that was seen in force
	ready    bool
	leaving  bool
	ended    bool
}

// fleet is the pods of a Deployment.
type fleet struct {
	world   *world
	desired int32
	made    int
	pods    []*pod
	gone    []*pod
}

// scale asks for another number of pods.
func (f *fleet) scale(n int) {
	f.desired = int32(n) //nolint:gosec // a few
	f.reconcile()
}

// reconcile starts and ends pods as a Deployment does.
func (f *fleet) reconcile() {
	running := 0
	for _, p := range f.pods {
		if !p.leaving {
			running++
		}
	}
	for ; running < int(f.desired); running++ {
		f.start()
	}
	for i := len(f.pods) - 1; i >= 0 && running > int(f.desired); i-- {
		if p := f.pods[i]; !p.leaving {
			f.terminate(p)
			running--
		}
	}
	f.world.controller.changed()
}

// start makes a pod, which serves once it has read its policies.
func (f *fleet) start() {
	w := f.world
	f.made++
	p := &pod{name: "pod-" + strconv.Itoa(f.made)}
	f.pods = append(f.pods, p)
	w.clock.after(w.between(500*time.Millisecond, 3*time.Second), func() { w.clock.Go(func() { f.begin(p) }) })
}

func (f *fleet) begin(p *pod) {
	if p.ended {
		return
	}
	w := f.world
	p.link = &link{
		clock: w.clock, server: w.server, connected: w.server.started, prompt: w.schedule.prompt,
		lossy: w.schedule.lossy && !w.mended, slow: w.schedule.slow && !w.mended,
	}
	v := &view{link: p.link, spoil: w.options.Spoil, asks: func() { w.controller.changed() }}
	p.enforcer = enforcer.New(enforcer.Options{
		Store:        p.link,
		Local:        memstore.New(memstore.Options{MaxKeys: 4096}),
		Table:        named{v, p},
		Pod:          p.name,
		PollInterval: pollInterval,
		Runtime:      w.clock,
	})
	f.poll(p)
}

// poll polls, and again some time later, as Run does.
func (f *fleet) poll(p *pod) {
	if p.ended {
		return
	}
	w := f.world
	err := p.enforcer.Poll(context.Background())
	figures := p.enforcer.Figures()
	if !p.ready && !figures.Revision.IsZero() {
		p.ready = true
		w.controller.changed()
	}
	next := w.between(pollInterval/2, pollInterval)
	if err != nil || !p.ready {
		next = w.between(100*time.Millisecond, time.Second)
	}
	if figures.BreakerOpen {
		p.enforcer.Probe()
	}
	w.clock.after(next, func() { w.clock.Go(func() { f.poll(p) }) })
}

// terminate lets a pod serve a little longer, and then ends it.
func (f *fleet) terminate(p *pod) {
	p.leaving = true
	f.world.clock.after(f.world.between(0, 4*time.Second), func() { f.end(p, true) })
}

// crash ends a pod at once; another one takes its place.
func (f *fleet) crash(p *pod) {
	f.end(p, false)
	f.reconcile()
}

func (f *fleet) end(p *pod, orderly bool) {
	if p.ended {
		return
	}
	p.ended, p.ready = true, false
	f.pods = slices.DeleteFunc(f.pods, func(o *pod) bool { return o == p })
	f.gone = append(f.gone, p)
	if orderly && p.link != nil && f.world.server.up && !p.link.cut {
		f.world.server.table.leave(p.member)
	}
	f.world.controller.changed()
}

// serving are the pods that take requests.
func (f *fleet) serving() (serving []*pod) {
	for _, p := range f.pods {
		if p.ready {
			serving = append(serving, p)
		}
	}
	return serving
}

func (f *fleet) status() policy.DeploymentStatus {
	desired := f.desired
	d := policy.DeploymentStatus{UID: "uid", Observed: true, Desired: &desired}
	for _, p := range f.pods {
		switch {
		case p.leaving:
			d.Terminating++
		default:
			d.Replicas++
			if p.ready {
				d.Ready++
			}
		}
	}
	return d
}

// named remembers the name of a pod's member.
type named struct {
	*view
	pod *pod
}

func (n named) Heartbeat(ctx context.Context, r policy.Report, poll time.Duration) (enforcer.Standing, error) {
	n.pod.member = r.Member
	return n.view.Heartbeat(ctx, r, poll)
}

// controller publishes the row and the count.
type controller struct {
	world    *world
	paused   bool
	previous *policy.Replicas
	row      []byte
	pending  bool
}

// changed has it look soon.
func (c *controller) changed() {
	if !c.pending {
		c.pending = true
		c.world.clock.after(c.world.between(time.Millisecond, 300*time.Millisecond), func() {
			c.pending = false
			c.publish()
		})
	}
}

// publish is one pass.
func (c *controller) publish() {
	w := c.world
	if c.paused || !w.server.up {
		w.clock.after(time.Second, c.changed)
		return
	}
	t := w.server.table
	t.expire()
	status := w.fleet.status()
	next, again := policy.CountReplicas(status, len(t.members), t.version, c.previous, w.clock.now)
	if w.options.Count != nil {
		next.N = max(1, w.options.Count(next.N))
	}
	c.previous = &next
	t.replicas = must(policy.EncodeReplicas(next))
	t.row = c.row
	if again > 0 {
		w.clock.after(again, c.changed)
	}
}

// resync publishes from time to time whatever happens.
func (c *controller) resync() {
	c.publish()
	c.world.clock.after(5*time.Second, c.resync)
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err) // the row is the simulation's own
	}
	return data
}
