package v1alpha1

// Limit is a number of requests in a window of time.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || !has(self.algorithm) || self.algorithm == 'TokenBucket'",fieldPath=".burst",message="only with algorithm TokenBucket"
// +kubebuilder:validation:XValidation:rule="!has(self.algorithm) || self.algorithm != 'SlidingWindowLog' || self.requests <= 10000",fieldPath=".requests",message="must be at most 10000 with algorithm SlidingWindowLog, which keeps one entry for each request"
type Limit struct {
	// requests is how many requests are admitted in a window; a request with a
	// cost counts as many. 0 denies every request. At most 1000000000; with
	// SlidingWindowLog at most 10000.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	// +required
	Requests *int64 `json:"requests,omitempty"`

	// window is a length of time from 100ms to 744h (31 days), written with the
	// units h, m, s and ms, for example 500ms, 90s, 1m or 1h30m. Fractions and
	// days have no spelling: write 30m, not 0.5h, and 24h, not 1d.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=28
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('100ms') && duration(self) <= duration('744h')`,message="must be a duration from 100ms to 744h, written like 500ms, 90s or 1h30m"
	// +required
	Window string `json:"window,omitempty"`

	// algorithm says how the requests are counted.
	//
	// - TokenBucket (default): requests flow evenly, and after a pause up to burst
	//   of them are admitted at once.
	// - FixedWindow: windows start at whole multiples of their length. Twice the
	//   number can pass around an edge.
	// - SlidingWindowCounter: the previous window counts by the part that is still
	//   covered.
	// - SlidingWindowLog: exact, with an entry for each request.
	// +optional
	Algorithm Algorithm `json:"algorithm,omitempty"`

	// burst is how many requests are admitted at once after a pause. TokenBucket
	// only. Default: requests.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	// +optional
	Burst int64 `json:"burst,omitempty"`
}

// Algorithm names how a limit is counted.
//
// +kubebuilder:validation:Enum=TokenBucket;FixedWindow;SlidingWindowCounter;SlidingWindowLog
type Algorithm string

const (
	// TokenBucket refills continuously at requests per window, up to burst.
	TokenBucket Algorithm = "TokenBucket"
	// FixedWindow counts in windows that start at whole multiples of their length.
	FixedWindow Algorithm = "FixedWindow"
	// SlidingWindowCounter weighs the previous window by the part that is still covered.
	SlidingWindowCounter Algorithm = "SlidingWindowCounter"
	// SlidingWindowLog keeps an entry for each request.
	SlidingWindowLog Algorithm = "SlidingWindowLog"
)

// Override is other numbers for the requests whose attribute holds.
//
// +kubebuilder:validation:XValidation:rule="has(self.limits) != (has(self.unlimited) && self.unlimited)",message="exactly one of limits and unlimited: true must be set"
type Override struct {
	// when says which requests the override is for. It reads an attribute, which
	// the application sets: a client cannot choose its own tier.
	// +required
	When AttributeMatch `json:"when,omitzero"`

	// limits replace the rule's limits. Each has the algorithm and window of a
	// limit of the rule, and so its counter.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule=`self.size() == 1 || self.all(a, self.exists_one(b, (has(a.algorithm) ? a.algorithm : 'TokenBucket') == (has(b.algorithm) ? b.algorithm : 'TokenBucket') && (a.window == b.window || duration(a.window) == duration(b.window)))) || !self.all(l, l.window.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$'))`,message="limits must differ in algorithm or window; 60s and 1m are the same window"
	// +listType=atomic
	// +optional
	Limits []Limit `json:"limits,omitempty"`

	// unlimited lifts the rule's limits: the request is neither charged nor denied
	// by this rule.
	// +optional
	Unlimited bool `json:"unlimited,omitempty"` //nolint:kubeapilinter // nobools: it is one arm of a union, and has no third state
}

// AttributeMatch holds when the attribute has one of the values.
type AttributeMatch struct {
	// attribute is the name of a value that the application sets for the request,
	// for example plan.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	// +required
	Attribute string `json:"attribute,omitempty"`

	// values are compared exactly, with case.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +required
	Values []string `json:"values,omitempty"`
}

// Cost reads the price of a request from an attribute, which the application sets: a client cannot choose its price.
type Cost struct {
	// attribute is the name of the value that holds the cost, a whole number from
	// 1. A request without it, or with anything else in it, costs 1.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	// +required
	Attribute string `json:"attribute,omitempty"`

	// max is the highest cost that is charged: a higher value counts as this one.
	// A cost above what a limit can ever hold is denied, and waiting does not
	// help.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +required
	Max int64 `json:"max,omitempty"`
}

// LocalShare tunes what a replica admits on its own while the store is away.
//
// +kubebuilder:validation:MinProperties=1
type LocalShare struct {
	// rounding says what happens to shares while replicas come and go, and where
	// there are fewer requests than replicas.
	//
	// - NeverZero (default): every replica admits something. While replicas come
	//   and go the sum can pass the limit for a window.
	// - NeverExceed: the sum never passes the limit. A replica can be mute for a
	//   window.
	// +optional
	Rounding Rounding `json:"rounding,omitempty"`
}

// Rounding says how a local share is rounded while replicas come and go.
//
// +kubebuilder:validation:Enum=NeverZero;NeverExceed
type Rounding string

const (
	// RoundingNeverZero never leaves a replica mute.
	RoundingNeverZero Rounding = "NeverZero"
	// RoundingNeverExceed never lets the sum of the shares pass the limit.
	RoundingNeverExceed Rounding = "NeverExceed"
)

// Lease lets a replica take several requests at once.
type Lease struct {
	// tokens is how many requests of one identity a replica takes from the store
	// at most: fewer as the limit runs out, and one that is not used for a moment
	// is given back. Windows are never exceeded by it. A TokenBucket admits up to
	// tokens for each replica more than its burst at once, and at most what it
	// earns in a twentieth of its window.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=10000
	// +required
	Tokens int32 `json:"tokens,omitempty"`
}

// Prefilter has each replica refuse a flood before the store is asked.
type Prefilter struct {
	// multiple of its share of the limit is what a replica asks the store for in
	// a window; the rest it denies by itself. Where it is lower than the number of
	// replicas, requests that reach the replicas unevenly are denied although the
	// store would admit them.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +required
	Multiple int32 `json:"multiple,omitempty"`
}
