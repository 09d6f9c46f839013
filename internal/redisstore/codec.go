package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
)

// Bounds of what the scripts can compute with. Compile admits nothing outside of them.
const (
	maxRequests = 1_000_000_000
	maxWindow   = 31 * 24 * 3600 * 1_000_000 // µs
	maxCost     = algorithm.MaxDebit         // above every capacity, so it stands for all costs above it
	maxCallers  = 1<<32 - 2
	maxKeys     = 1<<16 - 1
)

const (
	timeBytes    = 7
	answerBytes  = 1 + 4                 // failed, granted
	counterBytes = 4 + 1 + 4 + 7 + 7 + 6 // charged, flags, remaining, retry after, reset after, ahead

	flagAllowed     = 1
	flagSatisfiable = 2
)

var (
	// errState is the error of an entry that touches a counter whose state this version does not understand: a newer
	// format, or a key of somebody else. It is a failure of the store, never a fresh budget.
	errState = errors.New("counter holds a state that is not understood")
	errReply = errors.New("reply is not one of this script")
	errLimit = errors.New("limit is out of bounds")
)

func validLimit(l algorithm.Limit) bool {
	most := int64(maxRequests)
	if l.Algorithm == algorithm.SlidingWindowLog {
		most = algorithm.MaxLogEntries
	}
	return l.Algorithm <= algorithm.SlidingWindowLog && l.Requests >= 0 && l.Requests <= most &&
		l.Window > 0 && l.Window <= maxWindow && l.Burst >= 0 && l.Burst <= maxRequests
}

func clamp(v, low, high int64) int64 { return min(max(v, low), high) }

func appendUint48(b []byte, v int64) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(v>>32))
	return binary.BigEndian.AppendUint32(b, uint32(v))
}

func appendUint56(b []byte, v int64) []byte {
	return appendUint48(append(b, byte(v>>48)), v&(1<<48-1))
}

// reader takes integers off the front of a reply whose length was checked.
type reader struct{ rest string }

func (r *reader) uint(bytes int) int64 {
	var v int64
	for _, b := range []byte(r.rest[:bytes]) {
		v = v<<8 | int64(b)
	}
	r.rest = r.rest[bytes:]
	return v
}

// replyBytes is the length of the reply to entries.
func replyBytes(entries []enforcer.Entry) int {
	n := timeBytes
	for i := range entries {
		if counters := len(entries[i].Counters); counters > 0 {
			n += answerBytes + counterBytes*counters
		}
	}
	return n
}

// decodeTake reads the reply to entries into answers and returns the store's time.
func decodeTake(value any, entries []enforcer.Entry, answers []enforcer.Answer) (now int64, err error) {
	reply, err := text(value)
	if err != nil {
		return 0, err
	}
	if len(reply) != replyBytes(entries) {
		return 0, fmt.Errorf("%w: %d bytes, want %d", errReply, len(reply), replyBytes(entries))
	}
	r := reader{reply}
	now = r.uint(timeBytes)
	for i := range entries {
		decodeAnswer(&r, &entries[i], &answers[i], now)
	}
	return now, nil
}

func decodeAnswer(r *reader, entry *enforcer.Entry, answer *enforcer.Answer, now int64) {
	answer.Granted, answer.Err = entry.N, nil
	answer.Shadow, answer.Results = answer.Shadow[:0], answer.Results[:0]
	if len(entry.Counters) == 0 {
		return
	}
	failed := r.uint(1) != 0
	if granted := r.uint(4); entry.Enforced > 0 {
		answer.Granted = granted
	}
	shadow := 0
	for i := range entry.Counters {
		charged, flags := r.uint(4), r.uint(1)
		for ; shadow < len(entry.Shadow) && i >= entry.Enforced && (shadow == 0 || i >= entry.Shadow[shadow-1]); shadow++ {
			answer.Shadow = append(answer.Shadow, charged)
		}
		answer.Results = append(answer.Results, algorithm.Result{
			Allowed:     flags&flagAllowed != 0,
			Satisfiable: flags&flagSatisfiable != 0,
			Remaining:   r.uint(4),
			RetryAfter:  r.uint(7),
			ResetAfter:  r.uint(7),
			At:          now + r.uint(6),
		})
	}
	if failed {
		answer.Granted, answer.Err = 0, classify(errState)
	}
}

// decodeRefund reads how many refunds met a state that is not understood.
func decodeRefund(value any) error {
	failed, err := integer(value)
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d counters: %w", failed, errState)
	}
	return err
}

// text reads the reply of a script that answers with one string.
func text(value any) (string, error) {
	reply, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%w: %T, want a string", errReply, value)
	}
	return reply, nil
}

// integer reads an integer that is not negative, as Redis sends it or as decimal text.
func integer(value any) (int64, error) {
	n := int64(-1)
	switch value := value.(type) {
	case int64:
		n = value
	case string:
		if parsed, err := strconv.ParseInt(value, 10, 64); err == nil {
			n = parsed
		}
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: %v is not a number", errReply, value)
	}
	return n, nil
}
