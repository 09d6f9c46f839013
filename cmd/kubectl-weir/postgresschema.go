package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/pgstore"
)

// schemaOptions are the flags of postgres-schema.
type schemaOptions struct {
	schema string
	role   string
}

// maxIdentifier is the longest name, in bytes, that PostgreSQL does not cut off.
const maxIdentifier = 63

func newPostgresSchema(s streams) *cobra.Command {
	var o schemaOptions
	cmd := &cobra.Command{
		Use:   "postgres-schema",
		Short: "Print the SQL that counters in PostgreSQL need",
		Long: `Print the SQL that creates what counters in PostgreSQL need: a schema, two tables and the functions that decide.

An application whose role may create it does so by itself. Where it may not, an owner of the database runs this text;
with --role it ends with the grants for that role. The text can be run again, also while applications are running.`,
		Example: `  kubectl weir postgres-schema --role checkout | psql -1 "$DATABASE_URL"`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return o.run(s) },
	}
	cmd.Flags().StringVar(&o.schema, "schema", pgstore.DefaultSchema, "schema of the database that holds the tables")
	cmd.Flags().StringVar(&o.role, "role", "", "role of an application that does not own the schema; its grants are printed too")
	return cmd
}

func (o *schemaOptions) run(s streams) error {
	if err := errors.Join(checkIdentifier("schema", o.schema), checkIdentifier("role", o.role)); err != nil {
		return usageError{err}
	}
	if o.schema == "" {
		return usageError{errors.New("--schema is empty: leave it out for the schema " + pgstore.DefaultSchema)}
	}
	text := pgstore.Schema(o.schema)
	if o.role != "" {
		text += "\n" + pgstore.Grants(o.schema, o.role)
	}
	if _, err := io.WriteString(s.out, text); err != nil {
		return fmt.Errorf("writing the schema: %w", err)
	}
	return nil
}

func checkIdentifier(what, name string) error {
	if len(name) > maxIdentifier || strings.ContainsRune(name, 0) {
		return fmt.Errorf("--%s %q: PostgreSQL allows names of at most %d bytes", what, name, maxIdentifier)
	}
	return nil
}
