package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/policy"
)

// Member is the policy table as the enforcers of one workload see it. It is safe for concurrent use.
type Member struct {
	client   redis.UniversalClient
	keys     keys
	workload policy.Workload
}

var _ enforcer.DenialTable = (*Member)(nil)

// NewMember returns the table's side of one workload; an empty table means DefaultTable.
func NewMember(client redis.UniversalClient, table string, w policy.Workload) *Member {
	return &Member{client: client, keys: newKeys(table), workload: w}
}

// Read takes one round trip of plain GETs. On a cluster the owner's node may be another one. What is no string is absent;
// the controller deletes it, which an enforcer asks for by asking for the row.
func (m *Member) Read(ctx context.Context) (enforcer.TableState, error) {
	pipeline := m.client.Pipeline()
	row := pipeline.Get(ctx, m.keys.row(m.workload))
	replicas := pipeline.Get(ctx, m.keys.replicas(m.workload))
	owner := pipeline.Get(ctx, m.keys.owner())
	_, err := pipeline.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) && reasonOf(err) != enforcer.ReasonState {
		return enforcer.TableState{}, classify(fmt.Errorf("reading the table: %w", err))
	}
	var state enforcer.TableState
	var record []byte
	for _, read := range []struct {
		cmd  *redis.StringCmd
		into *[]byte
	}{{row, &state.Row}, {replicas, &state.Replicas}, {owner, &record}} {
		value, err := read.cmd.Bytes()
		switch {
		case errors.Is(err, redis.Nil), err != nil && reasonOf(err) == enforcer.ReasonState:
		case err != nil:
			return enforcer.TableState{}, classify(fmt.Errorf("reading the table: %w", err))
		default:
			*read.into = value
		}
	}
	state.Owner = ownerOf(record)
	return state, nil
}

// ownerRecord is what weir:T:owner holds. Its numbers are strings, see claim.lua.
type ownerRecord struct {
	Installation string `json:"installation"`
	Epoch        string `json:"epoch"`
	Term         string `json:"term"` // µs of the store's clock when this installation took the table
	Seen         string `json:"seen"` // µs of the store's clock
}

// ownerOf returns the installation of a record. A record of another form still says that there is an owner.
func ownerOf(record []byte) string {
	if len(record) == 0 {
		return ""
	}
	var owner ownerRecord
	if err := json.Unmarshal(record, &owner); err != nil || owner.Installation == "" {
		return string(record)
	}
	return owner.Installation
}

func memberKeys(k keys, w policy.Workload) []string {
	return []string{k.members(w), k.deadlines(w), k.reports(w), k.membership(w)}
}

// Heartbeat joins or stays.
func (m *Member) Heartbeat(
	ctx context.Context, report policy.Report, poll time.Duration,
) (enforcer.Standing, error) {
	body, err := policy.EncodeReport(report)
	if err != nil {
		return enforcer.Standing{}, err
	}
	cmd, err := heartbeatScript.call(ctx, m.client, memberKeys(m.keys, m.workload),
		report.Member, body, lifetime(poll).Milliseconds(), m.keys.asks(m.workload.Namespace), m.workload.String())
	if err != nil {
		return enforcer.Standing{}, err
	}
	return decodeStanding(cmd.Val())
}

// lifetime is how long a member that polls so often is believed to live after a heartbeat.
func lifetime(poll time.Duration) time.Duration { return 3 * max(poll, time.Second) }

// ReportDenied keeps whom a member denied most.
func (m *Member) ReportDenied(ctx context.Context, member string, report policy.DeniedReport, poll time.Duration) error {
	body, err := policy.EncodeDenied(report)
	if err != nil {
		return err
	}
	if err := m.client.Set(ctx, m.keys.deniedBy(m.workload, member), body, lifetime(poll)).Err(); err != nil {
		return classify(fmt.Errorf("reporting denied identities: %w", err))
	}
	return nil
}

// decodeStanding reads rank, count, version, time, and whether the member is new.
func decodeStanding(reply any) (enforcer.Standing, error) {
	var s enforcer.Standing
	parts, ok := reply.([]any)
	if !ok || len(parts) != 5 {
		return s, classify(fmt.Errorf("%w: heartbeat answers %T", errReply, reply))
	}
	numbers := make([]int64, len(parts))
	for i, part := range parts {
		n, err := integer(part)
		if err != nil {
			return s, classify(fmt.Errorf("heartbeat: %w", err))
		}
		numbers[i] = n
	}
	return enforcer.Standing{
		Rank: int(numbers[0]), Count: int(numbers[1]), Version: numbers[2], Now: numbers[3], New: numbers[4] == 1,
	}, nil
}

// Leave takes the member out of the set.
func (m *Member) Leave(ctx context.Context, member string) error {
	_, err := leaveScript.call(ctx, m.client, memberKeys(m.keys, m.workload),
		member, m.keys.asks(m.workload.Namespace), m.workload.String())
	return err
}

// Listen calls hint whenever the row or the replicas changed, and when the subscription was made or made again, until
// ctx ends.
func (m *Member) Listen(ctx context.Context, hint func()) error {
	s := subscription{
		open: func(ctx context.Context) *redis.PubSub {
			return m.client.Subscribe(ctx, m.keys.changed(m.workload))
		},
		connected: hint,
		message:   func(*redis.Message) { hint() },
	}
	return s.run(ctx)
}

// AskForRow tells the controller that this workload's row is missing.
func (m *Member) AskForRow(ctx context.Context) error {
	if err := m.client.Publish(ctx, m.keys.asks(m.workload.Namespace), m.workload.String()).Err(); err != nil {
		return classify(fmt.Errorf("asking for the row: %w", err))
	}
	return nil
}
