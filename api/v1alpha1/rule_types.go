package v1alpha1

// Rule is one list of limits with the requests that it applies to and the identity that it counts by.
//
// +kubebuilder:validation:XValidation:rule="!has(self.whenKeyMissing) || has(self.key)",fieldPath=".whenKeyMissing",message="needs a key: a rule without key counts the whole workload as one"
// +kubebuilder:validation:XValidation:rule="!has(self.localShare) || !has(self.onStoreFailure) || self.onStoreFailure == 'LocalShare'",fieldPath=".localShare",message="only with onStoreFailure: LocalShare"
// +kubebuilder:validation:XValidation:rule=`!has(self.overrides) || self.overrides.all(o, !has(o.limits) || o.limits.all(l, self.limits.exists(b, (has(b.algorithm) ? b.algorithm : 'TokenBucket') == (has(l.algorithm) ? l.algorithm : 'TokenBucket') && (b.window == l.window || duration(b.window) == duration(l.window))) || !l.window.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$'))) || !self.limits.all(l, l.window.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$'))`,fieldPath=".overrides",message="each limit of an override must have the algorithm and window of a limit of the rule: an override changes numbers, not counters"
// +kubebuilder:validation:XValidation:rule="!has(self.lease) || !self.limits.exists(l, has(l.algorithm) && l.algorithm == 'SlidingWindowLog')",fieldPath=".lease",message="not with algorithm SlidingWindowLog, whose limit would no longer hold in every window"
type Rule struct {
	// name identifies the rule within the policy, in metrics, logs and response
	// headers. Counters belong to the name: a renamed rule starts afresh.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`

	// match lists alternatives: the rule applies to a request when one item of the
	// list holds. Absent: it applies to every request.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Match []Match `json:"match,omitempty"` //nolint:kubeapilinter // arrayofstruct: any one of an item's fields is enough, MinProperties demands one

	// key lists the parts that together are the identity that is counted, for
	// example [{header: X-Api-Key}]. Identities are hashed before they are stored.
	// Absent: the whole workload is one identity.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Key []KeyPart `json:"key,omitempty"`

	// whenKeyMissing says what happens to a request that lacks a part of the key.
	// Absent, empty and blank values are the same.
	//
	// - ClientIP (default): the client's address is the identity, in a name space
	//   of its own.
	// - Anonymous: all such requests share one identity.
	// - Deny: the request is denied with status 400.
	// - Skip: the rule does not apply to the request.
	// +optional
	WhenKeyMissing WhenKeyMissing `json:"whenKeyMissing,omitempty"`

	// limits are the numbers; all of them apply to each identity. No two have the
	// same algorithm and window; 60s and 1m are the same window.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule=`self.size() == 1 || self.all(a, self.exists_one(b, (has(a.algorithm) ? a.algorithm : 'TokenBucket') == (has(b.algorithm) ? b.algorithm : 'TokenBucket') && (a.window == b.window || duration(a.window) == duration(b.window)))) || !self.all(l, l.window.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$'))`,message="limits must differ in algorithm or window; 60s and 1m are the same window"
	// +listType=atomic
	// +required
	Limits []Limit `json:"limits,omitempty"`

	// overrides are other numbers for some callers, for example by plan. The first
	// override that holds replaces the limits for the request; its limits use the
	// same counters.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Overrides []Override `json:"overrides,omitempty"`

	// cost says what a request is charged. Absent: every request costs 1.
	// +optional
	Cost Cost `json:"cost,omitzero"`

	// localShare tunes what a replica admits on its own while the store is away.
	// It takes effect while the rule's onStoreFailure is LocalShare.
	// +optional
	LocalShare LocalShare `json:"localShare,omitzero"`

	// lease lets a replica take several requests of one identity at once and
	// admit them without asking the store again. Absent: every request is asked
	// for.
	// +optional
	Lease Lease `json:"lease,omitzero"`

	// prefilter has each replica refuse a flood of one identity before the store
	// is asked. Absent: the store is always asked.
	// +optional
	Prefilter Prefilter `json:"prefilter,omitzero"`

	// mode is Enforce or Shadow for this rule. Default: the policy's mode.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// onStoreFailure is LocalShare, FailOpen or FailClosed for this rule. Default:
	// the policy's onStoreFailure.
	// +optional
	OnStoreFailure OnStoreFailure `json:"onStoreFailure,omitempty"`
}

// Match describes requests; all fields that are set must hold.
//
// +kubebuilder:validation:MinProperties=1
type Match struct {
	// methods are HTTP methods in upper case; the item holds for any one of them.
	// GET includes HEAD. Absent: all.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[A-Z][A-Z0-9_-]*$`
	// +listType=set
	// +optional
	Methods []string `json:"methods,omitempty"`

	// route is the template of the route that the application's router matched,
	// without method and host, for example /users/{id}. Names of parameters do not
	// matter. Where the router gives no template, the request's path is matched
	// against this one.
	//
	// {name} stands for one segment. As the last segment, {name...} stands for all
	// that follow, and {$} for the end of a path that ends with a slash; a
	// template that ends with a slash holds for everything below it.
	// +optional
	Route RouteTemplate `json:"route,omitempty"`

	// pathPrefix compares whole segments of the request's path: /api holds for
	// /api and /api/x, not for /apix. A trailing slash does not matter; / holds
	// for every path.
	// +optional
	PathPrefix PathPrefix `json:"pathPrefix,omitempty"`

	// headers are header lines that the request must have, all of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.size() == 1 || self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="names of headers must differ, and upper and lower case are the same"
	// +listType=atomic
	// +optional
	Headers []HeaderMatch `json:"headers,omitempty"`
}

