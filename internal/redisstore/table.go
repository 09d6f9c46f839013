package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

const (
	// ownerHolds is how long an owner of whom nothing is heard keeps the table.
	ownerHolds = 5 * time.Minute
	// tombstoneKeeps is how long a row without rules stays.
	tombstoneKeeps = 24 * time.Hour
)

// Table is the policy table as the controller of one installation sees it. It is safe for concurrent use.
type Table struct {
	client       atomic.Pointer[redis.UniversalClient]
	keys         keys
	installation string
	holds        time.Duration // ownerHolds, but for tests
	// term is the store's time at which this installation took the table; 0 before the first claim, and lower than
	// every other installation's.
	term atomic.Int64
}

// NewTable returns the table of an installation; an empty table means DefaultTable.
func NewTable(client redis.UniversalClient, table, installation string) *Table {
	t := &Table{keys: newKeys(table), installation: installation, holds: ownerHolds}
	t.Use(client)
	return t
}

// Use asks through another client from now on, for credentials that a client is made with. The one before may be closed
// when what is under way has had time to end; Listen then goes on with the new one.
func (t *Table) Use(client redis.UniversalClient) { t.client.Store(&client) }

func (t *Table) redis() redis.UniversalClient { return *t.client.Load() }

// Claim makes this installation the owner, or refreshes it, and returns the owner.
func (t *Table) Claim(ctx context.Context, epoch string) (string, error) {
	cmd, err := claimScript.call(ctx, t.redis(), []string{t.keys.owner()},
		t.installation, epoch, t.holds.Microseconds())
	if err != nil {
		return "", err
	}
	owner, term, err := decodeClaim(cmd.Val())
	if err != nil {
		return "", fmt.Errorf("claiming the table: %w", classify(err))
	}
	if owner == t.installation {
		t.term.Store(term)
	}
	return owner, nil
}

// decodeClaim reads the owner and its term.
func decodeClaim(reply any) (owner string, term int64, err error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) != 2 {
		return "", 0, fmt.Errorf("%w: claim answers %T", errReply, reply)
	}
	if owner, err = text(parts[0]); err != nil {
		return "", 0, fmt.Errorf("owner: %w", err)
	}
	if owner == "" {
		return "", 0, fmt.Errorf("%w: the owner has no name", errReply)
	}
	if term, err = integer(parts[1]); err != nil {
		return "", 0, fmt.Errorf("term: %w", err)
	}
	return owner, term, nil
}

// Read returns what the table holds for a workload. Members that were not heard in time are taken out, and keys that are
// of another type than ours are deleted: repaired has their kinds, such as "members" or "row". What they should hold then
// reads as absent, which is written again.
func (t *Table) Read(ctx context.Context, w policy.Workload) (published policy.Published, repaired []string, err error) {
	keys := append(memberKeys(t.keys, w), t.keys.row(w), t.keys.replicas(w), t.keys.fence(w))
	cmd, err := observeScript.call(ctx, t.redis(), keys)
	if err != nil {
		return policy.Published{}, nil, ofWorkload(err)
	}
	published, repaired, err = decodePublished(cmd.Val())
	if err != nil {
		return policy.Published{}, nil, ofWorkload(fmt.Errorf("reading the table: %w", classify(err)))
	}
	return published, repaired, nil
}

// decodePublished reads row, replicas, epoch, version of the members, what was repaired, and members with their reports.
// Replicas and reports that cannot be decoded count as absent: the controller writes the one, and the enforcer the other,
// again.
func decodePublished(reply any) (p policy.Published, repaired []string, err error) {
	const members = 5 // parts before them
	raw, ok := reply.([]any)
	if !ok || len(raw) < members || len(raw)%2 != members%2 {
		return p, nil, fmt.Errorf("%w: the table answers %T", errReply, reply)
	}
	parts := make([]string, len(raw))
	for i, part := range raw {
		if parts[i], ok = part.(string); !ok {
			return p, nil, fmt.Errorf("%w: part %d is %T", errReply, i, part)
		}
	}
	if parts[0] != "" {
		p.Row = []byte(parts[0])
	}
	if parts[1] != "" {
		if replicas, err := policy.DecodeReplicas([]byte(parts[1])); err == nil {
			p.Replicas = &replicas
		}
	}
	p.Epoch = parts[2]
	if p.MembersVersion, err = integer(parts[3]); err != nil {
		return p, nil, fmt.Errorf("version of the members: %w", err)
	}
	for i := members; i < len(parts); i += 2 {
		if report, err := policy.DecodeReport(parts[i], []byte(parts[i+1])); err == nil {
			p.Members = append(p.Members, report)
		}
	}
	slices.SortFunc(p.Members, func(a, b policy.Report) int { return strings.Compare(a.Member, b.Member) })
	return p, strings.Fields(parts[4]), nil
}

