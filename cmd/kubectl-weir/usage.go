package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// usageError is a call that is not valid. Its one line ends with what to do.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// seeHelp sends the caller of a wrong call to the command's own help.
func seeHelp(cmd *cobra.Command, err error) error {
	return usageError{fmt.Errorf("%w: `%s --help` says how to call it", err, cmd.CommandPath())}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return seeHelp(cmd, fmt.Errorf("%s takes no arguments, and got %q", cmd.Name(), args[0]))
	}
	return nil
}

// subcommand refuses what is no command.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usageError{fmt.Errorf("unknown command %q: did you mean %s?", args[0], strings.Join(near, " or "))}
	}
	return usageError{fmt.Errorf("unknown command %q: `%s --help` lists those that there are", args[0], cmd.CommandPath())}
}

// files are the arguments of a command that needs at least one file.
func files(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{fmt.Errorf("FILE is missing: name a file, a folder or a tree, for example `%s policies/...`", cmd.CommandPath())}
	}
	return nil
}

// workload is the argument of a command that needs one.
func workload(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usageError{fmt.Errorf("WORKLOAD is missing: name the workload, for example `%s checkout`", cmd.CommandPath())}
	case 1:
		return nil
	}
	return tooMany(cmd, args)
}

// workloadOrAll is the argument of a command that takes one.
func workloadOrAll(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return tooMany(cmd, args)
	}
	return nil
}

func tooMany(cmd *cobra.Command, args []string) error {
	return usageError{fmt.Errorf("one WORKLOAD at a time, not %d: call `%s %s` first", len(args), cmd.CommandPath(), args[0])}
}

// oneOf refuses the value of a flag that is not one of those that there are.
func oneOf(what, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	last := len(known) - 1
	return usageError{fmt.Errorf("unknown %s %q: must be %s or %s", what, value, strings.Join(known[:last], ", "), known[last])}
}

// strictHelpers has the commands that cobra adds refuse wrong calls like ours do.
func strictHelpers(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return subcommand(root, args)
				}
				return nil
			}
		case "completion":
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, func(cmd *cobra.Command, args []string) error {
				shells := "must be bash, fish, powershell or zsh"
				if len(args) == 0 {
					return usageError{errors.New("the shell is missing: " + shells)}
				}
				return usageError{fmt.Errorf("unknown shell %q: %s", args[0], shells)}
			}
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		}
	}
}
