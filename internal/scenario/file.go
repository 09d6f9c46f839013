package scenario

import (
	"net/netip"
	"time"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
)

// Scenario is one document of a scenario file. Absent fields have their zero values until Load applies the defaults.
type Scenario struct {
	// Name tells what is tested, in a few words. Required.
	Name string `json:"scenario"`
	// Policies are in force from the start.
	Policies []PolicySource `json:"policies"`
	// Workload is whose replicas decide. Default: the target of the first policy, with one replica.
	Workload Workload `json:"workload"`
	// Stores to run on, one after the other. Default: memory.
	Stores []StoreName `json:"stores"`
	// Start is the time of the first instant. Default: 1970-01-01T00:00:00Z, at which windows of every length begin.
	Start time.Time `json:"start"`
	// TrustedProxies are the prefixes of peers whose X-Forwarded-For is believed. Default: none.
	TrustedProxies []netip.Prefix `json:"trustedProxies"`
	// Snapshot says whether policies and replica counts also reach the replicas through the mounted ConfigMap.
	Snapshot Snapshot `json:"snapshot"`
	// Options of the library.
	Options Options `json:"options"`
	// Routes are the templates that the application serves, as patterns of http.ServeMux. A request without a route is
	// routed by them.
	Routes []string `json:"routes"`
	// Propagation says how long events take to reach those whom they concern. Default: Settled.
	Propagation Propagation `json:"propagation"`
	// Steps in the order of time. Required.
	Steps []Step `json:"steps"`

	// File is where it was read from.
	File string `json:"-"`

	node manifest.Node
}

// PolicySource is where policies stand: an object in the scenario itself, or the path of a file that holds some,
// relative to the scenario's file.
type PolicySource struct {
	// Policies are those of the object or file.
	Policies []policy.Policy

	path string // empty for an object
	node manifest.Node
}

// Workload is whose replicas decide.
type Workload struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"` // default: apps
	Kind      string `json:"kind"`  // default: Deployment
	Name      string `json:"name"`
	// Replicas that are ready at the start. Default: 1. Events scale.
	Replicas *int `json:"replicas"`
}

// StoreName is where requests are counted.
type StoreName string

const (
	Memory   StoreName = "memory"
	Redis    StoreName = "redis"
	Postgres StoreName = "postgres"
)

// Supported implements manifest.Enum.
func (StoreName) Supported() []string {
	return []string{string(Memory), string(Redis), string(Postgres)}
}

// Snapshot says how the mounted ConfigMap follows the policy table. The zero value is that there is none.
type Snapshot struct {
	Mounted bool
	// Delay is how long a change takes to reach the mounted file.
	Delay Duration
}

// Options of the library.
type Options struct {
	// StoreTimeout is how long a decision waits for the store. Default: 10 ms.
	StoreTimeout Duration `json:"storeTimeout"`
	// WhenNoPolicy says what happens while no policies were ever read. Default: Open.
	WhenNoPolicy WhenNoPolicy `json:"whenNoPolicy"`
}

// WhenNoPolicy says what happens while no policies were ever read.
type WhenNoPolicy string

const (
	Open   WhenNoPolicy = "Open"
	Closed WhenNoPolicy = "Closed"
)

// Supported implements manifest.Enum.
func (WhenNoPolicy) Supported() []string { return []string{string(Open), string(Closed)} }

// Propagation says how long events take to reach those whom they concern.
type Propagation string

const (
	// Settled: an event is settled at its instant, as if polls and watches took no time.
	Settled Propagation = "Settled"
	// Real: replicas poll and report, and the kubelet takes its time, as in a cluster.
	Real Propagation = "Real"
)

// Supported implements manifest.Enum.
func (Propagation) Supported() []string { return []string{string(Settled), string(Real)} }

