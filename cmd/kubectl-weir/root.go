package main

import (
	"io"

	"github.com/spf13/cobra"
)

// streams are where a command listens and talks.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// newRoot returns the command with its subcommands; each stands in a file of its own. Those that need a cluster bind
// the flags of kubectl themselves, so that the others run without one.
func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-weir",
		Short:         "See, test and change rate limit policies and what enforces them",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl weir"},
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newTest(s), newLint(s), newSimulate(s), newPostgresSchema(s),
		newStatus(s), newExplain(s), newDiff(s), newPeek(s), newReset(s), newShadow(s), newTop(s),
	)
	return root
}

// noArgs is a call without subcommand, and tells one that does not exist.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}

// files are the arguments of a command that needs at least one file.
func files(cmd *cobra.Command, args []string) error {
	if err := cobra.MinimumNArgs(1)(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}
