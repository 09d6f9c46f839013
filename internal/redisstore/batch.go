package redisstore

import (
	"encoding/binary"
	"fmt"

	"github.com/weir-dev/weir/internal/enforcer"
)

// batch is the scratch memory of one call, so that a call in steady state allocates little more than its command.
type batch struct {
	index map[counterName]uint16 // place in keys, from 1, as Lua counts
	names []byte                 // all keys, one behind the other
	ends  []int
	keys  []string
	data  []byte
	call  []any
}

// counterName is what makes a key within a namespace.
type counterName struct {
	identity enforcer.Identity
	id       string
}

func newBatch() *batch { return &batch{index: make(map[counterName]uint16)} }

func (b *batch) reset() {
	clear(b.index)
	b.names, b.ends, b.keys, b.data = b.names[:0], b.ends[:0], b.keys[:0], b.data[:0]
	clear(b.call)
	b.call = b.call[:0]
}

// key returns the place of a counter's key, entering it when it is new.
func (b *batch) key(prefix string, c *enforcer.Counter) (uint16, error) {
	name := counterName{c.Identity, c.ID}
	if place, ok := b.index[name]; ok {
		return place, nil
	}
	if len(b.ends) == maxKeys {
		return 0, fmt.Errorf("more than %d counters", maxKeys)
	}
	b.names = appendCounter(b.names, prefix, c)
	b.ends = append(b.ends, len(b.names))
	place := uint16(len(b.ends))
	b.index[name] = place
	return place, nil
}

// encodeTake writes entries as take.lua reads them.
func (b *batch) encodeTake(prefix string, entries []enforcer.Entry) error {
	b.reset()
	for i := range entries {
		entry := &entries[i]
		b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(entry.N, 0, maxCallers)))
		b.data = binary.BigEndian.AppendUint16(b.data, uint16(len(entry.Counters)))
		rule := 0
		for j := range entry.Counters {
			counter := &entry.Counters[j]
			if !validLimit(counter.Limit) {
				return fmt.Errorf("%w: %+v", errLimit, counter.Limit)
			}
			for j >= entry.Enforced && (rule == 0 || rule <= len(entry.Shadow) && j >= entry.Shadow[rule-1]) {
				rule++
			}
			key, err := b.key(prefix, counter)
			if err != nil {
				return err
			}
			b.data = append(b.data, byte(rule))
			b.data = appendLimit(b.data, key, counter.Limit)
			b.data = binary.BigEndian.AppendUint32(b.data, uint32(clamp(counter.Cost, 1, maxCost)))
		}
	}
	return nil
}

// args returns the whole command: script, keys, time and data. It is valid until the next reset.
func (b *batch) args(s *script, now string) []any {
	names := string(b.names)
	start := 0
	for _, end := range b.ends {
		b.keys = append(b.keys, names[start:end])
		start = end
	}
	b.call = append(b.call, "evalsha", s.sha, len(b.keys))
	for i := range b.keys {
		b.call = append(b.call, b.keys[i])
	}
	b.call = append(b.call, now, b.data)
	return b.call
}
