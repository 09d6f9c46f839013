package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/policy"
)

// Inspection is what the table holds of a workload, as people look at it.
type Inspection struct {
	policy.Published
	// Owner is the installation that owns the table, empty when no controller ever wrote to it.
	Owner string
}

// Inspect reads what the table holds of a workload, and changes nothing. Members are in the order of their ranks. It
// takes two round trips, so what it returns need not be of one moment. The user of an application may do this.
func Inspect(ctx context.Context, client redis.UniversalClient, table string, w policy.Workload) (Inspection, error) {
	m := NewMember(client, table, w)
	state, err := m.Read(ctx)
	if err != nil {
		return Inspection{}, err
	}
	in := Inspection{Owner: state.Owner}
	in.Row = state.Row
	if state.Replicas != nil {
		if replicas, err := policy.DecodeReplicas(state.Replicas); err == nil {
			in.Replicas = &replicas
		}
	}
	live, err := m.live(ctx)
	if err != nil || len(live) == 0 {
		return in, err
	}
	pipeline := client.Pipeline()
	reports := make([]*redis.StringCmd, len(live))
	for i, member := range live {
		reports[i] = pipeline.HGet(ctx, m.keys.reports(w), member)
	}
	if _, err := pipeline.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return in, classify(fmt.Errorf("reading the reports: %w", err))
	}
	for i, member := range live {
		if report, err := policy.DecodeReport(member, []byte(reports[i].Val())); err == nil {
			in.Members = append(in.Members, report)
		}
	}
	return in, nil
}

// live lists the members that live, in the order of their ranks.
func (m *Member) live(ctx context.Context) ([]string, error) {
	now, err := m.client.Time(ctx).Result()
	if err != nil {
		return nil, classify(fmt.Errorf("asking for the time: %w", err))
	}
	pipeline := m.client.Pipeline()
	joined := pipeline.ZRangeByScore(ctx, m.keys.members(m.workload), &redis.ZRangeBy{Min: "-inf", Max: "+inf"})
	live := pipeline.ZRangeByScore(ctx, m.keys.deadlines(m.workload), &redis.ZRangeBy{Min: strconv.FormatInt(now.UnixMilli(), 10), Max: "+inf"})
	if _, err := pipeline.Exec(ctx); err != nil {
		return nil, classify(fmt.Errorf("reading the members: %w", err))
	}
	alive := make(map[string]bool)
	for _, member := range live.Val() {
		alive[member] = true
	}
	return slices.DeleteFunc(joined.Val(), func(member string) bool { return !alive[member] }), nil
}

// Denied reads whom the live members of a workload denied most, and changes nothing. Members that denied nobody have no
// report, and one that cannot be decoded counts as absent. The user of an application may do this.
func Denied(ctx context.Context, client redis.UniversalClient, table string, w policy.Workload) ([]policy.DeniedReport, error) {
	m := NewMember(client, table, w)
	live, err := m.live(ctx)
	if err != nil {
		return nil, err
	}
	var all []policy.DeniedReport
	for some := range slices.Chunk(live, deniedAtOnce) {
		keys := make([]string, len(some))
		for i, member := range some {
			keys[i] = m.keys.deniedBy(w, member)
		}
		values, err := client.MGet(ctx, keys...).Result()
		if err != nil {
			return nil, classify(fmt.Errorf("reading denied identities: %w", err))
		}
		for _, value := range values {
			body, ok := value.(string)
			if !ok {
				continue
			}
			if report, err := policy.DecodeDenied([]byte(body)); err == nil {
				all = append(all, report)
			}
		}
	}
	return all, nil
}

// deniedAtOnce members are asked for in one command: up to 2 MB of answers.
const deniedAtOnce = 100
