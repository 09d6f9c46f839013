package redisstore

import (
	"context"
	"errors"
	"fmt"
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
	now, err := client.Time(ctx).Result()
	if err != nil {
		return in, classify(fmt.Errorf("asking for the time: %w", err))
	}
	pipeline := client.Pipeline()
	joined := pipeline.ZRangeByScore(ctx, m.keys.members(w), &redis.ZRangeBy{Min: "-inf", Max: "+inf"})
	live := pipeline.ZRangeByScore(ctx, m.keys.deadlines(w), &redis.ZRangeBy{Min: strconv.FormatInt(now.UnixMilli(), 10), Max: "+inf"})
	if _, err := pipeline.Exec(ctx); err != nil {
		return in, classify(fmt.Errorf("reading the members: %w", err))
	}
	alive := make(map[string]bool)
	for _, member := range live.Val() {
		alive[member] = true
	}
	pipeline = client.Pipeline()
	reports := make(map[string]*redis.StringCmd)
	for _, member := range joined.Val() {
		if alive[member] {
			reports[member] = pipeline.HGet(ctx, m.keys.reports(w), member)
		}
	}
	if len(reports) == 0 {
		return in, nil
	}
	if _, err := pipeline.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return in, classify(fmt.Errorf("reading the reports: %w", err))
	}
	for _, member := range joined.Val() {
		if reports[member] == nil {
			continue
		}
		if report, err := policy.DecodeReport(member, []byte(reports[member].Val())); err == nil {
			in.Members = append(in.Members, report)
		}
	}
	return in, nil
}
