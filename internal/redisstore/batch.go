package redisstore

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// batch is the scratch memory of one call, so that a call in steady state allocates little more than its command.
type batch struct {
	script *script
	index  map[counterName]uint16 // place among the keys of its kind, from 1, as Lua counts
	plain  names
	logs   names
	keys   []string
	data   []byte
	call   []any
}

// names are keys, one behind the other.
type names struct {
	text []byte
	ends []int
}

// counterName is what makes a key within a namespace. Logs are lists, all others are strings.
type counterName struct {
	identity enforcer.Identity
	id       string
	log      bool
}

func newBatch() *batch { return &batch{index: make(map[counterName]uint16)} }

func (b *batch) reset() {
	clear(b.index)
	b.plain.text, b.plain.ends = b.plain.text[:0], b.plain.ends[:0]
	b.logs.text, b.logs.ends = b.logs.text[:0], b.logs.ends[:0]
	b.keys, b.data = b.keys[:0], b.data[:0]
	clear(b.call) // let go of the last call's keys
	b.call = b.call[:0]
}

// empty says that nothing was encoded.
func (b *batch) empty() bool { return len(b.data) == 0 }

// appendCounter enters a counter's key, when it is new, and appends what the scripts read of the counter, without its
// cost: algorithm, index of the key, limit, window, capacity.
func (b *batch) appendCounter(prefix string, c *enforcer.Counter) error {
	if !validLimit(c.Limit) {
		return fmt.Errorf("%w: %+v", errLimit, c.Limit)
	}
	place, _ := b.place(prefix, c)
	if place == 0 {
		return fmt.Errorf("more than %d counters", maxKeys)
	}
	b.data = append(b.data, byte(c.Limit.Algorithm))
	b.data = binary.BigEndian.AppendUint16(b.data, place)
	b.appendLimit(&c.Limit)
	return nil
}

func (b *batch) appendLimit(l *algorithm.Limit) {
	b.data = binary.BigEndian.AppendUint32(b.data, uint32(l.Requests))
	b.data = appendUint48(b.data, l.Window)
	b.data = binary.BigEndian.AppendUint32(b.data, uint32(l.Capacity()))
}

// place returns where among the keys of its kind a counter's key is, from 1, and whether it is new there; 0 when there
// are too many.
func (b *batch) place(prefix string, c *enforcer.Counter) (place uint16, added bool) {
	name := counterName{c.Identity, c.ID, c.Limit.Algorithm == algorithm.SlidingWindowLog}
	if place, ok := b.index[name]; ok {
		return place, false
	}
	into := &b.plain
	if name.log {
		into = &b.logs
	}
	if len(into.ends) == maxKeys {
		return 0, false
	}
	into.add(prefix, c)
	place = uint16(len(into.ends))
	b.index[name] = place
	return place, true
}

// encodeTake writes entries as take.lua reads them, or single.lua where that will do.
func (b *batch) encodeTake(prefix string, entries []enforcer.Entry) error {
	if ok, err := b.encodeSingle(prefix, entries); ok || err != nil {
		return err
	}
	b.reset()
	b.script = takeScript
	for i := range entries {
		entry := &entries[i]
		if len(entry.Counters) == 0 {
			continue // nothing to ask for
		}
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(entry.N, 0, maxCallers)))
		b.data = binary.BigEndian.AppendUint16(b.data, uint16(len(entry.Counters)))
		rule := 0
		for j := range entry.Counters {
			for j >= entry.Enforced && (rule == 0 || rule < len(entry.Shadow) && j >= entry.Shadow[rule-1]) {
				rule++
			}
			b.data = append(b.data, byte(rule))
			if err := b.appendCounter(prefix, &entry.Counters[j]); err != nil {
				return err
			}
			b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(entry.Counters[j].Cost, 1, maxCost)))
		}
	}
	return nil
}

// encodeSingle writes entries as single.lua reads them, unless one of them has several counters, a shadow rule, a log, or
// the counter of another one.
func (b *batch) encodeSingle(prefix string, entries []enforcer.Entry) (ok bool, err error) {
	b.reset()
	b.script = singleScript
	for i := range entries {
		e := &entries[i]
		if len(e.Counters) == 0 {
			continue // nothing to ask for
		}
		c := &e.Counters[0]
		if len(e.Counters) > 1 || e.Enforced == 0 || c.Limit.Algorithm == algorithm.SlidingWindowLog {
			return false, nil
		}
		if !validLimit(c.Limit) {
			return false, fmt.Errorf("%w: %+v", errLimit, c.Limit)
		}
		if len(entries) == 1 {
			b.plain.add(prefix, c)
		} else if _, added := b.place(prefix, c); !added {
			return false, nil
		}
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(e.N, 0, maxCallers)))
		b.data = append(b.data, byte(c.Limit.Algorithm))
		b.appendLimit(&c.Limit)
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(c.Cost, 1, maxCost)))
	}
	return len(b.data) > 0, nil
}

// encodeRefunds writes refunds as refund.lua reads them.
func (b *batch) encodeRefunds(prefix string, refunds []enforcer.Refund) error {
	b.reset()
	b.script = refundScript
	for i := range refunds {
		refund := &refunds[i]
		for j := range refund.Counters {
			counter := &refund.Counters[j]
			amount := clamp(refund.N, 0, maxCost) * clamp(counter.Cost, 0, maxCost)
			if amount == 0 {
				continue
			}
			if err := b.appendCounter(prefix, counter); err != nil {
				return err
			}
			b.data = binary.BigEndian.AppendUint32(b.data, uint32(min(amount, maxCost)))
			b.data = appendUint56(b.data, clamp(refund.Taken, 0, algorithm.MaxWait))
		}
	}
	return nil
}

// args returns the whole command: script, keys, time, number of logs, unless the script takes none, and data. It is valid
// until the next reset.
func (b *batch) args(now string) []any {
	b.keys = b.plain.appendTo(b.keys)
	b.keys = b.logs.appendTo(b.keys)
	slices.Reverse(b.keys[len(b.plain.ends):])
	b.call = append(b.call, "evalsha", b.script.sha, len(b.keys))
	for i := range b.keys {
		b.call = append(b.call, &b.keys[i]) // a pointer fits into an interface without an allocation
	}
	if b.script == singleScript {
		return append(b.call, now, b.data)
	}
	return append(b.call, now, len(b.logs.ends), b.data)
}

func (n *names) add(prefix string, c *enforcer.Counter) {
	n.text = appendCounter(n.text, prefix, c)
	n.ends = append(n.ends, len(n.text))
}

func (n names) appendTo(keys []string) []string {
	text := string(n.text)
	start := 0
	for _, end := range n.ends {
		keys = append(keys, text[start:end])
		start = end
	}
	return keys
}
