package redisstore

import (
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// dialTimeout bounds one attempt to connect, which runs apart from the request that needed it.
	dialTimeout = 5 * time.Second
	// socketTimeout bounds a reply for requests whose context has no deadline.
	socketTimeout = 3 * time.Second
	// idleTime is below the shortest idle timeout of the load balancers and firewalls in between.
	idleTime = 5 * time.Minute
)

// NewClient builds the client from the application's options. What would send a command twice, or before it was asked
// to, is turned off whatever the options say; sizes and times are defaults.
//
// Deadlines are the callers': a context that ends gives its connection up, so the enforcer waits on a timer of its own
// and lets the batch finish behind it.
func NewClient(options *redis.UniversalOptions) redis.UniversalClient {
	o := *options

	// A command that was perhaps executed must not be sent again: 3 retries charge up to 4 times.
	o.MaxRetries = -1
	// One attempt to connect per request that needs a connection; 5 attempts at 100 ms would hold it for 0.5 s.
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	// CLIENT SETINFO is unknown to Redis 7.0 and refused by narrow ACLs; so is CLIENT MAINT_NOTIFICATIONS.
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// Reads go to the masters: a replica's row may be an old one.
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil

	if o.Protocol == 0 {
		o.Protocol = 2
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = dialTimeout
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = socketTimeout
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = o.ReadTimeout
	}
	if o.PoolSize == 0 {
		// Calls are coalesced: a few batches per node are in flight, and beside them a poll and a heartbeat.
		o.PoolSize = 16
	}
	if o.PipelinePoolSize == 0 {
		// Pipelines are a poll every few seconds; they need no pool of their own.
		o.PipelinePoolSize = -1
	}
	if o.MinIdleConns == 0 {
		// A batch that leaves while another is in flight should not have to connect first.
		o.MinIdleConns = 2
	}
	if o.ConnMaxIdleTime == 0 {
		o.ConnMaxIdleTime = idleTime
	}
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	}
	o.Dialer = lookFirst(o.Dialer)
	if o.MasterName == "" && (len(o.Addrs) > 1 || o.IsClusterMode) {
		cluster := o.Cluster()
		// Each command goes to the node of its first key. Routing by the server's command table would ask for that
		// table first, which ACLs may refuse.
		cluster.DisableRoutingPolicies = true
		return redis.NewClusterClient(cluster)
	}
	return redis.NewUniversalClient(&o)
}
