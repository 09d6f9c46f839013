package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/internal/pgstore"
	"github.com/weir-dev/weir/test/env"
)

func TestPostgresSchemaIsAllThatARoleNeeds(t *testing.T) {
	server := env.Postgres(t)
	pool := func(dsn string) *pgxpool.Pool {
		t.Helper()
		p, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	owner := pool(server.DSN)
	for schema, role := range map[string]string{"weir": "checkout", `it's "odd"`: `a "role"`} {
		t.Run(schema, func(t *testing.T) {
			quoted := `"` + strings.ReplaceAll(role, `"`, `""`) + `"`
			if _, err := owner.Exec(t.Context(), "create role "+quoted+" login"); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := call(t, "postgres-schema", "--schema", schema, "--role", role)
			if code != exitOK || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			for range 2 { // it can be run again
				if _, err := owner.Exec(t.Context(), stdout); err != nil {
					t.Fatal(err)
				}
			}
			config := owner.Config()
			config.ConnConfig.User = role
			asRole, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer asRole.Close()
			store := pgstore.New(asRole, pgstore.Options{Schema: schema, StatementTimeout: 30 * time.Second})
			if err := store.Prepare(t.Context()); err != nil {
				t.Fatalf("the role would have to create something: %v", err)
			}
			counters := []enforcer.Counter{{
				ID: "limit", Cost: 1, Limit: algorithm.Limit{Requests: 2, Window: time.Hour.Microseconds()},
			}}
			answers := make([]enforcer.Answer, 1)
			entries := []enforcer.Entry{{Counters: counters, Enforced: 1, N: 3}}
			if _, err := store.Take(t.Context(), entries, answers); err != nil {
				t.Fatal(err)
			}
			if answers[0].Granted != 2 {
				t.Errorf("%d of 3 granted, want 2", answers[0].Granted)
			}
			if err := store.Reset(t.Context(), counters); err != nil {
				t.Error(err)
			}
			pushes := []enforcer.Push{{ID: "limit", Limit: counters[0].Limit, Member: "a/1", Seq: 1, Untold: algorithm.State{Used: 1}}}
			if _, err := store.Push(t.Context(), pushes, make([]enforcer.Pushed, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPostgresSchemaWithoutRoleGrantsNothing(t *testing.T) {
	code, stdout, _ := call(t, "postgres-schema")
	if code != exitOK || !strings.Contains(stdout, `create schema if not exists "weir"`) {
		t.Fatalf("exit code %d: %s", code, stdout)
	}
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "grant ") {
			t.Errorf("grants without a role: %s", line)
		}
	}
}
