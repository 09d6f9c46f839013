package env

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPostgresKeepsItsDataOverRestarts(t *testing.T) {
	server := Postgres(t, "max_connections = 23")
	query := func(sql string) string {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		var value string
		if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	if got := query("SHOW max_connections"); got != "23" {
		t.Errorf("max_connections: got %s, want 23", got)
	}
	conn, err := pgx.Connect(t.Context(), server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'here'::text AS value"); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(){"Stop": server.Stop, "Kill": server.Kill} { // with an open connection
		end()
		if err := conn.Ping(t.Context()); err == nil {
			t.Errorf("%s: the connection still answers", name)
		}
		server.Start()
		if got := query("SELECT value FROM kept"); got != "here" {
			t.Errorf("%s: got %q, want the row that was kept", name, got)
		}
	}
}
