package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

const (
	maxReplicasBytes = 4 << 10
	maxReportBytes   = 16 << 10

	// maxReplicas bounds counts, so that no sum of them overflows and no share of a limit is computed for nonsense.
	maxReplicas = 1_000_000

	maxMember   = 320 // a pod's name, a slash and a nonce
	maxLibrary  = 128
	maxFeatures = 64
	maxFeature  = 64
)

// reportedRegexp is what may stand in a status: a pod's name, a host's name outside Kubernetes, a feature.
var reportedRegexp = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// EncodeReplicas gives the form of the table. It refuses what DecodeReplicas would refuse.
func EncodeReplicas(r Replicas) ([]byte, error) {
	data, err := encode(r)
	if err == nil {
		_, err = DecodeReplicas(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding replicas: %w", err)
	}
	return data, nil
}

// DecodeReplicas reads what EncodeReplicas wrote. The reader keeps the last good count on an error. The error wraps
// ErrNewerVersion where the version is above RowVersion.
func DecodeReplicas(data []byte) (Replicas, error) {
	var r Replicas
	if err := checkVersion(data, maxReplicasBytes); err != nil {
		return Replicas{}, fmt.Errorf("decoding replicas: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Replicas{}, fmt.Errorf("decoding replicas: %w", err)
	}
	var f faults
	f.number("n", int64(r.N), 1, maxReplicas)
	f.number("ready", int64(r.Ready), 0, maxReplicas)
	f.number("desired", int64(r.Desired), 0, maxReplicas)
	f.number("terminating", int64(r.Terminating), 0, maxReplicas)
	f.number("raisedTo", int64(r.RaisedTo), 0, maxReplicas)
	f.number("wanted", int64(r.Wanted), 0, maxReplicas)
	if len(f) > 0 {
		return Replicas{}, fmt.Errorf("decoding replicas: %w", f[0])
	}
	return r, nil
}

// EncodeReport gives the form of the table, in which the member is the key. It refuses what DecodeReport would refuse.
func EncodeReport(r Report) ([]byte, error) {
	data, err := encode(r)
	if err == nil {
		_, err = DecodeReport(r.Member, data)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding report: %w", err)
	}
	return data, nil
}

// DecodeReport reads what EncodeReport wrote for a member. Reports come from applications, which may write anything in
// their place: everything that reaches a status is bounded here.
func DecodeReport(member string, data []byte) (Report, error) {
	r, err := decodeReport(member, data)
	if err != nil {
		return Report{}, fmt.Errorf("decoding report: %w", err)
	}
	return r, nil
}

func decodeReport(member string, data []byte) (Report, error) {
	if member == "" || len(member) > maxMember {
		return Report{}, errors.New("a member has no name or too long a name")
	}
	if len(data) > maxReportBytes {
		return Report{}, fmt.Errorf("%d bytes are more than %d", len(data), maxReportBytes)
	}
	r := Report{Member: member}
	if err := json.Unmarshal(data, &r); err != nil {
		return Report{}, err
	}
	var f faults
	f.name("pod", r.Pod, reportedRegexp, reportedRegexp.String(), maxName)
	f.revision("revision", r.Revision)
	if len(r.Library) > maxLibrary {
		f.add("library", "Too long: may not be more than %d bytes", maxLibrary)
	}
	f.items("features", len(r.Features), len(r.Features) == 0, optional, maxFeatures)
	for i, feature := range r.Features {
		f.name(index("features", i), feature, reportedRegexp, reportedRegexp.String(), maxFeature)
	}
	if len(r.Features) == 0 {
		r.Features = nil // one form for none
	}
	if len(r.Matched) > MaxRules {
		f.add("matched", "Too long: may not be more than %d bytes", MaxRules)
	}
	f.number("skipped", int64(r.Skipped), 0, MaxRules)
	if len(f) > 0 {
		return Report{}, f[0]
	}
	return r, nil
}
