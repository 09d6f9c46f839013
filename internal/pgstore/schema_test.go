package pgstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/algorithm"
	"github.com/weir-dev/weir/test/env"
)

func TestSchema(t *testing.T) {
	server := env.Postgres(t)
	owner := connect(t, server.DSN, 16)
	hour := algorithm.Limit{Requests: 2, Window: hour}
	as := func(role string) string { return strings.Replace(server.DSN, "weir@", role+"@", 1) }

	t.Run("replicas that start together", func(t *testing.T) {
		var wait sync.WaitGroup
		for range 16 {
			wait.Go(func() {
				if err := New(owner, Options{StatementTimeout: patient}).Prepare(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
	})
	t.Run("the text can be run again and keeps the counters", func(t *testing.T) {
		store := New(owner, Options{StatementTimeout: patient})
		one := counter("kept", hour)
		take(t, store, entry(2, one))
		exec(t, owner, Schema(""))
		if got := take(t, store, entry(1, one)); got[0] != 0 {
			t.Error("a counter was lost")
		}
	})
	t.Run("a newer version is left alone", func(t *testing.T) {
		exec(t, owner, `create or replace function weir.version() returns int language sql immutable as 'select 99'`)
		if err := New(owner, Options{}).Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := number(t, owner, "select weir.version()"); got != 99 {
			t.Errorf("version is now %d", got)
		}
		exec(t, owner, Schema("")) // an owner may
		if got := number(t, owner, "select weir.version()"); got != version {
			t.Errorf("version is %d, want %d", got, version)
		}
	})
	t.Run("a role with no more than the documented grants", func(t *testing.T) {
		exec(t, owner, "create role app login")
		exec(t, owner, Grants("", "app"))
		store := New(connect(t, as("app"), 2), Options{StatementTimeout: patient})
		if err := store.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		one := counter("app", hour)
		if got := take(t, store, entry(3, one)); got[0] != 2 {
			t.Errorf("%d of 3 granted, want 2", got[0])
		}
		if err := store.Refund(t.Context(), []enforcer.Refund{{Counters: []enforcer.Counter{one}, N: 1}}); err != nil {
			t.Error(err)
		}
		if err := store.Reset(t.Context(), []enforcer.Counter{one}); err != nil {
			t.Error(err)
		}
		if _, _, err := store.cleanUp(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
	t.Run("a role that may create nothing is told what to do", func(t *testing.T) {
		exec(t, owner, "create role guest login")
		err := New(connect(t, as("guest"), 1), Options{Schema: "other"}).Prepare(t.Context())
		reasonWanted(t, err, enforcer.ReasonAuth)
		if err == nil || !strings.Contains(err.Error(), "postgres-schema") {
			t.Errorf("error %v does not say what to do", err)
		}
	})
	t.Run("two schemas do not share counters", func(t *testing.T) {
		one := counter("shared", hour)
		for _, name := range []string{"", `it's "odd"`} {
			store := New(owner, Options{Schema: name, StatementTimeout: patient})
			if err := store.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := take(t, store, entry(3, one)); got[0] != 2 {
				t.Errorf("%d of 3 granted in schema %q, want 2", got[0], name)
			}
			if pages, _, err := store.cleanUp(t.Context(), 0); err != nil || pages == 0 {
				t.Errorf("cleaning up schema %q: %d pages, %v", name, pages, err)
			}
		}
	})
	t.Run("no key of a client is in the database", func(t *testing.T) {
		store := New(owner, Options{StatementTimeout: patient})
		one := counter("sk_live_4242424242", hour)
		take(t, store, entry(1, one))
		if n := number(t, owner, "select count(*) from weir.counters c where c::text like '%sk_live%' or position(convert_to('sk_live', 'UTF8') in c.key) > 0"); n != 0 {
			t.Errorf("%d rows hold it", n)
		}
	})
	t.Run("a crash leaves an empty table that works", func(t *testing.T) {
		server.Kill()
		server.Start()
		store := New(connect(t, server.DSN, 2), Options{StatementTimeout: patient})
		if n := number(t, store.pool, "select count(*) from weir.counters"); n != 0 {
			t.Errorf("%d rows are left: the table is not unlogged", n)
		}
		if got := take(t, store, entry(3, counter("kept", hour))); got[0] != 2 {
			t.Errorf("%d of 3 granted, want 2", got[0])
		}
	})
}
