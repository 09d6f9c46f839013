package ratelimit_test

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
)

// noPolicies is a source without policies.
type noPolicies struct{}

func (noPolicies) ReadRow(context.Context, string) ([]byte, error) { return nil, nil }

func TestOptionsFromEnv(t *testing.T) {
	tests := map[string]struct {
		env  map[string]string
		want ratelimit.Options
		err  string
	}{
		"nothing is set": {want: ratelimit.Options{}},
		"all is set": {
			env: map[string]string{
				"WEIR_TABLE": "blue", "WEIR_NAMESPACE": "shop", "WEIR_WORKLOAD": "checkout", "POD_NAME": "checkout-1",
				"WEIR_TRUSTED_PROXIES": "10.0.0.0/8, 192.0.2.1,2001:db8::/32,",
				"WEIR_SNAPSHOT_FILE":   "/etc/limits/row.json", "WEIR_SNAPSHOT_CACHE": "/var/cache/weir/row.json",
			},
			want: ratelimit.Options{
				Table: "blue", Namespace: "shop", Workload: "checkout", Pod: "checkout-1",
				SnapshotFile: "/etc/limits/row.json", SnapshotCache: "/var/cache/weir/row.json",
				TrustedProxies: []netip.Prefix{
					netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/32"),
				},
			},
		},
		"a proxy that is no address": {env: map[string]string{"WEIR_TRUSTED_PROXIES": "proxy.example"}, err: `WEIR_TRUSTED_PROXIES: "proxy.example"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"WEIR_TABLE", "WEIR_NAMESPACE", "WEIR_WORKLOAD", "WEIR_TRUSTED_PROXIES", "WEIR_SNAPSHOT_FILE", "WEIR_SNAPSHOT_CACHE", "POD_NAME"} {
				t.Setenv(v, tc.env[v])
			}
			got, err := ratelimit.OptionsFromEnv()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	tests := map[string]struct {
		change func(*ratelimit.Options)
		err    string
	}{
		"good":                        {func(*ratelimit.Options) {}, ""},
		"a workload in full":          {func(o *ratelimit.Options) { o.Workload = "apps/Deployment/checkout" }, ""},
		"counters and a snapshot":     {func(o *ratelimit.Options) { o.Policies, o.SnapshotFile = nil, "row.json" }, ""},
		"Redis alone":                 {func(o *ratelimit.Options) { o.Counters, o.Policies = nil, nil; o.Redis = &redis.UniversalOptions{} }, ""},
		"no namespace":                {func(o *ratelimit.Options) { o.Namespace = "" }, "Namespace"},
		"no workload":                 {func(o *ratelimit.Options) { o.Workload = "" }, "Workload"},
		"a workload of three parts":   {func(o *ratelimit.Options) { o.Workload = "Deployment/checkout" }, "workload"},
		"no store":                    {func(o *ratelimit.Options) { o.Counters = nil }, "Redis"},
		"policies and a snapshot":     {func(o *ratelimit.Options) { o.SnapshotFile = "row.json" }, "SnapshotFile"},
		"policies and a cache":        {func(o *ratelimit.Options) { o.SnapshotCache = "row.json" }, "SnapshotCache"},
		"a negative timeout":          {func(o *ratelimit.Options) { o.StoreTimeout = -time.Second }, "StoreTimeout"},
		"a negative bound":            {func(o *ratelimit.Options) { o.MaxKeys = -1 }, "MaxKeys"},
		"an unknown choice":           {func(o *ratelimit.Options) { o.WhenNoPolicy = "Ajar" }, "WhenNoPolicy"},
		"a table that breaks the key": {func(o *ratelimit.Options) { o.Redis, o.Table = &redis.UniversalOptions{}, "a}b" }, "table"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := ratelimit.Options{Namespace: "shop", Workload: "checkout", Counters: ratelimit.Memory(), Policies: noPolicies{}}
			tc.change(&o)
			_, err := ratelimit.New(o)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}

func TestWhenNoPolicy(t *testing.T) {
	for choice, want := range map[ratelimit.WhenNoPolicy]int{"": http.StatusOK, ratelimit.Open: http.StatusOK, ratelimit.Closed: http.StatusServiceUnavailable} {
		limiter, err := ratelimit.New(ratelimit.Options{
			Namespace: "shop", Workload: "checkout", Counters: ratelimit.Memory(), Policies: noPolicies{}, WhenNoPolicy: choice,
		})
		if err != nil {
			t.Fatal(err)
		}
		w := serve(limiter.Middleware(ok), http.MethodGet, "/")
		if w.Code != want {
			t.Errorf("%q: status %d, want %d", choice, w.Code, want)
		}
		if want == http.StatusServiceUnavailable {
			wantProblem(t, w, want, map[string]any{
				"type":   "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
				"title":  "Request cannot be satisfied due to temporary server capacity constraints",
				"status": 503.0,
			})
			if w.Header().Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q, want 1", w.Header().Get("Retry-After"))
			}
		}
	}
}
