package ratelimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

// FuzzHeaderParsesBack reads the fields of any decision as a client does, as lists of RFC 9651.
func FuzzHeaderParsesBack(f *testing.F) {
	f.Add("checkout", "exports", int64(5), int64(2), int64(60), int64(10_000_000), true)
	f.Add(`a"b\c`, "é\n", int64(0), int64(0), int64(1), int64(1), false)
	f.Add("", "\x7f\x00", int64(1_000_000_000), int64(1_000_000_000), int64(2_678_400), int64(2_678_400_000_000), false)
	f.Fuzz(func(t *testing.T, policyName, rule string, limit, remaining, window, wait int64, allowed bool) {
		// What the schema and the arithmetic allow.
		const most = 1_000_000_000
		limit, remaining, window = abs(limit)%(most+1), abs(remaining)%(most+1), 1+abs(window)%2_678_400
		wait = abs(wait) % (31 * 24 * time.Hour).Microseconds()
		d := Decision{
			Allowed: allowed, Policy: policyName, Rule: rule, Limit: limit, Remaining: remaining, Window: time.Duration(window) * time.Second,
		}
		if allowed {
			d.MoreAfter = time.Duration(wait) * time.Microsecond
		} else {
			d.RetryAfter = time.Duration(wait) * time.Microsecond
		}
		h := http.Header{}
		d.SetHeader(h)

		policyItem := item(t, h["Ratelimit-Policy"])
		expect(t, policyItem, "q", limit)
		expect(t, policyItem, "w", window)
		state := item(t, h["Ratelimit"])
		expect(t, state, "r", remaining)
		if state.Value != policyItem.Value {
			t.Errorf("the fields name %q and %q", state.Value, policyItem.Value)
		}
		if reset, told := state.Params.Get("t"); told != (wait > 0) {
			t.Errorf("a reset after %d µs is told as %v", wait, reset)
		} else if told {
			if seconds, ok := reset.(int64); !ok || seconds*1_000_000 < wait || (seconds-1)*1_000_000 >= wait {
				t.Errorf("a reset after %d µs is told as %v s", wait, reset)
			}
		}
	})
}

func abs(n int64) int64 { return max(n, -max(n, -1<<62)) & (1<<62 - 1) }

// item parses a field that must be a list of one string.
func item(t *testing.T, lines []string) httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil || len(list) != 1 {
		t.Fatalf("%q: %d members, %v", lines, len(list), err)
	}
	one, ok := list[0].(httpsfv.Item)
	if _, text := one.Value.(string); !ok || !text {
		t.Fatalf("%q is no string with parameters", lines)
	}
	return one
}

func expect(t *testing.T, of httpsfv.Item, parameter string, want int64) {
	t.Helper()
	if got, ok := of.Params.Get(parameter); !ok || got != want {
		t.Errorf("%s is %v, want %d", parameter, got, want)
	}
}
