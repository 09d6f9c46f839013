package pgstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	//go:embed sql/tables.sql
	tablesSQL string
	//go:embed sql/step.sql
	stepSQL string
	//go:embed sql/cleanup.sql
	cleanUpSQL string
)

// version is what the function version returns where the schema is the one of this code. It grows with every change
// that an older library can live with; a function that changes otherwise gets another name.
const version = 2

// schemaLock keeps replicas that start together from creating the same things; "Weir" in ASCII.
const schemaLock = 0x57656972

// Schema returns the SQL that creates the table and its functions in a schema of the database, DefaultSchema if empty.
// It can be run again, and by several at once.
func Schema(schema string) string {
	if schema == "" {
		schema = DefaultSchema
	}
	return inSchema(tablesSQL+"\n"+stepSQL+"\n"+cleanUpSQL, schema)
}

// Grants returns the SQL that lets a role which does not own the schema use it. The text of the schema says the same in
// its comments.
func Grants(schema, role string) string {
	if schema == "" {
		schema = DefaultSchema
	}
	var b strings.Builder
	for line := range strings.Lines(tablesSQL) {
		if grant, found := strings.CutPrefix(line, "--   grant "); found {
			b.WriteString("grant " + grant)
		}
	}
	name := pgx.Identifier{role}.Sanitize()
	return strings.ReplaceAll(inSchema(b.String(), schema), "to ROLE;", "to "+name+";")
}

// inSchema puts a schema's name where the texts say "weir".
func inSchema(sql, schema string) string {
	name := pgx.Identifier{schema}.Sanitize()
	sql = strings.ReplaceAll(sql, `'"weir"`, `'`+strings.ReplaceAll(name, `'`, `''`)) // within a literal
	return strings.ReplaceAll(sql, `"weir"`, name)
}

// Prepare creates what is missing in the database, or is older than this code. A role that may not create it gets an
// error that says what to do.
func (s *Store) Prepare(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return classify(fmt.Errorf("preparing schema %s: %w", s.schema, err))
	}
	return nil
}

func (s *Store) prepare(ctx context.Context) error {
	current, err := s.installed(ctx, s.pool)
	if err != nil || current >= version {
		return err
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after the commit
	if _, err := tx.Exec(ctx, fmt.Sprintf("select pg_advisory_xact_lock(%d)", schemaLock)); err != nil {
		return err
	}
	if current, err = s.installed(ctx, tx); err != nil || current >= version {
		return err
	}
	if _, err := tx.Exec(ctx, Schema(s.schema)); err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
			return fmt.Errorf("have an owner run the output of `kubectl weir postgres-schema`: %w", err)
		}
		return err
	}
	return tx.Commit(ctx)
}

// installed returns the version of the schema in the database, 0 if there is none.
func (s *Store) installed(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (int, error) {
	var found bool
	name := inSchema(`"weir".version()`, s.schema)
	err := db.QueryRow(ctx, "select to_regprocedure($1) is not null", pgx.QueryExecModeExec, name).Scan(&found)
	if err != nil || !found {
		return 0, err
	}
	var installed int
	err = db.QueryRow(ctx, "select "+name, pgx.QueryExecModeExec).Scan(&installed)
	return installed, err
}
