package policy

// Published is what the table holds for one workload.
type Published struct {
	// Row is the encoded row, nil when there is none.
	Row []byte
	// Replicas is nil when there is none.
	Replicas *Replicas
	// Epoch is the highest that wrote a row or a count for this workload, empty when none did. A leader whose own is
	// lower is refused: to go on it needs one above this and above those in Row and Members.
	Epoch string
	// Members are the live enforcers; MembersVersion grows whenever one joins or leaves.
	Members        []Report
	MembersVersion int64
}

// Refusal is why the table did not take a write. It is a value: the caller branches on it.
type Refusal string

const (
	// Accepted is no refusal.
	Accepted Refusal = ""
	// RefusedOwner: the table belongs to another installation.
	RefusedOwner Refusal = "owner"
	// RefusedRevision: the table holds a higher revision, or the same one with another body.
	RefusedRevision Refusal = "revision"
	// RefusedVersion: the table holds a row of a newer version of the encoding.
	RefusedVersion Refusal = "version"
	// RefusedStale: the row was compiled from an older list of policies, or takes a policy back to an older
	// generation.
	RefusedStale Refusal = "stale"
)
