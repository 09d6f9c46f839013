package ratelimittest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/ratelimittest"
)

func open(t *testing.T, text string) *ratelimittest.Limiter {
	t.Helper()
	source, err := file.Text(text)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimittest.New(t, ratelimit.Options{Policies: source})
}

func decide(l *ratelimittest.Limiter, n int) string {
	var letters strings.Builder
	for range n {
		if l.Decide(context.Background(), ratelimit.Request{Method: "POST", Route: "/exports"}).Allowed {
			letters.WriteByte('A')
		} else {
			letters.WriteByte('D')
		}
	}
	return letters.String()
}

func TestTimePassesOnlyWhenTheTestSaysSo(t *testing.T) {
	l := open(t, policies)
	got := []string{decide(l, 3)}
	l.Advance(time.Minute - time.Microsecond)
	got = append(got, decide(l, 1))
	l.Advance(time.Microsecond)
	got = append(got, decide(l, 3))
	if diff := cmp.Diff([]string{"AAD", "D", "AAD"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := ratelimittest.Start.Add(time.Minute); !l.Now().Equal(want) {
		t.Errorf("the clock is at %v, want %v", l.Now(), want)
	}
}

// Without a store the local share decides, in windows that end with the store's; back again, the store has what it held.
func TestTheStoreGoesAndComesBack(t *testing.T) {
	l := open(t, strings.Replace(policies, "FailClosed", "LocalShare", 1))
	got := []string{decide(l, 1)}
	l.StoreDown()
	got = append(got, decide(l, 9))
	l.Advance(time.Minute)
	got = append(got, decide(l, 9))
	l.StoreUp()
	l.Advance(11 * time.Second) // for 10 s the local share counts too, and that is spent
	d := l.Decide(context.Background(), ratelimit.Request{Method: "POST", Route: "/exports"})
	if d.Source != ratelimit.SourceStore {
		t.Errorf("%+v, want a decision of the store", d)
	}
	if diff := cmp.Diff([]string{"A", "ADDDDDDDD", "AADDDDDDD"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	if _, _, err := ratelimittest.Open(ratelimit.Options{}); err == nil {
		t.Error("a limiter without policies was opened")
	}
	source, err := file.Text(policies)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ratelimittest.Open(ratelimit.Options{Policies: source, WhenNoPolicy: "Maybe"}); err == nil {
		t.Error("a limiter with unknown options was opened")
	}
}
