package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-dev/weir/internal/enforcer"
)

// call is one script for one slot.
type call struct {
	batch *batch
	args  []any
	cmd   once
}

// newCall takes a batch out of the pool; free puts it back.
func (s *Store) newCall(encode func(*batch) error) (*call, error) {
	b := s.batches.Get().(*batch) //nolint:errcheck // the pool holds nothing else
	if err := encode(b); err != nil {
		s.batches.Put(b)
		return nil, err
	}
	return &call{batch: b, args: b.args(s.now())}, nil
}

func (s *Store) free(calls []*call) {
	for _, c := range calls {
		s.batches.Put(c.batch)
	}
}

// send sends all calls at once, in one pipeline for each node; each call's command then holds its reply or error.
// Scripts that a node does not know have not run, and are sent once more.
func (s *Store) send(ctx context.Context, calls []*call) {
	s.pipeline(ctx, calls)
	var unknown []*call
	for _, c := range calls {
		if unknownScript(c.cmd.Err()) {
			c.args = c.batch.script.withSource(c.args)
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 {
		s.pipeline(ctx, unknown)
	}
}

func (s *Store) pipeline(ctx context.Context, calls []*call) {
	pipeline := s.client.Pipeline()
	for _, c := range calls {
		c.cmd = newOnce(ctx, c.args)
		_ = pipeline.Process(ctx, c.cmd) // queues only
	}
	// The first error of any call; each call has its own.
	_, _ = pipeline.Exec(ctx)
}

// takeParts is Take on a cluster.
func (s *Store) takeParts(ctx context.Context, entries []enforcer.Entry, answers []enforcer.Answer) (int64, error) {
	parts := split(entries)
	calls, err := s.refundCalls(s.owed.take())
	if err != nil {
		return 0, err
	}
	defer func() { s.free(calls) }()
	first := len(calls)
	for _, p := range parts {
		c, err := s.newCall(func(b *batch) error { return b.encodeTake(s.prefix, p.entries) })
		if err != nil {
			return 0, err
		}
		calls = append(calls, c)
	}
	s.send(ctx, calls)

	var failures []error
	var now int64
	for i, p := range parts {
		cmd := calls[first+i].cmd
		if p.err = cmd.Err(); p.err == nil {
			p.now, p.err = decodeTake(cmd.Val(), p.entries, p.answers)
		}
		if p.err != nil {
			p.err = classify(fmt.Errorf("slot %d: %w", p.slot, p.err))
			failures = append(failures, p.err)
			continue
		}
		now = max(now, p.now)
	}
	s.owed.add(merge(entries, parts, answers))
	if len(failures) == len(parts) && len(parts) > 0 {
		return 0, failures[0]
	}
	return now, nil
}

// refundParts is Refund on a cluster.
func (s *Store) refundParts(ctx context.Context, refunds []enforcer.Refund) error {
	calls, err := s.refundCalls(append(s.owed.take(), refunds...))
	if err != nil {
		return err
	}
	defer s.free(calls)
	s.send(ctx, calls)
	var failures []error
	for _, c := range calls {
		err := c.cmd.Err()
		if err == nil {
			err = decodeRefund(c.cmd.Val())
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// refundCalls makes one call for each slot.
func (s *Store) refundCalls(refunds []enforcer.Refund) ([]*call, error) {
	var order []uint16
	bySlot := map[uint16][]enforcer.Refund{}
	for _, r := range refunds {
		for _, c := range r.Counters {
			slot := slotOf(c.Identity)
			if _, ok := bySlot[slot]; !ok {
				order = append(order, slot)
			}
			bySlot[slot] = append(bySlot[slot], enforcer.Refund{Counters: []enforcer.Counter{c}, N: r.N, Taken: r.Taken})
		}
	}
	var calls []*call
	for _, slot := range order {
		c, err := s.newCall(func(b *batch) error { return b.encodeRefunds(s.prefix, bySlot[slot]) })
		if err != nil {
			s.free(calls)
			return nil, err
		}
		if c.batch.empty() {
			s.free([]*call{c})
			continue
		}
		calls = append(calls, c)
	}
	return calls, nil
}
