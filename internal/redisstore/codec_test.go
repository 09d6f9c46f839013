package redisstore

import (
	"fmt"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// replyFrom builds a reply of any shape out of bytes: what a server, a proxy or another program may answer.
func replyFrom(data []byte, depth int) (any, []byte) {
	if len(data) == 0 {
		return nil, nil
	}
	kind, data := data[0], data[1:]
	switch kind % 8 {
	case 0:
		return int64(len(data)) - 3, data
	case 1:
		n := min(len(data), int(kind)/8)
		return string(data[:n]), data[n:]
	case 2:
		return "12", data
	case 3:
		return "{}", data
	case 4:
		return fmt.Errorf("an error"), data
	case 5:
		return 1.5, data
	case 6:
		if depth > 3 {
			return []any{}, data
		}
		items := []any{}
		for range int(kind) / 8 % 8 {
			var item any
			item, data = replyFrom(data, depth+1)
			items = append(items, item)
		}
		return items, data
	default:
		return nil, data
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{6 + 8*4, 0, 0, 2, 2})
	f.Add([]byte{6 + 8*6, 3, 3, 2, 2, 2, 3})
	f.Add([]byte{1 + 8*20})
	entries := []enforcer.Entry{
		{Counters: make([]enforcer.Counter, 3), Enforced: 1, Shadow: []int{2, 3}, N: 2},
		{Counters: make([]enforcer.Counter, 1), Shadow: []int{1}, N: 2},
		{N: 3},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		value, _ := replyFrom(data, 0)
		answers := make([]enforcer.Answer, len(entries))
		if _, err := decodeTake(value, entries, answers); err == nil {
			t.Fatal("this is never as long as the reply")
		}
		_ = decodeRefund(value)
		if s, err := decodeStanding(value); err == nil && (s.Rank < 0 || s.Count < 0 || s.Version < 0 || s.Now < 0) {
			t.Errorf("%+v", s)
		}
		_, _, _ = decodePublished(value)
		_, _ = refusalOf(value)
		_, _, _ = decodeClaim(value)
		_ = ownerOf(data)

		// Of the right length, everything is a number.
		reply := string(data)
		for len(reply) < replyBytes(entries) {
			reply += string(data) + "\xff"
		}
		if _, err := decodeTake(reply[:replyBytes(entries)], entries, answers); err != nil {
			t.Fatal(err)
		}
		for i, answer := range answers {
			if len(answer.Results) != len(entries[i].Counters) || answer.Granted < 0 {
				t.Errorf("%+v", answer)
			}
			for _, r := range answer.Results {
				if r.Remaining < 0 || r.RetryAfter < 0 || r.ResetAfter < 0 || r.At < 0 {
					t.Errorf("%+v", r)
				}
			}
		}
	})
}

func TestBatchesReuseTheirMemory(t *testing.T) {
	entries := make([]enforcer.Entry, 64)
	for i := range entries {
		entries[i] = enforcer.Entry{N: 1, Enforced: 1, Counters: []enforcer.Counter{{
			Identity: enforcer.Identity{byte(i)}, ID: "limit", Cost: 1,
			Limit: algorithm.Limit{Requests: 1, Window: 1e6},
		}}}
	}
	b := newBatch()
	encode := func() {
		if err := b.encodeTake("weir:default:c:shop:{", entries); err != nil {
			t.Fatal(err)
		}
		b.args("")
	}
	encode()
	// The keys as one string, and two strings and a number as interfaces.
	if n := testing.AllocsPerRun(100, encode); n > 6 {
		t.Errorf("%v allocations for 64 entries", n)
	}
}
