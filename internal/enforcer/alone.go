package enforcer

import (
	"context"
	"slices"
	"time"
)

// alone asks the store for one caller on his own goroutine, without handing anything over: nobody waits, hardly anything
// else is under way, and the last batch was back early. Many who come meanwhile gather, as behind any batch.
//
// The store returns by the deadline, so the caller does. What it costs is that an answer which comes later is lost:
// what it charged stays charged until it ages out. These are few requests, because after the first of them the store is
// not quick, and batches wait for late answers.
func (b *batcher) alone(ctx context.Context, d *decision, era uint64, sent time.Duration) answer {
	d.enter(&d.want)
	d.group = group{origins: d.want.origins, lease: d.want.lease, peek: d.peek}
	if d.want.lease > 0 && !d.peek {
		d.group.fingerprint = d.want.fingerprint()
		d.group.extra = b.leases.ask(&d.group, &d.entries[0])
		d.entries[0].N += d.group.extra
	}
	within, cancel := b.runtime.WithTimeout(b.timeout)
	traced := b.traceAlone(ctx)
	now, err := b.store.Take(within, d.entries[:], d.answers[:])
	traced.end(err)
	cancel()
	if next := b.returned(era); next != nil {
		b.runtime.Go(func() { b.run(next) })
	}
	took := b.runtime.Elapsed() - sent
	b.quick.Store(err == nil && took <= b.timeout/4)

	a := &d.answers[0]
	defer b.settled(err)
	switch {
	case err != nil:
		return b.aloneFailed(err, took)
	case took > b.timeout+descheduled: // neither the store's fault nor its merit: the answer was there in time
	default:
		b.clock.learn(now, b.clock.monotonic())
		b.verdict(true, "")
	}
	if a.Err != nil {
		b.counts.fail(reasonOf(a.Err))
		return answer{err: a.Err}
	}
	granted, used := a.Granted > 0, min(a.Granted, 1)
	b.denials.learn(b.clock.at(sent), d.want.origins, &d.entries[0], a)
	gone := ctx.Err() != nil
	if gone {
		used = 0
		if granted {
			b.counts.late[LateRefunded].Add(1)
		}
	}
	kept, refunds := b.leases.keep(&d.group, &d.entries[0], a, used, b.clock.at(sent), now, nil)
	if used += kept; used < a.Granted {
		entry := d.entries[0]
		entry.Counters = slices.Clone(entry.Counters) // the decision's memory is used again
		refunds = appendRefunds(refunds, &entry, a, used, now)
	}
	if b.mirror != nil && (!gone || kept > 0) {
		b.mirror(&d.group, &d.entries[0], a, used, nil)
	}
	if len(refunds) > 0 {
		b.refund(refunds)
	}
	if gone {
		return answer{gone: true}
	}
	return answer{Answer: a, granted: granted}
}

// aloneFailed judges a failure. A process that got no processor in time says nothing about the store.
func (b *batcher) aloneFailed(err error, took time.Duration) answer {
	reason := reasonOf(err)
	b.counts.fail(reason)
	if reason == ReasonTimeout {
		b.counts.late[LateLost].Add(1)
		if took > b.timeout+descheduled {
			return answer{err: err}
		}
	}
	b.verdict(false, err.Error())
	return answer{err: err}
}
