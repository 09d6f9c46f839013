package enforcer

// finish tells every caller of a batch what became of it. Grants go to the callers who still wait, in their order. One
// who was admitted locally meanwhile keeps a grant that is left; what was granted for others is given back.
func (b *batcher) finish(g *batch, now int64, err error) {
	g.mu.Lock()
	var refunds []Refund
	for i := range g.groups {
		group, a := &g.groups[i], &g.answers[i]
		failure := err
		if failure == nil {
			failure = a.Err
			if failure != nil {
				b.counts.fail(reasonOf(failure))
			}
		}
		if failure != nil {
			b.fail(group, failure)
			continue
		}
		b.denials.learn(g.sentAt, group.origins, &g.entries[i], a)
		used, admitted, late := b.grant(group, a)
		var kept int64
		kept, refunds = b.leases.keep(group, &g.entries[i], a, used, g.sentAt, now, refunds)
		if b.mirror != nil { // before anybody goes on: whoever asks next finds what was taken
			b.mirror(group, &g.entries[i], a, admitted+kept, late)
		}
		if used+kept < a.Granted {
			refunds = appendRefunds(refunds, &g.entries[i], a, used+kept, now)
		}
	}
	g.end()
	g.mu.Unlock()
	if len(refunds) > 0 {
		b.refund(refunds)
	}
}

// grant hands out what the store granted; nobody goes on before the batch ends. It returns how much was of use, how much
// of that to callers who waited, and when the others had been admitted without the store.
func (b *batcher) grant(group *group, a *Answer) (used, admitted int64, late []int64) {
	waited := group.callers - group.gone
	if !group.peek {
		used = min(a.Granted, waited)
	}
	admitted, group.granted = used, used
	if group.gone == 0 {
		return used, admitted, nil
	}
	var gone []*caller
	place := int64(0)
	for c := group.first; c != nil; c = c.next { // those who wait move up
		if c.left {
			gone = append(gone, c)
			continue
		}
		c.place = place
		place++
	}
	if group.peek {
		return used, admitted, nil
	}
	for _, c := range gone {
		if c.admitted && used < a.Granted {
			used++
			late = append(late, c.at)
			b.counts.late[LateUsed].Add(1)
		} else if c.admitted {
			b.counts.late[LateDenied].Add(1)
		}
	}
	unused := min(a.Granted, group.callers) - used
	for _, c := range gone {
		if c.admitted {
			continue
		}
		if unused > 0 {
			unused--
			b.counts.late[LateRefunded].Add(1)
		} else {
			b.counts.late[LateDenied].Add(1)
		}
	}
	return used, admitted, late
}

func (b *batcher) fail(group *group, err error) {
	group.err = err
	b.counts.late[LateLost].Add(uint64(group.gone))
}

// appendRefunds gives back what the callers from place used on were charged: each enforced counter, and those shadow
// rules that had charged them.
func appendRefunds(refunds []Refund, e *Entry, a *Answer, used, now int64) []Refund {
	if e.Enforced > 0 {
		refunds = append(refunds, Refund{Counters: e.Counters[:e.Enforced], N: a.Granted - used, Taken: now})
	}
	start := e.Enforced
	for i, end := range e.Shadow {
		if i < len(a.Shadow) && a.Shadow[i] > used {
			refunds = append(refunds, Refund{Counters: e.Counters[start:end], N: a.Shadow[i] - used, Taken: now})
		}
		start = end
	}
	return refunds
}

// maxRefunds bounds what waits to be given back while the store is slow. What does not fit stays charged until it ages
// out.
const maxRefunds = 4096

// refund gives back behind the decisions, one call at a time and each at most once.
func (b *batcher) refund(refunds []Refund) {
	b.mu.Lock()
	defer b.mu.Unlock()
	refunds = refunds[:min(len(refunds), maxRefunds-len(b.refunds))]
	b.refunds = append(b.refunds, refunds...)
	b.denials.owe(refunds)
	if !b.refunding {
		b.refunding = true
		b.runtime.Go(b.sendRefunds)
	}
}

func (b *batcher) sendRefunds() {
	for {
		b.mu.Lock()
		refunds := b.refunds
		b.refunds = nil
		if len(refunds) == 0 {
			b.refunding = false
			b.denials.paid(b.clock.monotonic())
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		ctx, cancel := b.runtime.WithTimeout(patience)
		if err := b.store.Refund(ctx, refunds); err != nil {
			b.counts.fail(reasonOf(err))
		}
		cancel()
	}
}
