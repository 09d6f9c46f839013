package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
)

// publish writes the row that the controller would.
func publish(t *testing.T, addr string, rules ...policy.Rule) {
	t.Helper()
	w := policy.Workload{Namespace: "shop", Group: "apps", Kind: "Deployment", Name: "checkout"}
	row, verdicts := policy.Compile(w, "test", []policy.Policy{{
		Metadata: policy.Metadata{Namespace: "shop", Name: "checkout", UID: "uid", Generation: 1},
		Spec:     policy.Spec{TargetRef: policy.TargetRef{Group: "apps", Kind: "Deployment", Name: "checkout"}, Rules: rules},
	}})
	if !verdicts[0].Accepted() {
		t.Fatal(verdicts[0].Message)
	}
	row.Revision, row.PolicyList = policy.Revision{Epoch: "1", N: 1}, "1"
	client := redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	defer client.Close()
	table := redisstore.NewTable(client, "", "test")
	if _, err := table.Claim(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if refusal, err := table.Publish(t.Context(), w, row); err != nil || refusal != policy.Accepted {
		t.Fatalf("publishing: %q, %v", refusal, err)
	}
}

func TestCheckout(t *testing.T) {
	server := env.Redis(t, env.RedisOptions{})
	five := int64(5)
	publish(t, server.Addr, policy.Rule{
		Name:   "exports",
		Match:  []policy.Match{{Methods: []string{http.MethodPost}, Route: "/exports"}},
		Key:    []policy.KeyPart{{Header: "X-Api-Key"}},
		Limits: []policy.Limit{{Requests: &five, Window: "1h"}},
	})
	t.Setenv("WEIR_NAMESPACE", "shop")
	t.Setenv("WEIR_WORKLOAD", "checkout")
	t.Setenv("POD_NAME", "checkout-1")

	ctx, cancel := context.WithCancel(t.Context())
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, settings{listen: "127.0.0.1:0", redis: server.Addr, drain: 5 * time.Second}, out)
	}()
	line, err := bufio.NewReader(printed).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))

	send := func(method, path string) (int, http.Header, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", "alice")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header, string(body)
	}
	statuses := make(map[int]int)
	for range 8 {
		status, header, _ := send(http.MethodPost, "/exports")
		statuses[status]++
		if header.Get("X-Weir-Rule") != "checkout/exports" || header.Get("X-Weir-Decision-Us") == "" {
			t.Errorf("header %v", header)
		}
	}
	if statuses[http.StatusAccepted] != 5 || statuses[http.StatusTooManyRequests] != 3 {
		t.Errorf("statuses %v, want 5 accepted and 3 over the limit", statuses)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/": "checkout\n", "/users/7": "user 7\n"} {
		if _, header, body := send(http.MethodGet, path); body != want || header.Get("X-Weir-Source") != "NoRule" {
			t.Errorf("GET %s: %q by %s, want %q by NoRule", path, body, header.Get("X-Weir-Source"), want)
		}
	}
	_, _, metrics := send(http.MethodGet, "/metrics")
	// The store denies, and what it denied is remembered for a moment.
	denied := 0
	for _, m := range regexp.MustCompile(`weir_decisions_total\{policy="checkout",result="denied",rule="exports",source="\w+"\} (\d+)`).FindAllStringSubmatch(metrics, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		denied += n
	}
	if denied != 3 {
		t.Errorf("metrics count %d denials, want 3:\n%s", denied, metrics)
	}

	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestUnreachableRedisIsNoReasonNotToServe(t *testing.T) {
	t.Setenv("WEIR_NAMESPACE", "shop")
	t.Setenv("WEIR_WORKLOAD", "checkout")
	ctx, cancel := context.WithCancel(t.Context())
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, settings{listen: "127.0.0.1:0", redis: "127.0.0.1:1", start: 100 * time.Millisecond, drain: time.Second}, out)
	}()
	if line, err := bufio.NewReader(printed).ReadString('\n'); err != nil || !strings.HasPrefix(line, "listening on ") {
		t.Errorf("printed %q, %v", line, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
