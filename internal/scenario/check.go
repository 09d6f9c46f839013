package scenario

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	defaultStoreTimeout = enforcer.DefaultStoreTimeout
	// maxCount bounds the requests of one step.
	maxCount = 1_000_000
)

// checker goes through a scenario that was read and notes what cannot be run. It follows the steps as the run will, so
// that nothing is half run: which replicas there are, and which policies.
type checker struct {
	s *Scenario
	// known says that the policies could be read. Of what refers to them nothing can be said otherwise.
	known    bool
	rules    rules
	policies map[string]bool // in force, by name
	pods     int
	at       Duration
}

func newChecker(s *Scenario, known bool) *checker {
	return &checker{s: s, known: known, rules: s.rules(), policies: make(map[string]bool), pods: *s.Workload.Replicas}
}

func (c *checker) check() {
	c.head()
	if _, ok := c.s.node.Get("steps"); !ok {
		c.s.node.FaultAt("steps", "Required value")
	} else if len(c.s.Steps) == 0 {
		c.s.node.FaultAt("steps", "should have at least 1 items")
	}
	for i := range c.s.Steps {
		node := c.s.stepNode(i)
		c.time(node, i)
		c.step(node, &c.s.Steps[i])
	}
}

// stepNode is where a step stands.
func (s *Scenario) stepNode(i int) manifest.Node { return s.node.Find("steps[" + itoa(i) + "]") }

func (c *checker) head() {
	s, node := c.s, c.s.node
	if s.Name == "" {
		node.FaultAt("scenario", "Required value: a name, in a few words")
	}
	if strings.ContainsAny(s.Name, "\n\r") {
		node.FaultAt("scenario", "must be one line")
	}
	if s.Workload.Name == "" && c.known {
		node.FaultAt("workload.name", "Required value: there is no policy whose target it could be")
	}
	if s.Workload.Group != "apps" || s.Workload.Kind != "Deployment" {
		node.FaultAt("workload.kind", "Unsupported value: policies target a Deployment of the group apps")
	}
	if c.pods < 0 || c.pods > maxReplicas {
		node.FaultAt("workload.replicas", fmt.Sprintf("must be from 0 to %d", maxReplicas))
	}
	for i, name := range s.Stores {
		if slices.Contains(s.Stores[:i], name) {
			node.FaultAt("stores["+itoa(i)+"]", "is there twice")
		}
	}
	if len(s.Stores) == 0 {
		node.FaultAt("stores", "should have at least 1 items")
	}
	if s.Start.Before(time.Unix(0, 0)) || s.Start.Year() > 2200 {
		node.FaultAt("start", "must be a time from 1970 to 2200")
	}
	if err := addRoutes(http.NewServeMux(), s.Routes); err != nil {
		node.FaultAt("routes", err.Error())
	}
	if c.known {
		c.targets()
	}
}

// targets notes policies that have no effect on the workload that is tested.
func (c *checker) targets() {
	hits := 0
	for i, source := range c.s.Policies {
		for _, p := range source.Policies {
			if p.Workload() != c.s.target() {
				if source.path == "" {
					c.s.node.FaultAt("policies["+itoa(i)+"].spec.targetRef.name",
						fmt.Sprintf("targets %v, but the scenario is about %v", p.Workload(), c.s.target()))
				}
				continue
			}
			hits++
			if c.policies[p.Metadata.Name] {
				c.s.node.FaultAt("policies["+itoa(i)+"]", fmt.Sprintf("the policy %s is there twice", p.Metadata.Name))
			}
			c.policies[p.Metadata.Name] = true
		}
	}
	if len(c.s.Policies) > 0 && hits == 0 {
		c.s.node.FaultAt("policies", fmt.Sprintf("no policy targets %v", c.s.target()))
		c.known = false
	}
}

