package controllers

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/internal/policy"
)

// decision is what a pass is about to write.
type decision struct {
	// row is the row that the workload should have, without its revision.
	row policy.Row
	// refusals tell of each policy that is not in the row why, by name.
	refusals map[string]refusal
	// writeRow and writeReplicas say that the table holds something else; forget, that nobody needs the workload.
	writeRow      bool
	writeReplicas bool
	forget        bool
	// removes says that the row would lack a policy that the table's row has.
	removes bool
	// replicas is nil when nobody needs them: there is no policy.
	replicas *policy.Replicas
	// lookAgain is after how long the count may change by itself; zero for never.
	lookAgain time.Duration
}

// decide is pure: it compares what the workload should have with what the table holds.
func decide(in *input, installation string) decision {
	row, refusals := compile(in, installation)
	d := decision{row: row, refusals: refusals}
	held := in.table.row

	d.removes = in.snapshot.row != nil && lacks(row, *in.snapshot.row)
	if len(in.policies) == 0 && nobodyNeeds(in) {
		d.forget = in.snapshot.object == nil // it goes first
		return d
	}
	switch {
	case held == nil:
		d.writeRow = true
	case len(in.policies) == 0 && held.Owner != installation:
		// A row of somebody else's, or of an installation before this one: not ours to take away.
	default:
		d.writeRow = held.Owner != installation || !sameBody(*held, row) || ahead(*held, in)
		d.removes = d.removes || lacks(row, *held)
	}
	if held == nil && len(in.policies) == 0 {
		d.removes = true // a tombstone ends what enforcers still hold
	}

	if len(in.policies) > 0 {
		d.count(in)
	}
	return d
}

// nobodyNeeds says that no row was left behind that a tombstone would have to replace, and no enforcer asks for one.
func nobodyNeeds(in *input) bool {
	if in.table.state == tableNone {
		return true
	}
	return in.table.state == tableOurs && in.table.published.Row == nil && len(in.table.published.Members) == 0 &&
		!in.memory.hadPolicies
}

// compile makes the row, and says of each policy that is not in it why, by name.
func compile(in *input, installation string) (policy.Row, map[string]refusal) {
	refusals := map[string]refusal{}
	var policies []policy.Policy
	for i := range in.policies {
		p, err := v1alpha1.ToPolicy(&in.policies[i])
		if err != nil {
			refusals[in.policies[i].Name] = refusal{v1alpha1.ReasonInvalid, err.Error()}
			continue
		}
		policies = append(policies, p)
	}
	row, verdicts := policy.Compile(in.workload, installation, policies)
	row.PolicyList = in.list
	for _, v := range verdicts {
		if !v.Accepted() {
			refusals[v.Name] = refusal{v1alpha1.ConditionReason(v.Reason), v.Message}
		}
	}
	return row, refusals
}

// count decides on the replicas.
func (d *decision) count(in *input) {
	previous := policy.LaterReplicas(in.table.published.Replicas, policy.LaterReplicas(in.memory.replicas, in.snapshot.replicas))
	members, version := len(in.table.published.Members), in.table.published.MembersVersion
	unseen := in.table.state != tableOurs && previous != nil
	if unseen {
		version = previous.MembersVersion
	}
	counted, lookAgain := policy.CountReplicas(in.deployment, members, version, previous, in.now.UnixMicro())
	if unseen && counted.N != previous.N {
		counted.MembersVersion = 0 // the ranks that those members have do not fit another number
	}
	d.replicas, d.lookAgain = &counted, lookAgain
	d.writeReplicas = in.table.published.Replicas == nil || !sameJSON(*in.table.published.Replicas, counted)
}

// sameBody says whether two rows ask the same of an enforcer, whoever wrote them when.
func sameBody(a, b policy.Row) bool {
	for _, row := range []*policy.Row{&a, &b} {
		row.Owner, row.PolicyList, row.Revision = "", "", policy.Revision{}
	}
	return sameJSON(a, b)
}

func sameJSON(a, b any) bool {
	encodedA, errA := json.Marshal(a)
	encodedB, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(encodedA, encodedB)
}

// ahead says that an enforcer runs, or the snapshot has, a higher revision than the row: the table was rolled back or
// away, and enforcers will not take the row as it is.
func ahead(row policy.Row, in *input) bool {
	if s := in.snapshot.row; s != nil && s.Revision.Compare(row.Revision) > 0 {
		return true
	}
	return slices.ContainsFunc(in.table.published.Members, func(m policy.Report) bool {
		return plausible(m.Revision) && m.Revision.Compare(row.Revision) > 0
	})
}

// plausible epochs are decimal numbers of at most 22 digits, where resourceVersions have 20: what a member reports must
// not make epochs grow without bounds.
func plausible(r policy.Revision) bool {
	return len(r.Epoch) > 0 && len(r.Epoch) <= 22 && strings.Trim(r.Epoch, "0123456789") == ""
}

// lacks says whether a policy of the held row is missing in the new one.
func lacks(row, held policy.Row) bool {
	return slices.ContainsFunc(held.Policies, func(p policy.RowPolicy) bool {
		return !slices.ContainsFunc(row.Policies, func(q policy.RowPolicy) bool { return p.Name == q.Name })
	})
}

// nextRevision is the revision to write with in an epoch. It is above what this process tried before and above every
// revision seen, unless one of those is of a higher epoch: then ok is false, and highest is that epoch.
func nextRevision(epoch string, tried policy.Revision, seen []policy.Revision) (next policy.Revision, highest string, ok bool) {
	next, highest = policy.Revision{Epoch: epoch, N: 1}, epoch
	for _, r := range append([]policy.Revision{tried}, seen...) {
		if policy.CompareEpochs(r.Epoch, highest) > 0 {
			highest = r.Epoch
		}
		if r.Epoch == epoch {
			next.N = max(next.N, r.N+1)
		}
	}
	return next, highest, highest == epoch
}

// seenRevisions are those of the row in the table, of the last write for the workload, of what enforcers run, and of the
// snapshot.
func seenRevisions(in *input) []policy.Revision {
	t := in.table
	seen := []policy.Revision{{Epoch: t.published.Epoch}}
	if t.row != nil {
		seen = append(seen, t.row.Revision)
	}
	for _, m := range t.published.Members {
		if plausible(m.Revision) {
			seen = append(seen, m.Revision)
		}
	}
	if s := in.snapshot.row; s != nil && plausible(s.Revision) {
		seen = append(seen, s.Revision)
	}
	return seen
}
