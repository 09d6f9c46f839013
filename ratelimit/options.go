package ratelimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// Options says what a Limiter limits and by what means. Namespace, Workload, and Redis or Counters must be set; every
// other zero value is a default.
type Options struct {
	// Namespace and Workload name what the policies target. Workload is the name of a Deployment, "checkout", or
	// "group/kind/name".
	Namespace string
	Workload  string

	// Table is the name of the policy table in Redis, as the controller's --table. Default "default".
	Table string

	// Redis is where the policies and the counters are. The limiter makes its own client of these options: retries are
	// off whatever they say, because a command that was sent twice would be charged twice. go-redis itself writes a line
	// to stderr for each connection that fails; its logger is the whole process's, so only the application may change
	// it, with redis.SetLogger.
	Redis *redis.UniversalOptions

	// Counters is where requests are counted. Default: in Redis. Memory counts in this process.
	Counters Counters

	// Policies replaces the policy table and the snapshot files. Default: the table in Redis, and without Redis the
	// snapshot file alone. Package ratelimit/file reads policies as YAML.
	Policies PolicySource

	// SnapshotFile is where the pod mounts the ConfigMap that the controller writes for policies with snapshot:
	// ConfigMap. It is read at every poll. Its policies and its replica count are used whenever they are newer than what
	// the policy table gave, so that a replica which starts while Redis is away enforces. It may be absent; one that is
	// bad leaves in force what is. Default "/etc/weir/row.json", or none if Policies is set.
	SnapshotFile string

	// SnapshotCache is a file of this replica's own, in an emptyDir, in which the newest policies and replica count are
	// kept for a container that restarts while Redis is away. Its folder must exist and be writable; up to 517 KiB, twice
	// while it is replaced. Default: none.
	SnapshotCache string

	// Attributes tells what the application knows of a request: its user, tenant, plan, price. Policies read them as
	// {attribute: plan}, and nothing that a client sends is one unless this function makes it one. It runs before every
	// decision. Default: none.
	Attributes func(*http.Request) Attributes

	// Route returns the template of the route that serves a request, such as "/users/{id}", for routers that the
	// middleware does not know. An empty string leaves it to the middleware. NoRoute says that none does.
	Route func(*http.Request) string

	// Reserve says which requests have handlers that settle what they cost: Middleware gives those a Reservation, which
	// FromContext returns. Default: none.
	Reserve func(*http.Request) bool

	// IdentityName names who makes a request, such as its tenant, for the list of identities denied most that `kubectl
	// weir top` shows. The name is kept in Redis as it is, up to 64 bytes, for up to two minutes after the last denial. It
	// is called for requests that are denied, from many goroutines. Default: none, and the list has the hashes by which
	// requests are counted. They have no secret: of an address, or of a key that can be guessed, whoever sees the hash
	// can find it by trying.
	IdentityName func(Request) string

	// OnDecision is called by the middleware after each decision, before anything is written. Default: nothing.
	OnDecision func(http.ResponseWriter, *http.Request, Decision)

	// Respond answers the requests that the middleware denies, with Decision.Status or another one. Retry-After and the
	// other headers are set. Default: Decision.WriteProblem.
	Respond func(http.ResponseWriter, *http.Request, Decision)

	// LegacyHeaders has the middleware add X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, the last in
	// seconds of Unix time, for clients that know only these. Default: false.
	LegacyHeaders bool

	// ExposeHeaders has the middleware add Access-Control-Expose-Headers to answers to other origins, so that scripts in
	// browsers can read the headers. Default: false, as it is often the application's own CORS middleware that says so.
	ExposeHeaders bool

	// RetryJitter lengthens each Retry-After by a random time of at most so much, so that clients that were denied
	// together do not come back together. The RateLimit field stays exact. Default: 0.
	RetryJitter time.Duration

	// TrustedProxies are the addresses whose X-Forwarded-For is believed. Default: none, and the client is the peer.
	TrustedProxies []netip.Prefix

	// WhenNoPolicy says what happens while no policies were ever read. Default: Open.
	WhenNoPolicy WhenNoPolicy

	// StoreTimeout is how long a decision waits for the store; then the rule's onStoreFailure decides. Default 10 ms.
	StoreTimeout time.Duration

	// StartTimeout is how long WaitReady waits for policies. Default 5 s.
	StartTimeout time.Duration

	// PollInterval is how often the policies are read anew, apart from being told of changes. Default 5 s, drawn from
	// its upper half.
	PollInterval time.Duration

	// MaxKeys bounds the counters kept in this process, for local shares and for Memory each: about 250 bytes a
	// counter, for local shares 600. Default 100,000.
	MaxKeys int

	// Pod is this replica's name in the policy's status. Default: the host's name.
	Pod string

	// Tracer hears of decisions and of the requests to the store that they make. Module ratelimit/otellimit makes
	// OpenTelemetry spans of them. Default: none.
	Tracer Tracer

	// Registerer gets the metrics. Default: none are made.
	Registerer prometheus.Registerer

	// Logger gets what an operator should know. Default: silent.
	Logger *slog.Logger
}

