package controllers

import (
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
)

func TestTheWaitAfterErrorsEndsAt30Seconds(t *testing.T) {
	limiter, w := backoff(), policy.Workload{Namespace: "shop", Name: "checkout"}
	if first := limiter.When(w); first > time.Second {
		t.Errorf("the first wait is %v", first)
	}
	longest := time.Duration(0)
	for range 1000 {
		longest = max(longest, limiter.When(w))
	}
	if longest != 30*time.Second {
		t.Errorf("after 1000 errors the wait is %v, want 30s", longest)
	}
	limiter.Forget(w)
	if again := limiter.When(w); again > time.Second {
		t.Errorf("after a success the first wait is %v", again)
	}
}
