package pgstore

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// Arguments and results travel in PostgreSQL's binary form: integers in big-endian order, and an array as the number
// of its dimensions, whether it has nulls, its elements' type, for each dimension its length and lower bound, and then
// each element behind its length.
const (
	arrayHeader    = 4 + 4 + 4
	arrayDimension = 4 + 4
)

func encodeBool(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

func encodeInt8(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func encodeInt8s(values []int64) []byte {
	b := appendArray(make([]byte, 0, arrayHeader+arrayDimension+12*len(values)), pgtype.Int8OID, len(values))
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func encodeBools(values []bool) []byte {
	b := appendArray(make([]byte, 0, arrayHeader+arrayDimension+5*len(values)), pgtype.BoolOID, len(values))
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, 1)
		b = append(b, encodeBool(v)...)
	}
	return b
}

func encodeByteas(values [][]byte) []byte {
	size := arrayHeader + arrayDimension
	for _, v := range values {
		size += 4 + len(v)
	}
	b := appendArray(make([]byte, 0, size), pgtype.ByteaOID, len(values))
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
		b = append(b, v...)
	}
	return b
}

// appendArray begins an array without nulls. An empty one has no dimension.
func appendArray(b []byte, element uint32, length int) []byte {
	dimensions := uint32(1)
	if length == 0 {
		dimensions = 0
	}
	b = binary.BigEndian.AppendUint32(b, dimensions)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, element)
	if length > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(length))
		b = binary.BigEndian.AppendUint32(b, 1)
	}
	return b
}

func decodeInt8(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: a number of %d bytes", errReply, len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// decodeInt8s reads an array without nulls.
func decodeInt8s(b []byte) ([]int64, error) {
	if len(b) == arrayHeader && binary.BigEndian.Uint32(b) == 0 {
		return nil, nil
	}
	if len(b) < arrayHeader+arrayDimension || binary.BigEndian.Uint32(b) != 1 {
		return nil, fmt.Errorf("%w: no array of numbers", errReply)
	}
	length := int64(binary.BigEndian.Uint32(b[arrayHeader:]))
	b = b[arrayHeader+arrayDimension:]
	if int64(len(b)) != 12*length {
		return nil, fmt.Errorf("%w: an array of %d numbers in %d bytes", errReply, length, len(b))
	}
	values := make([]int64, length)
	for i := range values {
		element := b[12*i:]
		if binary.BigEndian.Uint32(element) != 8 {
			return nil, fmt.Errorf("%w: an array with something else than numbers", errReply)
		}
		values[i] = int64(binary.BigEndian.Uint64(element[4:]))
	}
	return values, nil
}
