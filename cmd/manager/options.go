package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weir-dev/weir/internal/redisstore"
)

// options are all that the process can be told. They are bound, parsed and validated here and nowhere else.
type options struct {
	redis      redisOptions
	table      string
	namespaces list
	snapshots  bool

	metrics      metricsOptions
	probeAddress string

	leaderElect    bool
	leaseNamespace string
	resync         time.Duration

	log zap.Options
}

// metricsOptions say who can read the metrics, and how.
type metricsOptions struct {
	address  string
	secure   bool
	auth     bool
	certFile string
	keyFile  string
}

// redisOptions say where the policy table is.
type redisOptions struct {
	addresses    list
	username     string
	passwordFile string
	db           int

	sentinelMaster       string
	sentinelUsername     string
	sentinelPasswordFile string

	tls           bool
	tlsCAFile     string
	tlsCertFile   string
	tlsKeyFile    string
	tlsServerName string
}

// list is a flag of several values, separated by commas or given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			return errors.New("has an empty item")
		}
		*l = append(*l, item)
	}
	return nil
}

// ownNamespace is where Kubernetes tells a pod its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

const (
	// minResync keeps a slip of the pen from becoming a load on Redis.
	minResync     = time.Second
	defaultResync = 30 * time.Second
)

// parse reads the arguments. With flag.ErrHelp the usage has been written to out; any other error is one line.
func parse(args []string, getenv func(string) string, out io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is told once, by the caller
	o.bind(flags, getenv)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(out)
			flags.Usage()
		}
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.leaseNamespace == "" {
		if namespace, err := os.ReadFile(ownNamespace); err == nil {
			o.leaseNamespace = strings.TrimSpace(string(namespace))
		}
	}
	return o, o.validate()
}

func (o *options) bind(flags *flag.FlagSet, getenv func(string) string) {
	table := getenv("WEIR_TABLE")
	if table == "" {
		table = redisstore.DefaultTable
	}
	flags.Var(&o.redis.addresses, "redis-address",
		"host:port of Redis; several, separated by commas, are the seeds of a Redis Cluster or the Sentinels; required, unless --snapshots is all that is wanted")
	flags.StringVar(&o.redis.username, "redis-username", "", "user of Redis")
	flags.StringVar(&o.redis.passwordFile, "redis-password-file", "",
		"file with the password for Redis; read anew for each connection, so that it can be rotated")
	flags.IntVar(&o.redis.db, "redis-db", 0, "number of the Redis database; a Redis Cluster has only 0")
	flags.StringVar(&o.redis.sentinelMaster, "redis-sentinel-master", "",
		"name of the master that the Sentinels at --redis-address watch")
	flags.StringVar(&o.redis.sentinelUsername, "redis-sentinel-username", "", "user of the Sentinels")
	flags.StringVar(&o.redis.sentinelPasswordFile, "redis-sentinel-password-file", "",
		"file with the password for the Sentinels; read anew every 10 s, and taken into use when they accept it")
	flags.BoolVar(&o.redis.tls, "redis-tls", false, "connect to Redis, and to its Sentinels, with TLS")
	flags.StringVar(&o.redis.tlsCAFile, "redis-tls-ca-file", "",
		"file with the certificates of the authorities to trust, the system's when absent; read anew for each connection, as are the next two")
	flags.StringVar(&o.redis.tlsCertFile, "redis-tls-cert-file", "", "file with this client's certificate")
	flags.StringVar(&o.redis.tlsKeyFile, "redis-tls-key-file", "", "file with the key of this client's certificate")
	flags.StringVar(&o.redis.tlsServerName, "redis-tls-server-name", "",
		"name that the certificate of Redis must be for; the host's when absent")
	flags.StringVar(&o.table, "table", table,
		"name of the policy table, which sets installations apart that share a Redis; WEIR_TABLE sets the default")
	flags.Var(&o.namespaces, "namespaces", "namespaces whose policies are looked after, separated by commas; all when absent")
	flags.BoolVar(&o.snapshots, "snapshots", false,
		"keep a ConfigMap for each workload whose policies ask for it; needs the rights of config/components/snapshot")
	flags.StringVar(&o.metrics.address, "metrics-bind-address", ":8443", "address to serve /metrics on; 0 serves none")
	flags.BoolVar(&o.metrics.secure, "metrics-secure", true, "serve metrics with TLS")
	flags.BoolVar(&o.metrics.auth, "metrics-auth", true,
		"serve metrics only to who may get the URL /metrics, as the API server says; needs --metrics-secure and the right to create TokenReviews and SubjectAccessReviews")
	flags.StringVar(&o.metrics.certFile, "metrics-tls-cert-file", "",
		"file with the certificate to serve metrics with, read anew when it changes; one signed by itself when absent")
	flags.StringVar(&o.metrics.keyFile, "metrics-tls-key-file", "", "file with the key of that certificate")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address to serve /healthz and /readyz on; 0 serves none")
	flags.BoolVar(&o.leaderElect, "leader-elect", true,
		"wait for leadership before writing; without it this process takes the Lease at once from whoever has it")
	flags.StringVar(&o.leaseNamespace, "leader-election-namespace", "",
		"namespace of the Lease; the pod's own when absent")
	flags.DurationVar(&o.resync, "resync", defaultResync,
		"how often each workload is compared with the policy table although nothing has happened")
	config.RegisterFlags(flags)
	o.log.BindFlags(flags)
}

