package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Snapshot is a copy of what the table holds for one workload, for those who cannot ask the table: a mounted file, or
// what a replica keeps for itself. Both parts are in the table's own encodings, so that a newer row passes through an
// older library unharmed.
type Snapshot struct {
	Row []byte
	// Replicas is nil while there is no count.
	Replicas []byte
}

// snapshotWire is the form of a snapshot.
type snapshotWire struct {
	Version  int             `json:"v"`
	Row      json.RawMessage `json:"row"`
	Replicas json.RawMessage `json:"replicas,omitempty"`
}

// EncodeSnapshot gives the form of a snapshot's file, {"v":1,"row":{…},"replicas":{…}}. Equal parts give equal bytes.
// It is at most MaxRowBytes and 5 KiB long.
func EncodeSnapshot(s Snapshot) ([]byte, error) {
	data, err := encode(snapshotWire{Version: RowVersion, Row: s.Row, Replicas: s.Replicas})
	if err != nil {
		return nil, fmt.Errorf("encoding snapshot: %w", err)
	}
	return data, nil
}

// DecodeSnapshot reads what EncodeSnapshot wrote. The parts are yet to be decoded, but the row is one of the workload
// "namespace/group/kind/name": somebody else's limits must not be enforced because somebody else's file was mounted. The
// error wraps ErrNewerVersion where the version is above RowVersion.
func DecodeSnapshot(data []byte, workload string) (Snapshot, error) {
	s, err := decodeSnapshot(data, workload)
	if err != nil {
		return Snapshot{}, fmt.Errorf("decoding snapshot: %w", err)
	}
	return s, nil
}

func decodeSnapshot(data []byte, workload string) (Snapshot, error) {
	if err := checkVersion(data, maxReadBytes); err != nil {
		return Snapshot{}, err
	}
	var wire snapshotWire
	if err := json.Unmarshal(data, &wire); err != nil {
		return Snapshot{}, err
	}
	if wire.Row == nil || bytes.Equal(wire.Row, []byte("null")) {
		return Snapshot{}, errors.New("there is no row in it")
	}
	var head struct {
		Workload string `json:"workload"`
	}
	if err := json.Unmarshal(wire.Row, &head); err != nil {
		return Snapshot{}, err
	}
	if head.Workload != workload {
		return Snapshot{}, fmt.Errorf("it is of workload %q, not of %q", head.Workload, workload)
	}
	s := Snapshot{Row: wire.Row}
	if !bytes.Equal(wire.Replicas, []byte("null")) {
		s.Replicas = wire.Replicas
	}
	return s, nil
}

// LaterReplicas is the one of two counts of a workload that was made later; either may be nil.
func LaterReplicas(a, b *Replicas) *Replicas {
	if a == nil || b != nil && b.At > a.At {
		return b
	}
	return a
}

// maxObjectName is the longest name of a ConfigMap, a DNS subdomain.
const maxObjectName = 253

// SnapshotName is the name of the ConfigMap with the snapshot of a workload: "weir-checkout" for checkout. A workload's
// name of more than 248 characters is cut, and told apart by the first 8 hexadecimal digits of its SHA-256.
func SnapshotName(workload string) string {
	const prefix, digits = "weir-", 8
	if len(prefix)+len(workload) <= maxObjectName {
		return prefix + workload
	}
	hash := sha256.Sum256([]byte(workload))
	cut := strings.TrimRight(workload[:maxObjectName-len(prefix)-1-digits], "-.")
	return prefix + cut + "-" + hex.EncodeToString(hash[:])[:digits]
}
