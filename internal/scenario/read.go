package scenario

import (
	"strings"
	"time"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

// The readers of what can be written in more than one way.

// ReadManifest notes where the policies stand; Load reads them.
func (p *PolicySource) ReadManifest(n manifest.Node) {
	p.node = n
	if n.IsMapping() {
		return
	}
	if n.Decode(&p.path) && p.path == "" {
		n.Fault("Required value: an object, or the path of a file with policies")
	}
}

// ReadManifest reads mounted or {delay: 60s}.
func (s *Snapshot) ReadManifest(n manifest.Node) {
	s.Mounted = true
	if n.IsMapping() {
		var late struct {
			Delay *Duration `json:"delay"`
		}
		if n.Decode(&late) && late.Delay == nil {
			n.FaultAt("delay", "Required value")
		}
		if late.Delay != nil {
			s.Delay = *late.Delay
		}
		return
	}
	var word string
	if n.Decode(&word) && word != "mounted" {
		n.Fault("Unsupported value: %q: must be mounted or {delay: 60s}", word)
	}
}

// ReadManifest reads an index, roundRobin or {random: 7}.
func (c *ReplicaChoice) ReadManifest(n manifest.Node) {
	if n.IsMapping() {
		var random struct {
			Seed *int64 `json:"random"`
		}
		if n.Decode(&random) && random.Seed == nil {
			n.FaultAt("random", "Required value")
		}
		c.Seed = random.Seed
		return
	}
	if n.IsText() {
		var word string
		if n.Decode(&word) && word != "roundRobin" {
			n.Fault("Unsupported value: %q: must be the index of a replica, roundRobin or {random: 7}", word)
		}
		c.RoundRobin = true
		return
	}
	if n.Decode(&c.Index) && c.Index < 0 {
		n.Fault("Invalid value: %d: replicas count from 0", c.Index)
	}
}

// ReadManifest reads one line or a list of lines.
func (l *Lines) ReadManifest(n manifest.Node) {
	if n.IsSequence() {
		var lines []string
		n.Decode(&lines)
		*l = lines
		return
	}
	var line string
	n.Decode(&line)
	*l = Lines{line}
}

// ReadManifest reads a state, or a mapping with one field.
func (e *StoreEvent) ReadManifest(n manifest.Node) {
	if !n.IsMapping() {
		n.Decode(&e.State)
		return
	}
	var fields struct {
		Slow        *Duration `json:"slow"`
		LoseReplies *int      `json:"loseReplies"`
		LoseWrites  *Duration `json:"loseWrites"`
	}
	if !n.Decode(&fields) {
		return
	}
	e.Slow, e.LoseReplies, e.LoseWrites = fields.Slow, fields.LoseReplies, fields.LoseWrites
	exactlyOne(n, choice{"slow", e.Slow != nil}, choice{"loseReplies", e.LoseReplies != nil}, choice{"loseWrites", e.LoseWrites != nil})
	if e.LoseReplies != nil && *e.LoseReplies < 1 {
		n.FaultAt("loseReplies", "must be at least 1")
	}
}

// ReadManifest reads a number of ready pods, or {desired: 3, ready: 2, terminating: 1}.
func (s *Scale) ReadManifest(n manifest.Node) {
	if !n.IsMapping() {
		if n.Decode(&s.Ready) {
			atMostReplicas(n, "", s.Ready)
		}
		s.Desired = s.Ready
		return
	}
	var fields struct {
		Desired     *int `json:"desired"`
		Ready       *int `json:"ready"`
		Terminating int  `json:"terminating"`
	}
	if !n.Decode(&fields) {
		return
	}
	if fields.Ready == nil {
		n.FaultAt("ready", "Required value")
		return
	}
	s.Ready, s.Desired, s.Terminating = *fields.Ready, *fields.Ready, fields.Terminating
	if fields.Desired != nil {
		s.Desired = *fields.Desired
	}
	atMostReplicas(n, "desired", s.Desired)
	atMostReplicas(n, "ready", s.Ready)
	atMostReplicas(n, "terminating", s.Terminating)
}

// maxReplicas bounds the enforcers of one run.
const maxReplicas = 1000

func atMostReplicas(n manifest.Node, path string, value int) {
	if value < 0 || value > maxReplicas {
		n.FaultAt(path, "must be from 0 to 1000")
	}
}

// ReadManifest reads a number, or its bounds.
func (n *Number) ReadManifest(node manifest.Node) {
	if !node.IsMapping() {
		n.Exactly = new(int64)
		node.Decode(n.Exactly)
		return
	}
	var bounds struct {
		AtLeast *int64 `json:"atLeast"`
		AtMost  *int64 `json:"atMost"`
	}
	if !node.Decode(&bounds) {
		return
	}
	n.AtLeast, n.AtMost = bounds.AtLeast, bounds.AtMost
	switch {
	case n.AtLeast == nil && n.AtMost == nil:
		node.Fault("must be a number, {atLeast: 1} or {atMost: 1}")
	case n.AtLeast != nil && n.AtMost != nil && *n.AtLeast > *n.AtMost:
		node.Fault("no number is at least %d and at most %d", *n.AtLeast, *n.AtMost)
	}
}

// ReadManifest reads a duration.
func (d *Duration) ReadManifest(n manifest.Node) {
	var text string
	if n.Decode(&text) {
		*d = parseDuration(n, text)
	}
}

// ReadManifest reads a duration that may be negative.
func (o *Offset) ReadManifest(n manifest.Node) {
	var text string
	if !n.Decode(&text) {
		return
	}
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		*o = -Offset(parseDuration(n, rest))
		return
	}
	*o = Offset(parseDuration(n, text))
}

func parseDuration(n manifest.Node, text string) Duration {
	micros, err := policy.ParseDuration(text)
	if err != nil {
		n.Fault("Invalid value: %q: must be a duration such as 0s, 500ms, 90s or 1h30m", text)
	}
	return Duration(micros) * Duration(time.Microsecond)
}

// choice is a field of which exactly one is to be set.
type choice struct {
	name string
	set  bool
}

// exactlyOne notes a fault unless exactly one of the fields is set.
func exactlyOne(n manifest.Node, fields ...choice) bool {
	names, set := make([]string, len(fields)), 0
	for i, f := range fields {
		names[i] = f.name
		if f.set {
			set++
		}
	}
	if set != 1 {
		n.Fault("exactly one of %s must be set", strings.Join(names, ", "))
	}
	return set == 1
}
