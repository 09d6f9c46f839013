package scenario

import (
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
)

// What takes how long where propagation is Real.
const (
	podStarts = time.Second     // from the wish for a pod to its process
	podReady  = time.Second     // from there until it is ready
	podEnds   = 5 * time.Second // how long a terminating pod serves
	resync    = 30 * time.Second
	hintDelay = 50 * time.Millisecond
)

// kubelet brings the pods to a scale.
func (c *cluster) kubelet(scale Scale) {
	if !c.live {
		c.scaleTo(scale)
		return
	}
	now := c.scale
	now.Desired = scale.Desired
	if ends := now.Ready - scale.Ready; ends > 0 {
		now.Ready, now.Terminating = scale.Ready, now.Terminating+ends
		c.later(podEnds, func(s *Scale) { s.Terminating -= ends })
	}
	c.scaleTo(now)
	if starts := scale.Ready - now.Ready; starts > 0 {
		c.later(podStarts, func(*Scale) { c.starting += starts })
		c.later(podStarts+podReady, func(s *Scale) { c.starting, s.Ready = c.starting-starts, s.Ready+starts })
	}
}

// later changes the scale after a while, and lets the controller see it.
func (c *cluster) later(d time.Duration, change func(*Scale)) {
	c.world.after(d, func() {
		if c.closed {
			return
		}
		scale := c.scale
		change(&scale)
		c.scaleTo(scale)
		c.soon(c.recounted)
	})
}

// react lets the controller see an event at once, as its watches do.
func (c *cluster) react() {
	if c.live {
		c.world.do(c.recounted)
	}
}

// soon runs f in a goroutine of the world, where the clock may be waited for.
func (c *cluster) soon(f func()) { c.world.runnable = append(c.world.runnable, f) }

// begin ends the time in which everything settled, if it is to take its time from now on.
func (c *cluster) begin() {
	if c.s.Propagation != Real || c.live {
		return
	}
	c.live = true
	for _, p := range c.pods {
		c.polls(p)
	}
	c.resyncs()
}

// polls lets a replica poll at once and then from time to time, as long as it is there.
func (c *cluster) polls(p *pod) {
	if !c.live {
		return
	}
	c.soon(func() { c.ask(p) })
	interval := enforcer.DefaultPollInterval.Microseconds()
	wait := interval/2 + c.world.random.Int64N(interval/2)
	c.world.after(time.Duration(wait)*time.Microsecond, func() {
		if !c.closed && p.index < len(c.pods) && c.pods[p.index] == p {
			c.polls(p)
		}
	})
}

// ask is one poll, after which a controller that was asked for a row writes it.
func (c *cluster) ask(p *pod) {
	c.poll(p)
	if c.table.askedForRow {
		c.recounted()
	}
}

// hint lets every replica poll soon, as those do that hear the controller's message.
func (c *cluster) hint() {
	for _, p := range c.pods {
		if c.condition(p.index).refuses() != nil {
			continue
		}
		wait := c.world.random.Int64N(hintDelay.Microseconds())
		c.world.after(time.Duration(wait)*time.Microsecond, func() { c.soon(func() { c.ask(p) }) })
	}
}

// resyncs lets the controller look at the table from time to time.
func (c *cluster) resyncs() {
	c.world.after(resync, func() {
		if c.closed {
			return
		}
		c.soon(func() {
			if err := c.reconcile(); err == nil {
				c.hint()
			}
		})
		c.resyncs()
	})
}
