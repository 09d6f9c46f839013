package enforcer

import "testing"

const late = 1 << 40 // µs, when any probe is due

func opened(t *testing.T) *breaker {
	t.Helper()
	b := &breaker{runtime: newProcess()}
	for i := range strikesToOpen {
		if got := b.failure(0, "refused"); got != (i == strikesToOpen-1) {
			t.Fatalf("after %d failures: opened %t", i+1, got)
		}
	}
	return b
}

func TestBreakerOpensOnFailures(t *testing.T) {
	b := opened(t)
	if !b.open.Load() || b.why() != "refused" {
		t.Errorf("open %t because of %q", b.open.Load(), b.why())
	}
}

func TestBreakerStaysClosedWhenMostBatchesSucceed(t *testing.T) {
	b := &breaker{runtime: newProcess()}
	for range 1000 {
		b.failure(0, "reset")
		b.success()
		b.success()
	}
	if b.open.Load() {
		t.Error("open after a third of the batches failed, never two in a row")
	}
}

func TestBreakerSendsOneProbeAtATime(t *testing.T) {
	b := opened(t)
	if b.claimProbe(probeMin/2 - 1) {
		t.Error("a probe left before half of the first interval")
	}
	if !b.claimProbe(probeMin) {
		t.Fatal("no probe after the first interval")
	}
	if b.claimProbe(late) {
		t.Error("a second probe left beside the first")
	}
	if b.probed(probeMin, true, "") != true || b.open.Load() {
		t.Error("a good probe did not close the breaker")
	}
	if b.claimProbe(late) {
		t.Error("a probe left although the breaker is closed")
	}
}

func TestBreakerCountsTheTimeThatItWasOpen(t *testing.T) {
	b := opened(t)
	if got := b.openFor(7); got != 7 {
		t.Errorf("7 µs after it opened: %d µs", got)
	}
	b.claimProbe(probeMin)
	b.probed(probeMin, true, "")
	for range strikesToOpen {
		if got := b.openFor(late); got != probeMin {
			t.Errorf("closed after %d µs: %d µs", int64(probeMin), got)
		}
		b.failure(late, "refused")
	}
	if got := b.openFor(late + 5); got != probeMin+5 {
		t.Errorf("open again for 5 µs: %d µs, want %d", got, probeMin+5)
	}
}

func TestBreakerProbesLessAndLessOften(t *testing.T) {
	b := opened(t)
	now, interval := b.next, int64(probeMin)
	for range 10 {
		if !b.claimProbe(now) {
			t.Fatal("no probe although it is due")
		}
		b.probed(now, false, "timeout")
		interval = min(2*interval, probeMax)
		if wait := b.next - now; wait < interval/2 || wait >= interval {
			t.Errorf("next probe in %d µs, want within the upper half of %d", wait, interval)
		}
		now = b.next
	}
	if interval != probeMax || b.why() != "timeout" {
		t.Errorf("interval %d, cause %q", interval, b.why())
	}
}

func TestAnAnswerUnderWayDoesNotCloseTheBreaker(t *testing.T) {
	b := opened(t)
	b.success()
	if !b.open.Load() {
		t.Error("closed without a probe")
	}
	b.failure(0, "late") // nor does a failure count twice
	if b.claimProbe(late); !b.probed(late, true, "") {
		t.Error("a good probe did not close the breaker")
	}
	if b.failure(late, "one") {
		t.Error("one failure opened it again")
	}
}