// addRoutes registers patterns, whose faults http.ServeMux tells by a panic.
func addRoutes(mux *http.ServeMux, patterns []string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	for _, pattern := range patterns {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	return nil
}

// time checks that the step comes after the one before it, with all of its requests.
func (c *checker) time(node manifest.Node, i int) {
	if _, ok := node.Get("at"); !ok {
		node.FaultAt("at", "Required value")
		return
	}
	step := &c.s.Steps[i]
	if step.At < c.at {
		node.FaultAt("at", fmt.Sprintf("must not be before the step before it, %v", c.at))
		return
	}
	c.at = step.At
	if step.Send == nil || i+1 == len(c.s.Steps) {
		return
	}
	last := step.At + Duration(max(0, *step.Send.Count-1))*step.Send.Every
	if next := c.s.Steps[i+1].At; last > next && next >= step.At {
		node.FaultAt("send.every", fmt.Sprintf("the last request would come at %v, after the next step at %v", last, next))
	}
}

func (c *checker) step(node manifest.Node, step *Step) {
	alone := step.Expect != nil && step.Send == nil
	if !exactlyOne(node, choice{"send", step.Send != nil}, choice{"event", step.Event != nil}, choice{"an expect alone", alone}) {
		return
	}
	switch {
	case step.Send != nil:
		c.send(node.Find("send"), step.Send)
		if step.Expect != nil {
			c.expectOfSend(node.Find("expect"), step.Expect, *step.Send.Count)
		}
	case step.Event != nil:
		c.event(node.Find("event"), step.Event)
	default:
		c.expectAlone(node.Find("expect"), step.Expect)
	}
}

func (c *checker) send(node manifest.Node, s *Send) {
	if *s.Count < 1 || *s.Count > maxCount {
		node.FaultAt("count", fmt.Sprintf("must be from 1 to %d", maxCount))
	}
	c.replica(node, "replica", s.Replica.Index)
	if c.pods == 0 {
		node.FaultAt("replica", "there is no replica at this time")
	}
	if s.Path != "" {
		if u, err := url.ParseRequestURI(s.Path); err != nil || u.IsAbs() || u.RawQuery != "" || !strings.HasPrefix(s.Path, "/") {
			node.FaultAt("path", "must be an escaped path that starts with /")
		}
	}
	if s.Path == "" && s.Route == "" {
		s.Path = "/"
	}
	if s.Remote != "" {
		if _, err := netip.ParseAddrPort(s.Remote); err != nil {
			if _, err := netip.ParseAddr(s.Remote); err != nil {
				node.FaultAt("remote", "must be an address, with or without a port")
			}
		}
	}
	if s.Cost != nil && *s.Cost < 1 {
		node.FaultAt("cost", "must be at least 1")
	}
	if s.Cost != nil && c.known && len(c.rules.costAttributes()) == 0 {
		node.FaultAt("cost", "no rule of the scenario has a cost")
	}
}

// replica notes an index that no replica has. In a cluster as it is, pods come and go in their own time.
func (c *checker) replica(node manifest.Node, path string, index int) {
	if index < 0 || index >= c.pods && c.s.Propagation == Settled && c.pods > 0 {
		node.FaultAt(path, fmt.Sprintf("there are %d replicas at this time, and they count from 0", c.pods))
	}
}

func (c *checker) event(node manifest.Node, e *Event) {
	if !exactlyOne(node, choice{"store", e.Store != nil}, choice{"scale", e.Scale != nil}, choice{"policy", e.Policy != nil},
		choice{"deletePolicy", e.DeletePolicy != ""}, choice{"clock", e.Clock != nil}, choice{"restart", e.Restart != nil},
		choice{"reset", e.Reset != nil}) {
		return
	}
	if e.Replicas != nil && e.Store == nil {
		node.FaultAt("replicas", "only beside store")
	}
	switch {
	case e.Store != nil:
		if e.Replicas != nil && (e.Store.State == StoreEmpty || e.Store.LoseWrites != nil) {
			node.FaultAt("replicas", "what the store forgets, it forgets for all")
		}
		for i, index := range e.Replicas {
			c.replica(node, "replicas["+itoa(i)+"]", index)
		}
	case e.Scale != nil:
		c.pods = e.Scale.Ready + e.Scale.Terminating
	case e.Policy != nil:
		for _, p := range e.Policy.Policies {
			if p.Workload() != c.s.target() {
				node.FaultAt("policy.spec.targetRef", fmt.Sprintf("targets %v, but the scenario is about %v", p.Workload(), c.s.target()))
			}
			c.policies[p.Metadata.Name] = true
		}
	case e.DeletePolicy != "":
		if c.known && !c.policies[e.DeletePolicy] {
			node.FaultAt("deletePolicy", fmt.Sprintf("there is no policy %q at this time", e.DeletePolicy))
		}
		delete(c.policies, e.DeletePolicy)
	case e.Clock != nil:
		c.replica(node, "clock.replica", e.Clock.Replica)
	case e.Restart != nil:
		c.replica(node, "restart", *e.Restart)
	case e.Reset != nil:
		c.key(node.Find("reset"), e.Reset.Rule, e.Reset.Key)
	}
}

// key checks that the values are one for each part of the rule's key.
func (c *checker) key(node manifest.Node, name string, key Lines) {
	rule, ok := c.rule(node, "rule", name)
	if ok && len(key) != len(rule.Key) {
		node.FaultAt("key", fmt.Sprintf("must have %d values, one for each part of the rule's key", len(rule.Key)))
	}
}

func (c *checker) rule(node manifest.Node, path, name string) (policy.Rule, bool) {
	if name == "" {
		node.FaultAt(path, "Required value")
		return policy.Rule{}, false
	}
	if !c.known {
		return policy.Rule{}, false
	}
	found, err := c.rules.find(name)
	if err != nil {
		node.FaultAt(path, err.Error())
		return policy.Rule{}, false
	}
	return found.rule, true
}

func itoa(i int) string { return strconv.Itoa(i) }

// String gives the form that files have.
func (d Duration) String() string { return formatDuration(time.Duration(d)) }

// formatDuration writes 90s as 1m30s and 0 as 0s, as a duration of the Gateway API where it is one.
func formatDuration(d time.Duration) string {
	s := d.String()
	if d >= time.Second && d%time.Millisecond == 0 && d%time.Second != 0 {
		return (d - d%time.Second).String() + strconv.FormatInt((d%time.Second).Milliseconds(), 10) + "ms"
	}
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