// WhenNoPolicy says what happens while no policies were ever read.
type WhenNoPolicy string

// The values of WhenNoPolicy.
const (
	Open   WhenNoPolicy = "Open"   // requests are admitted
	Closed WhenNoPolicy = "Closed" // requests are denied with 503
)

// DefaultSnapshotFile is the SnapshotFile of Options that name none.
const DefaultSnapshotFile = "/etc/weir/row.json"

// OptionsFromEnv reads the environment that Weir's pod template fragment sets:
//
//	WEIR_TABLE            the table, "default" if unset
//	WEIR_NAMESPACE        the pod's namespace
//	WEIR_WORKLOAD         the name of its Deployment, or group/kind/name
//	WEIR_TRUSTED_PROXIES  prefixes or addresses, separated by commas
//	WEIR_SNAPSHOT_FILE    SnapshotFile, "/etc/weir/row.json" if unset
//	WEIR_SNAPSHOT_CACHE   SnapshotCache, none if unset
//	POD_NAME              the pod's name
//
// Nothing else in this package reads the environment.
func OptionsFromEnv() (Options, error) {
	proxies, err := parsePrefixes(os.Getenv("WEIR_TRUSTED_PROXIES"))
	if err != nil {
		return Options{}, fmt.Errorf("reading WEIR_TRUSTED_PROXIES: %w", err)
	}
	return Options{
		Namespace:      os.Getenv("WEIR_NAMESPACE"),
		Workload:       os.Getenv("WEIR_WORKLOAD"),
		Table:          os.Getenv("WEIR_TABLE"),
		SnapshotFile:   os.Getenv("WEIR_SNAPSHOT_FILE"),
		SnapshotCache:  os.Getenv("WEIR_SNAPSHOT_CACHE"),
		TrustedProxies: proxies,
		Pod:            os.Getenv("POD_NAME"),
	}, nil
}

func parsePrefixes(list string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if addr, err := netip.ParseAddr(item); err == nil {
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", item)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// workload reads Namespace and Workload.
func (o *Options) workload() (policy.Workload, error) {
	if o.Namespace == "" || o.Workload == "" {
		return policy.Workload{}, errors.New("options Namespace and Workload must be set (WEIR_NAMESPACE, WEIR_WORKLOAD)")
	}
	w, err := policy.ParseWorkload(o.Namespace + "/" + o.Workload)
	if err != nil {
		return policy.Workload{}, err
	}
	return w, nil
}

func (o *Options) validate() error {
	switch o.WhenNoPolicy {
	case "", Open, Closed:
	default:
		return fmt.Errorf("WhenNoPolicy is %q, want Open or Closed", o.WhenNoPolicy)
	}
	for name, d := range map[string]time.Duration{
		"StoreTimeout": o.StoreTimeout, "StartTimeout": o.StartTimeout, "PollInterval": o.PollInterval,
		"RetryJitter": o.RetryJitter,
	} {
		if d < 0 {
			return fmt.Errorf("%s is %v, want 0 for the default or more", name, d)
		}
	}
	if o.MaxKeys < 0 {
		return fmt.Errorf("MaxKeys is %d, want 0 for the default or more", o.MaxKeys)
	}
	if o.Redis == nil && o.Counters == nil {
		return errors.New("option Redis must be set, unless Counters is")
	}
	if o.Policies != nil && (o.SnapshotFile != "" || o.SnapshotCache != "") {
		return errors.New("options SnapshotFile and SnapshotCache must not be set beside Policies, which replaces them")
	}
	return nil
}

// Counters is where requests are counted: what Memory returns, or what another package of this module does. Its method
// names internal types, so no other module can implement it.
type Counters interface {
	OpenStore(Options) (enforcer.Store, error)
}