// RouteTemplate is a path template in the form of Go's ServeMux, without method and host.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="must start with /: a path template without method and host"
// +kubebuilder:validation:XValidation:rule="!self.contains('//')",message="must not contain //"
// +kubebuilder:validation:XValidation:rule=`!self.matches('(?i)/([.]|%2e){1,2}(/|$)')`,message="must not contain the segments . or .."
// +kubebuilder:validation:XValidation:rule=`self.matches('^([^?#% [:cntrl:]]|%[0-9A-Fa-f]{2})*$')`,message="must not contain blanks, control characters, ? or #, and % only before two hexadecimal digits"
// +kubebuilder:validation:XValidation:rule=`self.matches('^[^/{}]*(/([^/{}]*|[{][A-Za-z_][A-Za-z0-9_]*[}]))*(/[{]([A-Za-z_][A-Za-z0-9_]*[.]{3}|[$])[}])?$')`,message="a wildcard is a whole segment: {name}, or as the last one {name...} or {$}"
type RouteTemplate string

// PathPrefix is a literal path.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="must start with /"
// +kubebuilder:validation:XValidation:rule="!self.contains('//')",message="must not contain //"
// +kubebuilder:validation:XValidation:rule=`!self.matches('(?i)/([.]|%2e){1,2}(/|$)')`,message="must not contain the segments . or .."
// +kubebuilder:validation:XValidation:rule=`self.matches('^([^?#% [:cntrl:]]|%[0-9A-Fa-f]{2})*$')`,message="must not contain blanks, control characters, ? or #, and % only before two hexadecimal digits"
// +kubebuilder:validation:XValidation:rule="!self.matches('[{}]')",message="must not contain { or }: wildcards are for route"
type PathPrefix string

// HeaderMatch holds when the request has a line of the header with exactly this value.
type HeaderMatch struct {
	// name is the name of the header; upper and lower case are the same.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
	// +required
	Name string `json:"name,omitempty"`

	// value is the exact value of one line of the header. It is compared with
	// case, and cannot begin or end with a blank.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^[:cntrl:] ]([^[:cntrl:]]*[^[:cntrl:] ])?$`
	// +required
	Value string `json:"value,omitempty"`
}

// KeyPart is one part of an identity.
//
// +kubebuilder:validation:ExactlyOneOf=header;attribute;clientIP;request;firstOf
type KeyPart struct {
	// header is the name of a request header whose value is the part; upper and
	// lower case of the name are the same. A client can send any value: use it for
	// identities that the application checks, such as API keys.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
	// +optional
	Header string `json:"header,omitempty"`

	// attribute is the name of a value that the application sets for the request,
	// for example user or tenant.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	// +optional
	Attribute string `json:"attribute,omitempty"`

	// clientIP is the client's address, found through the application's trusted
	// proxies. {} takes the defaults.
	// +optional
	ClientIP *ClientIP `json:"clientIP,omitempty"`

	// request is a property of the request: Route (the template of its route) or
	// Method.
	// +optional
	Request RequestKey `json:"request,omitempty"`

	// firstOf takes the first of its parts that the request has.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +optional
	FirstOf []FirstOfKeyPart `json:"firstOf,omitempty"`
}

// FirstOfKeyPart is one alternative of a part of an identity.
//
// +kubebuilder:validation:ExactlyOneOf=header;attribute;clientIP;request
type FirstOfKeyPart struct {
	// header is the name of a request header whose value is the part; upper and
	// lower case of the name are the same.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
	// +optional
	Header string `json:"header,omitempty"`

	// attribute is the name of a value that the application sets for the request,
	// for example user or tenant.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	// +optional
	Attribute string `json:"attribute,omitempty"`

	// clientIP is the client's address, found through the application's trusted
	// proxies. {} takes the defaults.
	// +optional
	ClientIP *ClientIP `json:"clientIP,omitempty"`

	// request is a property of the request: Route (the template of its route) or
	// Method.
	// +optional
	Request RequestKey `json:"request,omitempty"`
}

// ClientIP masks the client's address, so that a whole network is one identity.
type ClientIP struct {
	// ipv4PrefixLength is how many leading bits of an IPv4 address count. Default:
	// 32.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +optional
	IPv4PrefixLength int32 `json:"ipv4PrefixLength,omitempty"`

	// ipv6PrefixLength is how many leading bits of an IPv6 address count. Default:
	// 64, because one user has a whole /64.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +optional
	IPv6PrefixLength int32 `json:"ipv6PrefixLength,omitempty"`
}

// RequestKey names a property of the request itself.
//
// +kubebuilder:validation:Enum=Route;Method
type RequestKey string

const (
	// RequestKeyRoute is the template of the request's route.
	RequestKeyRoute RequestKey = "Route"
	// RequestKeyMethod is the method of the request.
	RequestKeyMethod RequestKey = "Method"
)

// WhenKeyMissing says what happens to a request that lacks a part of the rule's key.
//
// +kubebuilder:validation:Enum=ClientIP;Anonymous;Deny;Skip
type WhenKeyMissing string

const (
	// WhenKeyMissingClientIP counts by the client's address, in a name space of its own.
	WhenKeyMissingClientIP WhenKeyMissing = "ClientIP"
	// WhenKeyMissingAnonymous counts all such requests as one identity.
	WhenKeyMissingAnonymous WhenKeyMissing = "Anonymous"
	// WhenKeyMissingDeny denies with status 400.
	WhenKeyMissingDeny WhenKeyMissing = "Deny"
	// WhenKeyMissingSkip passes the rule over.
	WhenKeyMissingSkip WhenKeyMissing = "Skip"
)