// Step is what happens at one time, and what is expected of it.
type Step struct {
	// At is the time since the start. Steps never go back. Required.
	At Duration `json:"at"`
	// Send, Event or an Expect alone: exactly one.
	Send  *Send  `json:"send"`
	Event *Event `json:"event"`
	// Expect stands beside a Send, or alone.
	Expect *Expect `json:"expect"`
}

// Send is a number of like requests.
type Send struct {
	Count *int `json:"count"` // default 1
	// Replica that gets the requests. Default: the first.
	Replica ReplicaChoice `json:"replica"`
	Method  string        `json:"method"` // default GET
	// Path is the escaped path of the request. Where it is absent only the route is known.
	Path string `json:"path"`
	// Route is the template that serves the request. Where it is absent it is found from the path by the scenario's
	// routes; without routes it is not known.
	Route   string           `json:"route"`
	Headers map[string]Lines `json:"headers"`
	// Attributes are what the application says of the request.
	Attributes map[string]string `json:"attributes"`
	// Remote is the peer's address, with or without a port.
	Remote string `json:"remote"`
	// Cost of each request, whatever the attribute is that the policies read costs from.
	Cost *int64 `json:"cost"`
	// Peek asks without being charged.
	Peek bool `json:"peek"`
	// Every is the time between the requests. Default 0: all come at one instant.
	Every Duration `json:"every"`
}

// ReplicaChoice says which replica a request goes to. The zero value is the first one.
type ReplicaChoice struct {
	Index int
	// RoundRobin begins with the first replica and goes on across steps.
	RoundRobin bool
	// Seed of a random choice.
	Seed *int64
}

// Lines are the lines of a header.
type Lines []string

// Event happens to the store, the replicas or the policies: exactly one field is set, beside Replicas.
type Event struct {
	Store *StoreEvent `json:"store"`
	// Replicas are those that the store's event concerns. Default: all.
	Replicas     []int         `json:"replicas"`
	Scale        *Scale        `json:"scale"`
	Policy       *PolicySource `json:"policy"` // an object
	DeletePolicy string        `json:"deletePolicy"`
	Clock        *ClockEvent   `json:"clock"`
	Restart      *int          `json:"restart"`
	Reset        *Reset        `json:"reset"`
}

// StoreState is a state of the store that lasts, or what happens to it at once.
type StoreState string

const (
	StoreDown     StoreState = "Down"     // nobody listens
	StoreUp       StoreState = "Up"       // all is well again
	StoreEmpty    StoreState = "Empty"    // everything in it is lost
	StoreReadOnly StoreState = "ReadOnly" // it takes no writes, as a replica does
)

// Supported implements manifest.Enum.
func (StoreState) Supported() []string {
	return []string{string(StoreDown), string(StoreUp), string(StoreEmpty), string(StoreReadOnly)}
}

// StoreEvent has exactly one field set.
type StoreEvent struct {
	State StoreState
	// Slow is how long the store takes for each answer from now on.
	Slow *Duration
	// LoseReplies is how many of the next writes are done although their replies are lost.
	LoseReplies *int
	// LoseWrites forgets the writes of the last so long, as a failover does.
	LoseWrites *Duration
}

// Scale says how many pods there are. Those that are ready or terminating serve; Down removes the highest index.
type Scale struct {
	Desired     int
	Ready       int
	Terminating int
}

// ClockEvent sets the wall clock of one replica.
type ClockEvent struct {
	Replica int `json:"replica"`
	// Offset from the right time; negative is behind.
	Offset Offset `json:"offset"`
}

// Reset forgets what an identity has used of a rule.
type Reset struct {
	// Rule as namespace/policy/rule, policy/rule or rule.
	Rule string `json:"rule"`
	// Key are the values of the parts of the rule's key, in their order.
	Key Lines `json:"key"`
}

// Duration is a time span of at least 0 in the form of the Gateway API, such as 500ms, 90s or 1h30m.
type Duration time.Duration

// Offset is a Duration that may have a minus in front.
type Offset time.Duration