// Publish writes a row, with the workload entered in the set of workloads before it, and tells the enforcers. A row
// without rules expires after 24 h.
//
// A row is refused when it would take something back: the revision, the list of policies that it was compiled from, or
// the generation of a policy. A row with an empty PolicyList is compared by its revision alone: that is how a leader
// goes on after its API server was restored from a backup.
func (t *Table) Publish(ctx context.Context, w policy.Workload, row policy.Row) (policy.Refusal, error) {
	body, err := policy.EncodeRow(row)
	if err != nil {
		return "", fmt.Errorf("publishing %s: %w", w, err)
	}
	if err := t.enter(ctx, w); err != nil {
		return "", err
	}
	var keep int64
	if len(row.Rules) == 0 {
		keep = tombstoneKeeps.Milliseconds()
	}
	cmd, err := publishScript.call(ctx, t.redis(), []string{t.keys.fence(w), t.keys.row(w), t.keys.replicas(w)},
		row.Owner, t.term.Load(), row.Revision.Epoch, t.keys.changed(w), body, keep)
	if err != nil {
		return "", ofWorkload(err)
	}
	return refusalOf(cmd.Val())
}

// enter puts a workload into the set of workloads. What stands there and is no set is replaced.
func (t *Table) enter(ctx context.Context, w policy.Workload) error {
	err := t.redis().SAdd(ctx, t.keys.workloads(), w.String()).Err()
	if err != nil && reasonOf(err) == enforcer.ReasonState {
		_, err = enterScript.call(ctx, t.redis(), []string{t.keys.workloads()}, w.String())
	}
	if err != nil {
		return classify(fmt.Errorf("entering %s: %w", w, err))
	}
	return nil
}

// PublishReplicas writes the live count of a workload and tells the enforcers.
func (t *Table) PublishReplicas(
	ctx context.Context, w policy.Workload, epoch string, replicas policy.Replicas,
) (policy.Refusal, error) {
	body, err := policy.EncodeReplicas(replicas)
	if err != nil {
		return "", fmt.Errorf("publishing %s: %w", w, err)
	}
	cmd, err := replicasScript.call(ctx, t.redis(), []string{t.keys.fence(w), t.keys.replicas(w)},
		t.installation, t.term.Load(), epoch, t.keys.changed(w), body)
	if err != nil {
		return "", ofWorkload(err)
	}
	return refusalOf(cmd.Val())
}

// refusalOf reads the reason for which a write was refused.
func refusalOf(reply any) (policy.Refusal, error) {
	reason, err := text(reply)
	if err != nil {
		return "", ofWorkload(classify(err))
	}
	switch refusal := policy.Refusal(reason); refusal {
	case policy.Accepted, policy.RefusedOwner, policy.RefusedRevision, policy.RefusedVersion, policy.RefusedStale:
		return refusal, nil
	}
	return "", ofWorkload(classify(fmt.Errorf("%w: refusal %q", errReply, reason)))
}

// Workloads lists the workloads of this table that have or had a row.
func (t *Table) Workloads(ctx context.Context) ([]policy.Workload, error) {
	names, err := t.redis().SMembers(ctx, t.keys.workloads()).Result()
	if err != nil && reasonOf(err) == enforcer.ReasonState {
		return nil, nil // no set, which Publish replaces
	}
	if err != nil {
		return nil, classify(fmt.Errorf("listing workloads: %w", err))
	}
	slices.Sort(names)
	workloads := make([]policy.Workload, 0, len(names))
	for _, name := range names {
		// What is no workload was not entered by Publish, and has no row.
		if w, err := policy.ParseWorkload(name); err == nil {
			workloads = append(workloads, w)
		}
	}
	return workloads, nil
}

// Forget drops a workload whose tombstone has expired from the set.
func (t *Table) Forget(ctx context.Context, w policy.Workload) error {
	if err := t.redis().SRem(ctx, t.keys.workloads(), w.String()).Err(); err != nil && reasonOf(err) != enforcer.ReasonState {
		return classify(fmt.Errorf("forgetting %s: %w", w, err))
	}
	return nil
}

// Listen calls back with each workload whose enforcer misses its row or whose members changed, and with nil when the
// subscription was made or made again, until ctx ends.
func (t *Table) Listen(ctx context.Context, hint func(*policy.Workload)) error {
	s := subscription{
		open: func(ctx context.Context) *redis.PubSub {
			return t.redis().PSubscribe(ctx, t.keys.asks("*"))
		},
		connected: func() { hint(nil) },
		message: func(m *redis.Message) {
			if w, err := policy.ParseWorkload(m.Payload); err == nil {
				hint(&w)
			}
		},
	}
	return s.run(ctx)
}