var nameRegexp = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (o *options) validate() error {
	if err := o.redis.validate(!o.snapshots); err != nil {
		return err
	}
	if err := redisstore.ValidateTable(o.table); err != nil {
		return fmt.Errorf("--table: %w", err)
	}
	for _, namespace := range o.namespaces {
		if !nameRegexp.MatchString(namespace) {
			return fmt.Errorf("--namespaces: %q is no name of a namespace", namespace)
		}
	}
	if err := o.metrics.validate(); err != nil {
		return err
	}
	if err := validateAddress("--health-probe-bind-address", o.probeAddress); err != nil {
		return err
	}
	switch {
	case o.leaseNamespace == "":
		return errors.New("--leader-election-namespace is required outside of a pod")
	case !nameRegexp.MatchString(o.leaseNamespace):
		return fmt.Errorf("--leader-election-namespace: %q is no name of a namespace", o.leaseNamespace)
	case o.resync < minResync:
		return fmt.Errorf("--resync: want at least %v, got %v", minResync, o.resync)
	}
	return nil
}

func validateAddress(flag, address string) error {
	if address == "0" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s: want host:port, :port or 0, got %q", flag, address)
	}
	return nil
}

func (m *metricsOptions) validate() error {
	switch {
	case m.auth && !m.secure:
		return errors.New("--metrics-auth needs --metrics-secure: a token must not be sent in the clear")
	case isSet(m.certFile) != isSet(m.keyFile):
		return errors.New("--metrics-tls-cert-file and --metrics-tls-key-file go together")
	case isSet(m.certFile) && !m.secure:
		return errors.New("--metrics-tls-… need --metrics-secure")
	}
	return validateAddress("--metrics-bind-address", m.address)
}

func (r *redisOptions) validate(required bool) error {
	switch {
	case len(r.addresses) > 0:
	case required:
		return errors.New("--redis-address is required, unless --snapshots is given")
	case !reflect.ValueOf(*r).IsZero():
		return errors.New("--redis-… need --redis-address")
	default:
		return nil
	}
	for _, address := range r.addresses {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return fmt.Errorf("--redis-address: want host:port, got %q", address)
		}
	}
	switch {
	case r.db < 0:
		return fmt.Errorf("--redis-db: want 0 or more, got %d", r.db)
	case r.db > 0 && r.isCluster():
		return errors.New("--redis-db: several addresses without --redis-sentinel-master are a Redis Cluster, which has only database 0")
	case r.username != "" && r.passwordFile == "":
		return errors.New("--redis-username needs --redis-password-file")
	case r.sentinelUsername != "" && r.sentinelPasswordFile == "":
		return errors.New("--redis-sentinel-username needs --redis-sentinel-password-file")
	case r.sentinelPasswordFile != "" && r.sentinelMaster == "":
		return errors.New("--redis-sentinel-password-file needs --redis-sentinel-master")
	case !r.tls && slices.ContainsFunc([]string{r.tlsCAFile, r.tlsCertFile, r.tlsKeyFile, r.tlsServerName}, isSet):
		return errors.New("--redis-tls-… need --redis-tls")
	case isSet(r.tlsCertFile) != isSet(r.tlsKeyFile):
		return errors.New("--redis-tls-cert-file and --redis-tls-key-file go together")
	}
	return nil
}

func (r *redisOptions) isCluster() bool { return len(r.addresses) > 1 && r.sentinelMaster == "" }

func isSet(s string) bool { return s != "" }
