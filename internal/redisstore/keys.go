package redisstore

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// DefaultTable is the name of the table when none is given.
const DefaultTable = "default"

// keys holds every key and channel name of one table. T is the table's name and {w} a workload in its string form,
// which is also the hash tag: all that belongs to one workload, and all limits of one identity, live in one slot.
//
//	weir:T:owner            string  who owns the table: JSON of ownerRecord
//	weir:T:workloads        set     workloads that have or had a row
//	weir:T:row:{w}          string  the encoded policy.Row; expires after 24 h when it is a tombstone
//	weir:T:replicas:{w}     string  the encoded policy.Replicas
//	weir:T:fence:{w}        hash    owner, term and highest epoch of what was written for the workload
//	weir:T:members:{w}      zset    live enforcers by the time they joined, in ms; the order of ranks
//	weir:T:deadlines:{w}    zset    the same enforcers by the time after which they are no longer live, in ms
//	weir:T:reports:{w}      hash    the same enforcers and their policy.Report as JSON
//	weir:T:membership:{w}   string  the version of the set of members
//	weir:T:denied:{w}:M     string  whom the enforcer M denied most: policy.DeniedReport; expires as M's deadline does
//	weir:T:c:NS:{id}:L      string  the counter of identity id and limit L in namespace NS
//	weir:T:c:NS:{id}:L.alt  string  what replicas told of it after a suspected loss, as one more counter
//	weir:T:c:NS:{id}:L.told hash    who told what, and when the counter was last reset
//	weir:T:changed:w        channel tells enforcers that the row or the replicas of w changed
//	weir:T:asks:NS          channel tells the controller which workload of NS misses its row or has other members
//
// Namespaces stand where a pattern of an ACL can end: weir:T:row:{NS/*, weir:T:c:NS:*, weir:T:changed:NS/*.
type keys struct {
	prefix string // "weir:T:"
}

func newKeys(table string) keys {
	if table == "" {
		table = DefaultTable
	}
	return keys{prefix: "weir:" + table + ":"}
}

// ValidateTable refuses names of tables that would not be safe in keys, channels and patterns of ACLs.
func ValidateTable(table string) error {
	if table == "" || len(table) > 63 {
		return fmt.Errorf("table %q: want 1 to 63 characters", table)
	}
	for _, r := range table {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r) {
			return fmt.Errorf("table %q: want letters, digits, '-', '_' and '.' only", table)
		}
	}
	return nil
}

func (k keys) owner() string     { return k.prefix + "owner" }
func (k keys) workloads() string { return k.prefix + "workloads" }

func (k keys) ofWorkload(kind string, w policy.Workload) string {
	return k.prefix + kind + ":{" + w.String() + "}"
}

func (k keys) row(w policy.Workload) string        { return k.ofWorkload("row", w) }
func (k keys) replicas(w policy.Workload) string   { return k.ofWorkload("replicas", w) }
func (k keys) fence(w policy.Workload) string      { return k.ofWorkload("fence", w) }
func (k keys) members(w policy.Workload) string    { return k.ofWorkload("members", w) }
func (k keys) deadlines(w policy.Workload) string  { return k.ofWorkload("deadlines", w) }
func (k keys) reports(w policy.Workload) string    { return k.ofWorkload("reports", w) }
func (k keys) membership(w policy.Workload) string { return k.ofWorkload("membership", w) }

// deniedBy is where one member says whom it denied most.
func (k keys) deniedBy(w policy.Workload, member string) string {
	return k.ofWorkload("denied", w) + ":" + member
}

func (k keys) changed(w policy.Workload) string { return k.prefix + "changed:" + w.String() }
func (k keys) asks(namespace string) string     { return k.prefix + "asks:" + namespace }

// counterPrefix is what all counters of a namespace begin with, up to the identity.
func (k keys) counterPrefix(namespace string) string { return k.prefix + "c:" + namespace + ":{" }

// appendCounter appends the key of one counter.
func appendCounter(b []byte, prefix string, c *enforcer.Counter) []byte {
	b = append(b, prefix...)
	b = base64.RawURLEncoding.AppendEncode(b, c.Identity[:])
	b = append(b, "}:"...)
	return append(b, c.ID...)
}
