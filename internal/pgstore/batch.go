package pgstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Bounds of what is sent. Compile admits no limit outside of them.
const (
	maxRequests = 1_000_000_000
	maxWindow   = 31 * 24 * 3600 * 1_000_000 // µs
	maxCost     = algorithm.MaxDebit         // above every capacity, so it stands for all costs above it
	maxCallers  = 1 << 31                    // callers × cost stays within 63 bits
)

var (
	// errState is the error of an entry that touches a counter whose state this version does not understand: a newer
	// format, or garbage. It is a failure of the store, never a fresh budget.
	errState = errors.New("counter holds a state that is not understood")
	errReply = errors.New("answer is not one of this statement")
	errLimit = errors.New("limit is out of bounds")
)

// batch is the arguments of the function step; see there.
type batch struct {
	index   map[counterName]int // place in keys, from 0 until sorted
	keys    [][]byte
	charged []bool
	entries []int64
	refs    []int64
	ends    []int64
}

// counterName is what makes a key.
type counterName struct {
	identity enforcer.Identity
	id       string
}

func newBatch(entries int) *batch {
	return &batch{
		index:   make(map[counterName]int, entries),
		keys:    make([][]byte, 0, entries),
		charged: make([]bool, 0, entries),
		entries: make([]int64, 0, 5*entries),
		refs:    make([]int64, 0, 6*entries),
	}
}

// place returns the place of a counter's key, entering it when it is new.
func (b *batch) place(c *enforcer.Counter) int {
	name := counterName{c.Identity, c.ID}
	at, known := b.index[name]
	if !known {
		at = len(b.keys)
		b.index[name] = at
		b.keys = append(b.keys, append(c.Identity[:len(c.Identity):len(c.Identity)], c.ID...))
		b.charged = append(b.charged, false)
	}
	return at
}

func (b *batch) addEntry(e *enforcer.Entry) error {
	callers := min(max(e.N, 0), maxCallers)
	b.entries = append(b.entries, callers, int64(e.Enforced), int64(len(e.Counters)), int64(len(e.Shadow)), -1)
	for _, end := range e.Shadow {
		b.ends = append(b.ends, int64(end))
	}
	if e.Enforced > len(e.Counters) || len(e.Shadow) > 0 && e.Shadow[len(e.Shadow)-1] != len(e.Counters) ||
		len(e.Shadow) == 0 && e.Enforced != len(e.Counters) {
		return errors.New("counters of an entry belong to no rule")
	}
	for i := range e.Counters {
		if err := b.addRef(&e.Counters[i], 1, callers > 0); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) addRefund(r *enforcer.Refund) error {
	if r.N <= 0 {
		return nil
	}
	b.entries = append(b.entries, 0, int64(len(r.Counters)), int64(len(r.Counters)), 0, r.Taken)
	for i := range r.Counters {
		if err := b.addRef(&r.Counters[i], min(r.N, maxCallers), false); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) addRef(c *enforcer.Counter, times int64, charged bool) error {
	l := c.Limit
	if l.Algorithm > algorithm.SlidingWindowLog || l.Requests < 0 || l.Requests > maxRequests ||
		l.Algorithm == algorithm.SlidingWindowLog && l.Requests > algorithm.MaxLogEntries ||
		l.Window <= 0 || l.Window > maxWindow || l.Burst < 0 || l.Burst > maxRequests {
		return fmt.Errorf("%w: %+v", errLimit, l)
	}
	at := b.place(c)
	b.charged[at] = b.charged[at] || charged
	cost := min(min(max(c.Cost, 1), maxCost)*times, maxCost)
	b.refs = append(b.refs, int64(at), int64(l.Algorithm), l.Requests, l.Window, l.Capacity(), cost)
	return nil
}

// sorted puts the keys in the order in which all statements lock rows, and counts their places from 1 as SQL does.
func (b *batch) sorted() *batch {
	order := make([]int, len(b.keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return bytes.Compare(b.keys[i], b.keys[j]) })
	keys, charged, places := make([][]byte, len(order)), make([]bool, len(order)), make([]int64, len(order))
	for to, from := range order {
		keys[to], charged[to], places[from] = b.keys[from], b.charged[from], int64(to)+1
	}
	b.keys, b.charged = keys, charged
	for i := 0; i < len(b.refs); i += 6 {
		b.refs[i] = places[b.refs[i]]
	}
	return b
}

// statement is the call of step. The batch is spent afterwards.
func (b *batch) statement(sql string, refunding bool, now []byte) statement {
	b.sorted()
	return statement{
		sql: sql,
		oids: []uint32{
			pgtype.BoolOID, pgtype.ByteaArrayOID, pgtype.BoolArrayOID,
			pgtype.Int8ArrayOID, pgtype.Int8ArrayOID, pgtype.Int8ArrayOID, pgtype.Int8OID,
		},
		params: [][]byte{
			encodeBool(refunding), encodeByteas(b.keys), encodeBools(b.charged),
			encodeInt8s(b.entries), encodeInt8s(b.refs), encodeInt8s(b.ends), now,
		},
	}
}

// reply is what step returned.
type reply struct {
	now     int64
	granted []int64
	results []int64
}

func newReply(row [][]byte) (r reply, err error) {
	if len(row) != 3 {
		return reply{}, fmt.Errorf("%w: %d columns, want 3", errReply, len(row))
	}
	if r.now, err = decodeInt8(row[0]); err != nil {
		return reply{}, err
	}
	if r.granted, err = decodeInt8s(row[1]); err != nil {
		return reply{}, err
	}
	if r.results, err = decodeInt8s(row[2]); err != nil {
		return reply{}, err
	}
	return r, nil
}

// decode reads the reply to entries into answers.
func (r reply) decode(entries []enforcer.Entry, answers []enforcer.Answer) error {
	granted, results := 0, 0
	for i := range entries {
		granted += 1 + len(entries[i].Shadow)
		results += 5 * len(entries[i].Counters)
	}
	if len(r.granted) != granted || len(r.results) != results {
		return fmt.Errorf("%w: %d grants and %d numbers, want %d and %d", errReply, len(r.granted), len(r.results), granted, results)
	}
	grants, numbers := r.granted, r.results
	for i := range entries {
		a := &answers[i]
		a.Granted, a.Err = grants[0], nil
		if a.Granted < 0 {
			a.Granted, a.Err = 0, classify(errState)
		}
		a.Shadow = a.Shadow[:0]
		for _, n := range grants[1 : 1+len(entries[i].Shadow)] {
			a.Shadow = append(a.Shadow, max(n, 0)) // -1: not understood, so nothing was charged
		}
		grants = grants[1+len(entries[i].Shadow):]
		a.Results = a.Results[:0]
		for range entries[i].Counters {
			a.Results = append(a.Results, algorithm.Result{
				Allowed:     numbers[0]&1 != 0,
				Satisfiable: numbers[0]&2 != 0,
				Remaining:   numbers[1],
				RetryAfter:  numbers[2],
				ResetAfter:  numbers[3],
				At:          numbers[4],
			})
			numbers = numbers[5:]
		}
	}
	return nil
}
