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
		// Two letters that changed places are as far apart as that.
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		Args:                       subcommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(seeHelp)
	root.AddCommand(
		newTest(s), newLint(s), newSimulate(s), newPostgresSchema(s),
		newStatus(s), newExplain(s), newDiff(s), newPeek(s), newReset(s), newShadow(s), newTop(s),
	)
	strictHelpers(root)
	return root
}
