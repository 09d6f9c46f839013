package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

var _ enforcer.Pusher = (*Store)(nil)

// pushedBytes is one answer to a push: failed, round, reset.
const pushedBytes = 1 + 7 + 7

// Push tells the counters what replicas used, in one round trip; of all pushes the member is the same. On a cluster it
// is one script for each slot, and a slot that fails fails its own pushes only.
func (s *Store) Push(ctx context.Context, pushes []enforcer.Push, answers []enforcer.Pushed) (int64, error) {
	if len(pushes) == 0 {
		return 0, nil
	}
	var order []uint16
	bySlot := map[uint16][]int{}
	for i := range pushes {
		slot := uint16(0)
		if s.cluster != nil {
			slot = slotOf(pushes[i].Identity)
		}
		if _, ok := bySlot[slot]; !ok {
			order = append(order, slot)
		}
		bySlot[slot] = append(bySlot[slot], i)
	}
	var calls []*call
	defer func() { s.free(calls) }()
	for _, slot := range order {
		c, err := s.newCall(func(b *batch) error { return b.encodePushes(s.prefix, pushes, bySlot[slot]) })
		if err != nil {
			return 0, fmt.Errorf("pushing: %w", err)
		}
		c.args = append(c.args, pushes[0].Member)
		calls = append(calls, c)
	}
	s.send(ctx, calls)

	var now int64
	var failure error
	failed := 0
	for i, slot := range order {
		err := calls[i].cmd.Err()
		if err == nil {
			var answered int64
			answered, err = decodePushed(calls[i].cmd.Val(), bySlot[slot], answers)
			now = max(now, answered)
		}
		if err != nil {
			failure = classify(fmt.Errorf("pushing: %w", err))
			failed++
			for _, j := range bySlot[slot] {
				answers[j].Err = failure
			}
		}
	}
	if failed == len(order) {
		return 0, failure
	}
	return now, nil
}

// encodePushes writes pushes as push.lua reads them, with three keys for each.
func (b *batch) encodePushes(prefix string, pushes []enforcer.Push, which []int) error {
	b.reset()
	b.script = pushScript
	for _, i := range which {
		p := &pushes[i]
		if !validLimit(p.Limit) {
			return fmt.Errorf("%w: %+v", errLimit, p.Limit)
		}
		for _, id := range counterIDs(p.ID) {
			b.plain.text = appendCounter(b.plain.text, prefix, &enforcer.Counter{Identity: p.Identity, ID: id})
			b.plain.ends = append(b.plain.ends, len(b.plain.text))
		}
		b.data = append(b.data, byte(p.Limit.Algorithm))
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(p.Limit.Requests))
		b.data = appendUint48(b.data, p.Limit.Window)
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(p.Limit.Capacity()))
		suspect := byte(0)
		if p.Suspect {
			suspect = 1
		}
		b.data = append(b.data, suspect)
		for _, n := range []int64{p.Seq, p.Since, p.Round} {
			b.data = appendUint56(b.data, clamp(n, 0, algorithm.MaxWait))
		}
		for _, state := range []*algorithm.State{&p.Untold, &p.Fresh, &p.Used} {
			b.appendState(p.Limit.Algorithm, state)
		}
	}
	return nil
}

// counterIDs names the three keys of a push: the counter, the sum of the round, and who told it.
func counterIDs(id string) [3]string { return [3]string{id, enforcer.AltID(id), enforcer.ToldID(id)} }

func (b *batch) appendState(a algorithm.Algorithm, s *algorithm.State) {
	if a != algorithm.SlidingWindowLog {
		b.data = appendUint56(b.data, s.At)
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(s.Used, 0, algorithm.MaxDebit)))
		b.data = appendUint48(b.data, s.Carry)
		return
	}
	b.data = binary.BigEndian.AppendUint32(b.data, uint32(len(s.Log)))
	for _, e := range s.Log {
		b.data = appendUint56(b.data, e.At)
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(e.Cost, 0, algorithm.MaxDebit)))
	}
}

func decodePushed(value any, which []int, answers []enforcer.Pushed) (now int64, err error) {
	reply, err := text(value)
	if err != nil {
		return 0, err
	}
	if want := timeBytes + len(which)*pushedBytes; len(reply) != want {
		return 0, fmt.Errorf("%w: %d bytes, want %d", errReply, len(reply), want)
	}
	r := reader{reply}
	now = r.uint(timeBytes)
	for _, i := range which {
		failed := r.uint(1) != 0
		answers[i] = enforcer.Pushed{Round: r.uint(7), Reset: r.uint(7)}
		if failed {
			answers[i].Err = classify(errState)
		}
	}
	return now, nil
}

// resetKept is for how long at least (ms) it is remembered that a counter was reset.
const resetKept = 600_000

// Reset forgets counters: their identities are full again, whatever replicas remember of them.
func (s *Store) Reset(ctx context.Context, counters []enforcer.Counter) error {
	for i := range counters {
		var keys []string
		for _, id := range counterIDs(counters[i].ID) {
			keys = append(keys, string(appendCounter(nil, s.prefix, &enforcer.Counter{Identity: counters[i].Identity, ID: id})))
		}
		kept := strconv.FormatInt(max(resetKept, 2*counters[i].Limit.Window/1000), 10)
		if _, err := resetScript.call(ctx, s.client, keys, s.now(), kept); err != nil {
			return fmt.Errorf("resetting %d counters: %w", len(counters), err)
		}
	}
	return nil
}
