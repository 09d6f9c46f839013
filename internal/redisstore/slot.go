package redisstore

import (
	"encoding/base64"

	"github.com/weir-dev/weir/internal/enforcer"
)

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// slotOf returns the slot of all counters of an identity: CRC-16/XMODEM of what stands in the braces of their keys.
func slotOf(identity enforcer.Identity) uint16 {
	var tag [22]byte
	base64.RawURLEncoding.Encode(tag[:], identity[:])
	var crc uint16
	for _, b := range tag {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^b]
	}
	return crc % slots
}

var crcTable = newCRCTable()

func newCRCTable() [256]uint16 {
	const polynomial = 0x1021
	var table [256]uint16
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ polynomial
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}
