package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is how a command that looks at a cluster tells what it found.
type output string

var outputs = []string{"table", "wide", "json", "yaml"}

func (o *output) bind(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "table", "how to tell: table, wide, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}

func (o output) validate() error {
	return oneOf("output", string(o), outputs...)
}

// write tells a value; people get what table writes.
func (o output) write(w io.Writer, value any, table func(w io.Writer, wide bool)) error {
	switch o {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	table(w, o == "wide")
	return nil
}
